"""Positions: do they begin again with each sample, in the shape of the tokens?"""

from collections.abc import Iterator

import numpy as np

from brimful.base.wording import counted
from brimful.doctor.batch.claims import begins_by_positions, per_token
from brimful.doctor.batch.view import BatchView
from brimful.doctor.batch.words import Role
from brimful.doctor.report import Finding, wrong

_TOPIC = "positions"


def check_run_on(view: BatchView) -> Iterator[Finding]:
    """Check that positions begin with the same number in each segment that other words tell."""
    starts, _ = view.bounds
    positions = view.first_positions
    if positions is None or len(starts) < 2:
        return
    if view.believed.role in (Role.POSITIONS, Role.IDS):
        return  # nothing but positions tells samples apart
    columns = starts % view.shape[1]
    base = positions[columns == columns.min()].min()
    late = starts[positions != base]
    if not len(late):
        return
    surplus = positions[positions != base] - base
    runs_on = bool((surplus == late % view.shape[1] - columns.min()).all())
    if view.believed.role is Role.MASK and not runs_on:
        return  # branches of shared prefixes go on from their prefix
    name = view.positions_name
    yield wrong(
        _TOPIC,
        "positions_run_on",
        f"{name} {'run on through the row' if runs_on else 'do not begin again'}: "
        f"{view.believed.word} begins {counted(len(starts), 'sample')}, and {len(late)} of them at "
        f"a position other than {int(base)}, such as {int(surplus[0] + base):,} at "
        f"{view.place(late[0])}",
        f"{name} from {int(base)} in each sample",
    )


def check_shape(view: BatchView) -> Iterator[Finding]:
    """Check that positions have a value for each token."""
    for word in view.words_with(Role.POSITIONS):
        array = word.array
        if array is None or array.dtype == object or per_token(array, view.shape) is not None:
            continue
        detail = f"{word} has the shape {list(array.shape)}, and the tokens have {list(view.shape)}"
        if array.ndim == 3 and array.shape[-1] != view.shape[1]:
            detail += ": another axis than the last one was cut"
        yield wrong(_TOPIC, "positions_cut", detail, f"cut {word} on its last axis")


def check_rope_rows(view: BatchView) -> Iterator[Finding]:
    """Check that time, height and width of mRoPE begin again with each sample, and text where they
    do.
    """
    starts, _ = view.bounds
    for word in view.words_with(Role.POSITIONS):
        positions = per_token(word.array, view.shape)
        if positions is None or positions.ndim != 3 or len(positions) < 3 or not len(starts):
            continue
        first = positions.reshape(len(positions), -1)[-3:, starts]
        late = starts[(first != first.min()).any(axis=0)]
        text, axes = (begins_by_positions(rows, view.shape) for rows in (positions, positions[-3:]))
        if len(positions) == 4 and (gaps := np.flatnonzero(axes & ~text & ~view.padding)).size:
            yield wrong(
                _TOPIC,
                "positions_run_on",
                f"the row for text of {word} does not begin again at {view.places(gaps)}, and its "
                "rows for time, height and width do",
                f"compute {word} for each sample alone, and join them",
            )
        if len(late) and (len(positions) == 4 or view.believed.word != str(word)):
            yield wrong(
                _TOPIC,
                "positions_run_on",
                f"the rows for time, height and width of {word} do not begin again at "
                f"{view.places(late)}, and {view.believed.word} begins a sample there",
                f"compute {word} for each sample alone, and join them",
            )

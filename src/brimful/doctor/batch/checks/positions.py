"""Positions: do they begin again with each sample, in the shape of the tokens?"""

from collections.abc import Iterator

from brimful.base.wording import counted
from brimful.doctor.batch.checks.case import BatchCase, wrong
from brimful.doctor.batch.claims import per_token
from brimful.doctor.batch.words import Role
from brimful.doctor.report import Finding

_TOPIC = "positions"


def check_run_on(case: BatchCase) -> Iterator[Finding]:
    """Check that positions begin with the same number in each segment that other words tell."""
    view = case.view
    starts, _ = view.bounds
    if view.positions is None or len(starts) < 2:
        return
    if view.believed.role in (Role.POSITIONS, Role.IDS):
        return  # nothing but positions tells samples apart
    first = view.positions.reshape(-1)[starts]
    columns = starts % view.shape[1]
    expected = first[columns == columns.min()].min()
    late = starts[first != expected]
    if not len(late):
        return
    name = ".".join(map(str, view.positions_word or ()))
    values = view.positions.reshape(-1)[late]
    runs_on = bool((values - expected == late % view.shape[1] - columns.min()).all())
    if view.believed.role is Role.MASK and not runs_on:
        return  # branches of shared prefixes go on from where they part
    manner = "run on through the row" if runs_on else "do not begin again"
    yield wrong(
        _TOPIC,
        "positions_run_on",
        f"{name} {manner}: {view.believed.word} begins {counted(len(starts), 'sample')}, and "
        f"{len(late)} of them at a position other than {int(expected)}, such as {int(values[0]):,} "
        f"at {case.place(late[0])}",
        f"{name} from {int(expected)} in each sample",
    )


def check_shape(case: BatchCase) -> Iterator[Finding]:
    """Check that positions have a value for each token."""
    view = case.view
    for word in view.words_with(Role.POSITIONS):
        array = word.array
        if array is None or per_token(array, view.shape) is not None or array.dtype == object:
            continue
        width = array.shape[-1] if array.ndim else 0
        detail = f"{word} has the shape {list(array.shape)}, and the tokens have {list(view.shape)}"
        if array.ndim == 3 and width != view.shape[1]:
            detail += ": an axis other than that of the tokens was cut"
        yield wrong(_TOPIC, "positions_cut", detail, f"cut {word} on its last axis")


def check_rope_rows(case: BatchCase) -> Iterator[Finding]:
    """Check that time, height and width of mRoPE begin again with each sample, as text does."""
    view = case.view
    starts, _ = view.bounds
    for word in view.words_with(Role.POSITIONS):
        positions = per_token(word.array, view.shape)
        if positions is None or positions.ndim != 3 or len(positions) < 3 or not len(starts):
            continue
        first = positions.reshape(len(positions), -1)[-3:, starts]
        late = starts[(first != first.min()).any(axis=0)]
        if len(late) and (len(positions) == 4 or view.believed.word != str(word)):
            yield wrong(
                _TOPIC,
                "positions_run_on",
                f"the rows for time, height and width of {word} do not begin again at "
                f"{case.places(late)}, where {view.believed.word} begins a sample",
                f"compute {word} for each sample alone, and join them",
            )

"""Positions of the batch: every sample numbered as it is alone."""

import numpy as np

from brimful.base.typing import Int64Array
from brimful.base.wording import counted
from brimful.verify.setup import PackingSetup
from brimful.verify.verify_report import CheckResult, failed, passed


def position_rows(setup: PackingSetup) -> Int64Array | None:
    """Return ``int64[rows, B, T]``: positions of the batch, 1 row for text, 3 or 4 for mRoPE; None
    if it has none.
    """
    positions = setup.batch.per_token("position_ids")
    return positions if positions is None or positions.ndim == 3 else positions[None]


def check_positions(setup: PackingSetup) -> CheckResult:
    """Compare the positions of every sample in the batch with its positions alone."""
    if not setup.accepts("position_ids"):
        return passed("positions", "the model takes none")
    start, rows = setup.position_start, position_rows(setup)
    has_positions = rows is not None
    if rows is None:  # the model numbers the whole row
        width = setup.batch.ids.shape[1]
        rows = np.broadcast_to(np.arange(start, start + width), (1, *setup.batch.ids.shape))
    # Name, first column, positions in the batch and alone of each sample with other positions.
    mismatches: list[tuple[str, int, Int64Array, Int64Array]] = []
    runs_on = True
    for segment, place in setup.batch.located:
        actual = rows[(slice(None), *place.index)]
        text = np.arange(start, start + len(segment.ids))[None]
        expected = text if segment.positions is None else segment.positions
        # A single row serves all rows of a sample; in a batch of several, a row of text positions
        # may come first.
        if len(actual) == 1:
            actual = np.broadcast_to(actual, expected.shape)
        if len(actual) > len(expected) > 1:
            expected = np.vstack([text, expected])
        expected = np.broadcast_to(expected[-len(actual) :], actual.shape)
        if not np.array_equal(actual, expected):
            mismatches.append((segment.name, place.start, actual, expected))
            runs_on &= bool((actual[0] - start == place.columns).all())
    if not mismatches:
        along = ", along its path" if setup.samples.has_trees else ""
        return passed("positions", f"from {start} in every sample{along}")
    name, _, actual, expected = mismatches[0]
    row = int(np.flatnonzero((actual != expected).any(axis=1))[0])
    # In a tree the trunk may be right.
    first = int((actual != expected)[row].argmax()) if setup.samples.has_trees else 0
    several = slice(first, first + 4)
    where = f" at token {first}" if first else ""
    detail = (
        f"{len(mismatches)} of {len(setup.samples.segments)} samples: {name} has "
        f"{actual[row, several].tolist()}…{where}, alone it has "
        f"{expected[row, several].tolist()}…"
    )
    way_out = f"number every sample from {start}"
    if len(rows) > 1:
        way_out = (
            "compute the rows of every sample alone, join them, and put a row of text "
            "positions first: [4, B, T]"
        )
    # A medium moves positions by less than its tokens, so time, height and width of a sample are
    # off by one number, which is another one in each sample.
    surpluses = [actual[-3:] - expected[-3:] for _, _, actual, expected in mismatches]
    if not has_positions:
        cause = (
            "no position_ids: the model numbers the whole row, and nothing says where samples begin"
        )
    elif len(rows) >= 3 and all(
        (surplus == surplus.max()).all() and surplus.min() > 0 for surplus in surpluses
    ):
        cause = (
            f"mRoPE over the whole row: all {len(rows)} rows of position_ids run on through "
            "the samples"
        )
    elif setup.samples.has_trees:
        cause = _cause_in_trees(setup, runs_on=runs_on)
        way_out = "the position of a token is its depth: its place in its sample"
    # Positions that run on through a row are off by the column at which their sample begins.
    elif all(
        (actual.min(axis=1) - expected.min(axis=1) == column).all()
        for _, column, actual, expected in mismatches
    ):
        cause = "positions not reset: they run on through the whole row"
    elif (delay := _common_delay(setup, rows[0])) is not None:
        tokens = f"{counted(abs(delay), 'token')} {'late' if delay > 0 else 'early'}"
        cause = (
            f"boundaries off by {'one' if abs(delay) == 1 else abs(delay)}: positions start again "
            f"{tokens}, so as many tokens of one sample are numbered with the neighboring sample"
        )
    else:
        cause = f"positions begin elsewhere than at {start}, or belong to another sample"
    return failed("positions", detail, cause, way_out)


def _cause_in_trees(setup: PackingSetup, *, runs_on: bool) -> str:
    """Name the cause of wrong positions in a row of trees."""
    if runs_on:
        return (
            "positions run on along the row: a branch is numbered after the branch before it, and "
            "not from the depth of its trunk"
        )
    rows = position_rows(setup)
    assert rows is not None
    for _, place in setup.batch.located:
        positions = rows[(0, *place.index)]
        if (positions[1:] == setup.position_start).any():
            return (
                f"positions begin again at {setup.position_start} in every branch, which hides "
                "how far its trunk is"
            )
    return "positions are not the depths of tokens in their samples"


def _common_delay(setup: PackingSetup, positions: Int64Array) -> int | None:
    """Return by how many tokens every sample but the first of a row is numbered late; None if they
    differ.
    """
    delays = set()
    for _, place in setup.batch.located:
        if place.start > 0:
            resets = [
                delay
                for delay in (-2, -1, 1, 2)
                if 0 <= place.start + delay < positions.shape[1]
                and positions[place.row, place.start + delay] == setup.position_start
            ]
            delays.add(resets[0] if resets else None)
    return delays.pop() if len(delays) == 1 else None

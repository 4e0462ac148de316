"""Positions of the batch: every sample numbered as it is alone."""

from typing import NamedTuple

import numpy as np

from brimful.base.typing import Int64Array
from brimful.base.wording import counted
from brimful.verify.setup import PackingSetup
from brimful.verify.verify_report import Diagnosis, Finding, failed, passed


class _Mismatch(NamedTuple):
    """A sample with other positions in the batch than alone.

    Attributes:
        name: of the sample.
        start: column of its first token.
        actual: ``int64[rows, n]``: positions in the batch.
        expected: ``int64[rows, n]``: positions alone.
    """

    name: str
    start: int
    actual: Int64Array
    expected: Int64Array


def position_rows(setup: PackingSetup) -> Int64Array | None:
    """Return ``int64[rows, B, T]``: positions of the batch, 1 row for text, 3 or 4 for mRoPE; None
    if it has none.
    """
    positions = setup.batch.per_token("position_ids")
    return positions if positions is None or positions.ndim == 3 else positions[None]


def check_positions(setup: PackingSetup) -> Finding:
    """Compare the positions of every sample in the batch with its positions alone."""
    if not setup.accepts("position_ids"):
        return passed("positions", "the model takes none")
    start, rows = setup.position_start, position_rows(setup)
    has_positions = rows is not None
    if rows is None:  # the model numbers the whole row
        width = setup.batch.ids.shape[1]
        rows = np.broadcast_to(np.arange(start, start + width), (1, *setup.batch.ids.shape))
    mismatches = []
    for index, place in setup.batch.located:
        segment = setup.samples.segments[index]
        batch_positions = rows[:, place.row, place.start : place.stop]
        text = np.arange(start, start + place.stop - place.start)[None]
        sample_positions = text if segment.positions is None else segment.positions
        # A single row serves all rows of a sample; in a batch of several, a row of text positions
        # may come first.
        if len(batch_positions) == 1:
            batch_positions = np.broadcast_to(batch_positions, sample_positions.shape)
        if len(batch_positions) > len(sample_positions) > 1:
            expected_positions = np.vstack([text, sample_positions])
        else:
            expected_positions = np.broadcast_to(
                sample_positions[-len(batch_positions) :], batch_positions.shape
            )
        if not np.array_equal(batch_positions, expected_positions):
            mismatches.append(
                _Mismatch(segment.name, place.start, batch_positions, expected_positions)
            )
    if not mismatches:
        return passed("positions", f"from {start} in every sample")
    first = mismatches[0]
    row = int(np.flatnonzero((first.actual != first.expected).any(axis=1))[0])
    detail = (
        f"{len(mismatches)} of {len(setup.samples.segments)} samples: {first.name} has "
        f"{first.actual[row, :4].tolist()}…, alone it has {first.expected[row, :4].tolist()}…"
    )
    way_out = f"number every sample from {start}"
    if len(rows) > 1:
        way_out = "compute the rows of every sample alone, join them, and put a row of text positions first: [4, B, T]"
    if not has_positions:
        cause = (
            "no position_ids: the model numbers the whole row, and nothing says where samples begin"
        )
        return failed("positions", detail, cause, way_out)
    return failed("positions", detail, *_diagnose(setup, rows, mismatches, way_out))


def _diagnose(
    setup: PackingSetup, rows: Int64Array, mismatches: list[_Mismatch], way_out: str
) -> Diagnosis:
    """Name the likely cause by how far positions are off."""
    # A medium moves positions by less than its tokens, so time, height and width of a sample are
    # off by one number, which is another one in each sample.
    surpluses = [wrong.actual[-3:] - wrong.expected[-3:] for wrong in mismatches]
    if len(rows) >= 3 and all(
        (surplus == surplus[0, 0]).all() and surplus[0, 0] > 0 for surplus in surpluses
    ):
        return Diagnosis(
            f"mRoPE over the whole row: all {len(rows)} rows of position_ids run on through the "
            "samples",
            way_out,
        )
    # Positions that run on through a row are off by the column at which their sample begins.
    if all(
        (wrong.actual.min(axis=1) - wrong.expected.min(axis=1) == wrong.start).all()
        for wrong in mismatches
    ):
        return Diagnosis("positions not reset: they run on through the whole row", way_out)
    if (delay := _common_delay(setup, rows[0])) is not None:
        tokens = f"{counted(abs(delay), 'token')} {'late' if delay > 0 else 'early'}"
        return Diagnosis(
            f"boundaries off by {'one' if abs(delay) == 1 else abs(delay)}: positions start again "
            f"{tokens}, so as many tokens of one sample are numbered with the neighboring sample",
            f"{way_out}, at its first token",
        )
    return Diagnosis(
        f"positions begin elsewhere than at {setup.position_start}, or belong to another sample",
        way_out,
    )


def _common_delay(setup: PackingSetup, positions: Int64Array) -> int | None:
    """Return by how many tokens every sample but the first of a row is numbered late; None if they
    differ.
    """
    delays = set()
    for _, place in setup.batch.located:
        if place.start > 0:
            nearby = [
                delay for delay in (-2, -1, 1, 2) if 0 <= place.start + delay < positions.shape[1]
            ]
            resets = [
                delay
                for delay in nearby
                if positions[place.row, place.start + delay] == setup.position_start
            ]
            delays.add(resets[0] if resets else None)
    return delays.pop() if len(delays) == 1 else None

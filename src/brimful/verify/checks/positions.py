"""Positions of the batch: every sample numbered as it is alone."""

from dataclasses import dataclass

import numpy as np

from brimful.messages import counted
from brimful.typing import Int64Array
from brimful.verify.report import Diagnosis, Finding, Status, failed
from brimful.verify.setup import PackingSetup


@dataclass(frozen=True, slots=True)
class _Mismatch:
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
    """Return ``int64[rows, B, T]``: positions of the batch, 1 row for text, 3 or 4 for mRoPE; None if it has none."""
    positions = setup.batch.per_token("position_ids")
    return positions if positions is None or positions.ndim == 3 else positions[None]


def check_positions(setup: PackingSetup) -> Finding:
    """Compare the positions of every sample in the batch with its positions alone."""
    if not setup.accepts("position_ids"):
        return Finding("positions", Status.PASS, detail="the model takes none")
    mismatches = _mismatches(setup)
    if not mismatches:
        return Finding("positions", Status.PASS, detail=f"from {setup.position_start} in every sample")
    first = mismatches[0]
    row = int(np.flatnonzero((first.actual != first.expected).any(axis=1))[0])
    detail = (
        f"{len(mismatches)} of {len(setup.samples.segments)} samples: {first.name} has "
        f"{first.actual[row, :4].tolist()}…, alone it has {first.expected[row, :4].tolist()}…"
    )
    return failed("positions", detail, *_diagnose(setup, mismatches))


def _effective_rows(setup: PackingSetup) -> Int64Array:
    """Return the positions of the batch, or the model's own if it has none."""
    rows = position_rows(setup)
    if rows is None:
        start, shape = setup.position_start, setup.batch.ids.shape
        rows = np.broadcast_to(np.arange(start, start + shape[1]), (1, *shape))
    return rows


def _mismatches(setup: PackingSetup) -> list[_Mismatch]:
    """Return the samples whose positions differ from their positions alone."""
    rows = _effective_rows(setup)
    mismatches = []
    for index, place in setup.batch.located:
        segment = setup.samples.segments[index]
        batch_positions = rows[:, place.row, place.start : place.stop]
        text = np.arange(setup.position_start, setup.position_start + place.stop - place.start)[None]
        sample_positions = text if segment.positions is None else segment.positions
        # A single row serves all rows of a sample; in a batch of several, a row of text positions may come first.
        if len(batch_positions) == 1:
            batch_positions = np.broadcast_to(batch_positions, sample_positions.shape)
        has_text_row = len(batch_positions) > len(sample_positions) > 1
        expected_positions = (
            np.vstack([text, sample_positions])
            if has_text_row
            else np.broadcast_to(sample_positions[-len(batch_positions) :], batch_positions.shape)
        )
        if not np.array_equal(batch_positions, expected_positions):
            mismatches.append(_Mismatch(segment.name, place.start, batch_positions, expected_positions))
    return mismatches


def _diagnose(setup: PackingSetup, mismatches: list[_Mismatch]) -> Diagnosis:
    """Name the likely cause by how far positions are off."""
    rows, start = _effective_rows(setup), setup.position_start
    way_out = f"number every sample from {start}"
    if len(rows) > 1:
        way_out = "compute the rows of every sample alone, join them, and put a row of text positions first: [4, B, T]"
    if position_rows(setup) is None:
        return Diagnosis(
            "no position_ids: the model numbers the whole row, and nothing says where samples begin", way_out
        )
    # A medium moves positions by less than its tokens, so positions in space are off by another number in each sample.
    if len(rows) >= 3 and all(_runs_on(wrong) for wrong in mismatches):
        return Diagnosis(
            f"mRoPE over the whole row: all {len(rows)} rows of position_ids run on through the samples", way_out
        )
    # Positions that run on through a row are off by the column at which their sample begins.
    if all((wrong.actual.min(axis=1) - wrong.expected.min(axis=1) == wrong.start).all() for wrong in mismatches):
        return Diagnosis("positions not reset: they run on through the whole row", way_out)
    if (delay := _common_delay(setup, rows[0])) is not None:
        tokens = f"{counted(abs(delay), 'token')} {'late' if delay > 0 else 'early'}"
        return Diagnosis(
            f"boundaries off by {'one' if abs(delay) == 1 else abs(delay)}: positions start again {tokens}, so as many "
            f"tokens of one sample are numbered with the neighboring sample",
            f"{way_out}, at its first token",
        )
    return Diagnosis(f"positions begin elsewhere than at {start}, or belong to another sample", way_out)


def _runs_on(wrong: _Mismatch) -> bool:
    """Return true if time, height and width of a sample differ from its own by one positive number."""
    surplus = wrong.actual[-3:] - wrong.expected[-3:]
    return bool((surplus == surplus[0, 0]).all() and surplus[0, 0] > 0)


def _common_delay(setup: PackingSetup, positions: Int64Array) -> int | None:
    """Return by how many tokens every sample but the first of a row is numbered late; None if they differ."""
    delays = set()
    for _, place in setup.batch.located:
        if place.start > 0:
            nearby = [delay for delay in (-2, -1, 1, 2) if 0 <= place.start + delay < positions.shape[1]]
            resets = [delay for delay in nearby if positions[place.row, place.start + delay] == setup.position_start]
            delays.add(resets[0] if resets else None)
    return delays.pop() if len(delays) == 1 else None

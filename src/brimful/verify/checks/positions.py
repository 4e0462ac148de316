"""Do positions begin anew with every sample?"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from brimful.messages import counted
from brimful.typing import Int64Array
from brimful.verify.report import Finding, Status
from brimful.verify.subject import Subject

__all__ = ["check_positions", "explain_positions", "position_rows"]

_Wrong: TypeAlias = tuple[str, int, Int64Array, Int64Array]


def position_rows(subject: Subject) -> Int64Array | None:
    """``int64[rows, B, T]``: positions of the batch, 1 row for text, 3 or 4 for mRoPE; None if it has none."""
    positions = subject.batch.kwargs.get("position_ids")
    if positions is None:
        return None
    found = positions.detach().cpu().numpy().astype(np.int64)
    shape = subject.batch.ids.shape
    return np.broadcast_to(found, (len(found), *shape)) if found.ndim == 3 else np.broadcast_to(found, shape)[None]


def check_positions(subject: Subject) -> Finding:
    """Positions of every sample in the batch against those that it has alone."""
    if not subject.accepts("position_ids"):
        return Finding("positions", Status.PASS, detail="the model takes none")
    wrong = _wrong(subject)
    if not wrong:
        return Finding("positions", Status.PASS, detail=f"from {subject.position_start} in every sample")
    name, _, got, should = wrong[0]
    row = int(np.flatnonzero((got != should).any(axis=1))[0])
    detail = (
        f"{len(wrong)} of {len(subject.case.segments)} samples: {name} has {got[row, :4].tolist()}…, alone it has "
        f"{should[row, :4].tolist()}…"
    )
    cause, way_out = _explain(subject, wrong)
    return Finding("positions", Status.FAIL, detail=detail, cause=cause, way_out=way_out)


def explain_positions(subject: Subject) -> tuple[str, str] | None:
    """What is wrong with the positions, and what to change; None if nothing is."""
    wrong = _wrong(subject)
    return _explain(subject, wrong) if wrong else None


def _rows(subject: Subject) -> Int64Array:
    """Positions of the batch; those that the model makes itself where it has none."""
    rows = position_rows(subject)
    if rows is None:
        start, shape = subject.position_start, subject.batch.ids.shape
        rows = np.broadcast_to(np.arange(start, start + shape[1]), shape)[None]
    return rows


def _wrong(subject: Subject) -> list[_Wrong]:
    """Samples with other positions than alone: name, first column, positions here, positions alone."""
    rows, start = _rows(subject), subject.position_start
    wrong = []
    for segment, place in zip(subject.case.segments, subject.batch.places, strict=True):
        if place is None:
            continue
        own = rows[:, place.row, place.start : place.stop]
        plain = np.arange(start, start + place.stop - place.start)[None]
        wanted = plain if segment.positions is None else segment.positions
        extra = len(own) - len(wanted)
        expected = np.broadcast_to(wanted, own.shape) if extra <= 0 or len(wanted) == 1 else np.vstack([plain, wanted])
        if not np.array_equal(own, expected):
            wrong.append((segment.name, place.start, own, expected))
    return wrong


def _explain(subject: Subject, wrong: list[_Wrong]) -> tuple[str, str]:
    rows, start = _rows(subject), subject.position_start
    way_out = f"number every sample from {start}"
    if len(rows) > 1:
        way_out = "compute the rows of every sample alone, join them, and put a row of text positions first: [4, B, T]"
    if position_rows(subject) is None:
        return "no position_ids: the model numbers the whole row, and nothing says where samples begin", way_out
    if all((own.min(axis=1) - alone.min(axis=1) == first).all() for _, first, own, alone in wrong):
        if len(rows) > 1:
            return f"mRoPE over the whole row: all {len(rows)} rows of position_ids run on through the samples", way_out
        return "positions not reset: they run on through the whole row", way_out
    if (by := _late(subject, rows[0])) is not None:
        tokens = f"{counted(abs(by), 'token')} {'late' if by > 0 else 'early'}"
        return (
            f"boundaries off by {'one' if abs(by) == 1 else abs(by)}: positions begin anew {tokens}, so that many tokens "
            f"of one sample are numbered with the sample beside it",
            f"{way_out}, at its first token",
        )
    return f"positions begin elsewhere than at {start}, or are those of another sample", way_out


def _late(subject: Subject, rows: Int64Array) -> int | None:
    """By how many tokens positions begin anew behind the beginning of every sample, but the first in its row."""
    found = set()
    for place in subject.batch.places:
        if place is None or place.start == 0:
            continue
        near = [by for by in (-2, -1, 1, 2) if 0 <= place.start + by < rows.shape[1]]
        found.add(next((by for by in near if rows[place.row, place.start + by] == subject.position_start), None))
    return found.pop() if len(found) == 1 else None

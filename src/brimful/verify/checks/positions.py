"""Do positions begin anew with every sample?"""

from __future__ import annotations

import numpy as np

from brimful.typing import Int64Array
from brimful.verify.report import Finding, Status
from brimful.verify.subject import Subject

__all__ = ["check_positions", "position_rows"]


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
    rows = position_rows(subject)
    start = subject.position_start
    given = rows is not None
    if rows is None:
        width = subject.batch.ids.shape[1]
        rows = np.broadcast_to(np.arange(start, start + width), subject.batch.ids.shape)[None]
    wrong: list[tuple[str, list[int], list[int]]] = []
    through = True
    for segment, place in zip(subject.case.segments, subject.batch.places, strict=True):
        if place is None:
            continue
        own = rows[:, place.row, place.start : place.stop]
        plain = np.arange(start, start + place.stop - place.start)[None]
        wanted = plain if segment.positions is None else segment.positions
        extra = len(own) - len(wanted)
        expected = np.broadcast_to(wanted, own.shape) if extra <= 0 or len(wanted) == 1 else np.vstack([plain, wanted])
        through &= bool((own.min(axis=1) - expected.min(axis=1) == place.start).all())
        if not np.array_equal(own, expected):
            row = int(np.flatnonzero((own != expected).any(axis=1))[0])
            wrong.append((segment.name, own[row, :4].tolist(), expected[row, :4].tolist()))
    if not wrong:
        return Finding("positions", Status.PASS, detail=f"from {start} in every sample")
    name, got, should = wrong[0]
    detail = f"{len(wrong)} of {len(subject.case.segments)} samples: {name} has {got}…, alone it has {should}…"
    if not given:
        cause = "the batch has no position_ids, so the model numbers the whole row"
    elif through and len(rows) > 1:
        cause = f"mRoPE over the whole row: all {len(rows)} rows of position_ids run on through the samples"
    elif through:
        cause = "positions not reset: they run on through the whole row"
    else:
        cause = f"positions begin elsewhere than at {start}, or are those of another sample"
    way_out = f"number every sample from {start}"
    if len(rows) > 1:
        way_out = "compute the rows of every sample alone, join them, and put a row of text positions first: [4, B, T]"
    return Finding("positions", Status.FAIL, detail=detail, cause=cause, way_out=way_out)

"""Rows without a length: which ones, why, and a readable list of them."""

import heapq
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from brimful.base.atomic_file import atomic_file
from brimful.base.tables import open_table
from brimful.base.typing import Int64Array
from brimful.lengths.table import LengthTable
from brimful.measure.block_task import BlockTask
from brimful.sources.source import Source

MAX_REJECTS = 1000
"""Number of rejected rows that a table names, from the first; the rest are only counted."""


def num_bad(table: LengthTable) -> int:
    """Return the number of rejected rows that no filter left out."""
    return len(table.rejected_ids) - table.account.filtered.total()


def knows_rejects(table: LengthTable, source: Source, path: str | os.PathLike[str]) -> bool:
    """Return true if the reason of each reject is in the table, or in the file at the path, which lists its rejects."""
    if len(table.rejected_ids) == len(table.rejects):
        return True
    return len(table) == len(source) and lists_rejects(table, path)


def lists_rejects(table: LengthTable, path: str | os.PathLike[str]) -> bool:
    """Return true if a file lists exactly the rejected samples of a table, and they are more than the table names."""
    if len(table.rejected_ids) == len(table.rejects):
        return False
    try:
        with open(path, "rb") as file:
            return bool([json.loads(line)["sample_id"] for line in file] == table.rejected_ids.tolist())
    except (OSError, ValueError, KeyError, TypeError):
        return False


def located_rejects(rejects: Iterable[Sequence[Any]], source: Source) -> list[list[Any]]:
    """Return rejects with their current file and line: equal rows may be in a file of another name now."""
    return [[sample_id, source.where(sample_id), reason] for sample_id, _, reason in rejects]


def rejects_of(
    earlier_table: LengthTable | None, tasks: list[BlockTask], originals: Int64Array | None
) -> Iterator[tuple[int, str]]:
    """Yield sample and reason of all rejects in the order of the samples, a block at a time."""
    if earlier_table is not None:
        yield from ((sample_id, reason) for sample_id, _, reason in earlier_table.rejects)
    for task in tasks:
        # Rows of a part are counted from its first: the same part may be elsewhere in another source.
        rejects = [(task.start + row, reason) for row, _, reason in open_table(task.part_path).description["rejects"]]
        if originals is not None:
            copies = task.start + np.flatnonzero(originals[task.start : task.stop] >= 0)
            reasons = (f"has the content of sample {original:,}" for original in originals[copies].tolist())
            rejects = list(heapq.merge(rejects, zip(copies.tolist(), reasons, strict=True)))
        yield from rejects


def write_rejects(
    table: LengthTable,
    source: Source,
    path: str | os.PathLike[str],
    rejects: Iterable[tuple[int, str]] | None = None,
) -> None:
    """Write JSON lines of the skipped rows: file and line, reason, and the row if it can be read.

    Args:
        table: lengths, in which they are -1.
        source: the rows.
        path: file of the list.
        rejects: sample and reason of each, in order; None for the rejects that the table names.
    """
    ids = table.rejected_ids
    if len(ids) == 0 and not os.path.exists(path):
        return
    reasons = iter(rejects if rejects is not None else ((reject[0], reject[2]) for reject in table.rejects))
    known = next(reasons, None)
    with atomic_file(path) as file:
        for sample_id in map(int, ids):
            row = source.rows.get(sample_id)
            # Both are in the order of the samples; a table names the first ``MAX_REJECTS`` alone.
            reason = "see the rows before"
            if known is not None and known[0] == sample_id:
                reason, known = known[1], next(reasons, None)
            record = {
                "sample_id": sample_id,
                "where": source.where(sample_id),
                "reason": reason,
                "row": row if not isinstance(row, Exception) else None,
            }
            file.write(json.dumps(record, ensure_ascii=False, default=str).encode("utf-8", "surrogatepass") + b"\n")

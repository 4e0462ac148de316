"""Sorted index of reference log probabilities: one file per pass, mapped by all ranks, searched by sample and content."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from brimful.cache import exclusive
from brimful.errors import CorruptFileError
from brimful.tables import Table, open_table, write_table
from brimful.typing import AnyIntArray, Float32Array, Int64Array

INDEX_NAME = "sorted.index"
"""Name of the index file next to the parts of a pass; its suffix differs, so that it is never counted as a part."""

_KIND, _VERSION = "reference_index", 1


@dataclass(frozen=True, eq=False)
class SortedLogps:
    """Log probabilities sorted by sample, then content: a search takes O(log n) and reads nothing else.

    Attributes:
        sample_ids, contents: ``int64[n]``.
        logps: ``float32[n]``.
        path: the file they are mapped from; None if they are in memory.
    """

    sample_ids: Int64Array
    contents: Int64Array
    logps: Float32Array
    path: str | None = None

    @classmethod
    def of(cls, sample_ids: AnyIntArray, contents: Int64Array, logps: Float32Array) -> SortedLogps:
        """Sort arrays in memory, with a peak of 44 bytes per row.

        >>> SortedLogps.of(np.array([2, 0]), np.array([7, 9]), np.array([-1, -2], np.float32)).find(2, 7)
        (True, -1.0)
        """
        order = np.lexsort((contents, sample_ids))
        return cls(
            np.asarray(sample_ids, dtype=np.int64)[order],
            np.asarray(contents, dtype=np.int64)[order],
            np.asarray(logps, dtype=np.float32)[order],
        )

    def __len__(self) -> int:
        return len(self.sample_ids)

    def find(self, sample_id: int, content: int) -> tuple[bool, float | None]:
        """Return whether the sample is in the index, and its log probability with this content; None if it has none."""
        first, end = np.searchsorted(self.sample_ids, [sample_id, sample_id + 1]).tolist()
        # A sample has several rows if it was packed with different cuts.
        row = first + int(np.searchsorted(self.contents[first:end], content))
        is_found = row < end and int(self.contents[row]) == content
        return first < end, float(self.logps[row]) if is_found else None

    def __reduce__(self) -> Any:
        # A worker maps the file again: the numbers of 1e8 samples take 2 GB.
        if self.path is not None:
            return open_index, (Path(self.path),)
        return SortedLogps, (self.sample_ids, self.contents, self.logps)


def open_index(path: Path) -> SortedLogps:
    """Map an index. Its numbers are compared with their checksums, which reads the file once and stores nothing.

    Raises:
        CorruptFileError: a damaged file, or an unfinished pass.
    """
    if not path.exists():
        raise CorruptFileError(
            f"{path.parent} has {len(parts_of(path.parent))} files: run compute_references to its end on every rank"
        )
    table = open_table(path)
    _check_kind(table, _KIND, "index of reference log probabilities")
    return SortedLogps(table.flat("sample_ids"), table.flat("contents"), table.flat("logps"), str(path))


def make_index(folder: Path, *, part_kind: str) -> None:
    """Write the index of a finished pass, once for all ranks.

    Args:
        folder: folder of the parts.
        part_kind: kind of their tables.

    Raises:
        CorruptFileError: a damaged file.
    """
    path = folder / INDEX_NAME
    with exclusive(path):
        if path.exists():
            return
        tables = [open_table(file) for file in parts_of(folder)]
        for table in tables:
            _check_kind(table, part_kind, "reference log probabilities")
        names = ("sample_ids", "contents", "logps")
        logps = SortedLogps.of(*(np.concatenate([table.flat(name) for table in tables]) for name in names))
        columns: dict[str, Any] = {name: getattr(logps, name) for name in names}
        write_table(path, columns, {"kind": _KIND, "version": _VERSION})


def is_complete(folder: Path, num_files: int) -> bool:
    """Return true if all parts of a pass exist."""
    return len(parts_of(folder)) == num_files


def parts_of(folder: Path) -> list[Path]:
    """Return the existing files of a pass, in order."""
    return sorted(folder.glob("*.arrow"))


def _check_kind(table: Table, kind: str, title: str) -> None:
    if (table.description.get("kind"), table.description.get("version")) != (kind, _VERSION):
        raise CorruptFileError(f"{table.path} holds no {title} of this version")

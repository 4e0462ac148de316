"""Parquet files: rows by index through row groups."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from brimful.errors import SourceError, SourceNotFoundError
from brimful.fingerprint import fingerprint_bytes, fingerprint_of
from brimful.sources.block import cut
from brimful.sources.rows import Block, Rows
from brimful.sources.stamp import Stamp
from brimful.typing import Fingerprint

__all__ = ["ParquetRows"]

_PIECE_ROWS = 65536
_GROUPS_KEPT = 2


class ParquetRows(Rows):
    """Rows of one Parquet file. The last row groups read stay decoded."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        self.title = self._path
        try:
            self._stamp = Stamp.of(self._path)
        except OSError as error:
            raise SourceNotFoundError(f"{self.title}: no such file") from error
        self._file: Any = None
        self._groups: OrderedDict[int, Any] = OrderedDict()
        self._starts = np.cumsum([0, *self._group_rows()])

    @classmethod
    def _reopen(cls, path: str, stamp: Stamp) -> ParquetRows:
        """In a worker process: refuse a file that changed since."""
        stamp.check(path)
        self = cls(path)
        self._stamp = stamp
        stamp.check(path)
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return ParquetRows._reopen, (self._path, self._stamp)

    def _open(self) -> Any:
        if self._file is None:
            import pyarrow as pa
            import pyarrow.parquet as pq

            try:  # not mapped: a file that is cut short meanwhile would kill the process with a bus error
                self._file = pq.ParquetFile(self._path)
            except (OSError, pa.ArrowException) as error:
                raise SourceError(f"{self.title} is no Parquet file: {str(error).splitlines()[0]}") from error
        return self._file

    def _group_rows(self) -> list[int]:
        metadata = self._open().metadata
        return [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]

    def __len__(self) -> int:
        return int(self._starts[-1])

    def _group(self, group: int) -> Any:
        table = self._groups.get(group)
        if table is None:
            import pyarrow as pa

            try:
                table = self._open().read_row_group(group)
            except (OSError, pa.ArrowException) as error:
                self._stamp.check(self._path)
                detail = str(error).splitlines()[0]
                raise SourceError(f"{self.title}: row group {group} is damaged ({detail})") from error
            self._stamp.check(self._path)
            self._groups[group] = table
            while len(self._groups) > _GROUPS_KEPT:
                self._groups.popitem(last=False)
        return table

    def read(self, start: int, stop: int) -> Iterator[Any]:
        while start < stop:
            group = int(np.searchsorted(self._starts, start, side="right")) - 1
            first, end = int(self._starts[group]), min(int(self._starts[group + 1]), stop)
            table = self._group(group)
            for begin in range(start, end, 1024):
                yield from table.slice(begin - first, min(1024, end - begin)).to_pylist()
            start = end

    def where(self, index: int) -> str:
        return f"{self.title}: row {index}"

    @cached_property
    def blocks(self) -> Sequence[Block]:
        metadata = self._open().metadata
        found: list[Block] = []
        with open(self._path, "rb") as file:
            for group in range(metadata.num_row_groups):
                digest = _group_fingerprint(file, metadata.row_group(group))
                first = int(self._starts[group])
                for start, stop in cut(first, int(self._starts[group + 1]), _PIECE_ROWS):
                    found.append(Block(start, stop, fingerprint_of([digest, start - first, stop - first])))
        self._stamp.check(self._path)
        return found

    @cached_property
    def fingerprint(self) -> Fingerprint:
        return fingerprint_of([str(self._open().schema_arrow), [block.fingerprint for block in self.blocks]])


def _group_fingerprint(file: Any, group: Any) -> Fingerprint:
    """Of the stored bytes of a row group's columns: cheaper than decoding, and no two contents share them."""
    digests = []
    for number in range(group.num_columns):
        column = group.column(number)
        offsets = [column.data_page_offset]
        if column.has_dictionary_page and column.dictionary_page_offset:
            offsets.append(column.dictionary_page_offset)
        file.seek(min(offsets))
        digests.append([column.path_in_schema, fingerprint_bytes(file.read(column.total_compressed_size))])
    return fingerprint_of([group.num_rows, digests])

"""Parquet files: rows by index, through row groups."""

import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from brimful.base.fingerprint import fingerprint_bytes, fingerprint_of
from brimful.base.ragged import offsets_of
from brimful.base.typing import Fingerprint
from brimful.errors import SourceError, SourceNotFoundError
from brimful.sources.memory import rows_of_table
from brimful.sources.rows import Block, Rows, block_ranges, joined
from brimful.sources.stamp import Stamp

_PIECE_ROWS = 65536
"""Maximum rows of a piece of a row group: more than in other blocks, since reading any row decodes the whole group."""

_GROUPS_IN_MEMORY = 2
"""Number of decoded row groups that a reader holds: reading may go back and forth across a boundary."""


class ParquetRows(Rows):
    """Rows of one Parquet file. The row groups read last stay decoded."""

    lies_in_files = True

    def __init__(self, path: str | os.PathLike[str], stamp: Stamp | None = None) -> None:
        """``stamp``: in a worker process, the file's stamp in the parent; a file that has changed since is refused."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._path = os.fspath(path)
        self.title = self._path
        try:
            self._stamp = stamp or Stamp.of(self._path)
        except OSError as error:
            raise SourceNotFoundError(f"{self.title}: no such file") from error
        # Checked before, for a message that names the change, and after, so that the open file is the stamped one.
        self._stamp.check(self._path)
        try:  # not mapped: a file truncated meanwhile would kill the process with a bus error
            with pq.ParquetFile(self._path) as file:
                self._metadata, self._schema = file.metadata, file.schema_arrow
        except (OSError, pa.ArrowException) as error:
            raise SourceError(f"{self.title} is not a Parquet file: {str(error).splitlines()[0]}") from error
        self._stamp.check(self._path)
        self._groups: dict[int, Any] = {}
        self._group_metadata = [*map(self._metadata.row_group, range(self._metadata.num_row_groups))]
        self._offsets = offsets_of([group.num_rows for group in self._group_metadata])

    def __reduce__(self) -> tuple[Any, ...]:
        return ParquetRows, (self._path, self._stamp)

    def __len__(self) -> int:
        return int(self._offsets[-1])

    def _group(self, group: int) -> Any:
        """Return the Arrow table of a row group, from memory if it was read lately."""
        table = self._groups.get(group)
        if table is None:
            import pyarrow as pa
            import pyarrow.parquet as pq

            try:  # opened each time: a data set may have more files than a process may hold open
                with pq.ParquetFile(self._path, metadata=self._metadata) as file:
                    table = file.read_row_group(group)
            except (OSError, pa.ArrowException) as error:
                # A file that was overwritten also fails to decode: the change is the better message.
                self._stamp.check(self._path)
                detail = str(error).splitlines()[0]
                raise SourceError(f"{self.title}: row group {group} is damaged ({detail})") from error
            self._stamp.check(self._path)
            if len(self._groups) == _GROUPS_IN_MEMORY:
                del self._groups[next(iter(self._groups))]
            self._groups[group] = table
        return table

    def read(self, start: int, stop: int) -> Iterator[Any]:
        while start < stop:
            group = int(np.searchsorted(self._offsets, start, side="right")) - 1
            first, end = int(self._offsets[group]), min(int(self._offsets[group + 1]), stop)
            yield from rows_of_table(self._group(group), start - first, end - first)
            start = end

    @cached_property
    def _pieces(self) -> Sequence[Block]:
        """Row groups, each with the fingerprint of its content; a large one in several pieces."""
        with open(self._path, "rb") as file:
            pieces = self._cut([_group_fingerprint(file, group) for group in self._group_metadata])
        self._stamp.check(self._path)
        return pieces

    def _cut(self, digests: Sequence[Fingerprint]) -> list[Block]:
        """Return the pieces of row groups with these digests."""
        pieces: list[Block] = []
        edges = self._offsets.tolist()
        for group, digest, first, end in zip(self._group_metadata, digests, edges, edges[1:], strict=False):
            # A row group is hashed as a whole: the rows of a piece are identified by their place in it.
            for start, stop in block_ranges(first, end, _PIECE_ROWS):
                num_bytes = group.total_byte_size * (stop - start) // group.num_rows
                pieces.append(Block(start, stop, fingerprint_of([digest, start - first, stop - first]), num_bytes))
        return pieces

    @cached_property
    def blocks(self) -> Sequence[Block]:
        return [*joined(self._pieces)]

    @property
    def block_bytes(self) -> Sequence[int]:
        """Bytes of text of each block, from the footer of the file alone: nothing is hashed."""
        return [block.num_bytes or 0 for block in joined(self._cut([""] * len(self._group_metadata)))]

    @property
    def fingerprint(self) -> Fingerprint:
        return fingerprint_of([str(self._schema), [piece.fingerprint for piece in self._pieces]])


def _group_fingerprint(file: Any, group: Any) -> Fingerprint:
    """Return the fingerprint of the stored bytes of a row group's columns.

    Hashing them is cheaper than decoding, and different contents have different bytes.
    """
    digests = []
    for column_index in range(group.num_columns):
        column = group.column(column_index)
        # The dictionary page, if any, comes before the data pages and belongs to the column.
        offsets = [column.data_page_offset]
        if column.has_dictionary_page and column.dictionary_page_offset:
            offsets.append(column.dictionary_page_offset)
        file.seek(min(offsets))
        digests.append([column.path_in_schema, fingerprint_bytes(file.read(column.total_compressed_size))])
    return fingerprint_of([group.num_rows, digests])

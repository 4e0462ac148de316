"""Files of lines, JSON lines and plain texts, read by index."""

from __future__ import annotations

import abc
import bisect
import codecs
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import xxhash

from brimful.base.fingerprint import fingerprint_of
from brimful.base.locks import cache_dir, cached
from brimful.base.typing import AnyPath, Fingerprint
from brimful.errors import SourceError, SourceNotFoundError
from brimful.sources.json_rows import row_of_line, rows_of_lines
from brimful.sources.line_index import LineIndex, index_of_lines, load_line_index, open_line_index
from brimful.sources.rows import MAX_ROW_BYTES, Block, Rows
from brimful.sources.stamp import Stamp, changed

_BOM = b"\xef\xbb\xbf"
_SMALL_BYTES = _PIECE_BYTES = 1 << 18
"""Bytes of one read, at most. A file of this size or less is scanned where it is opened: its index is
not stored.
"""

_PIECE_ROWS = 1024
"""Lines of one read, at most: the first comes at once, and a look at the stamp costs nothing."""


class Lines(Rows):
    """Lines of one file by index. All processes that open the file share the offset index.

    The file is read and not mapped: reading a mapped file that was truncated kills the process.
    """

    lies_in_files = True

    def __init__(
        self,
        path: AnyPath,
        *,
        cache: Path | None = None,
        title: str | None = None,
        original: str | None = None,
    ) -> None:
        self._path = os.path.realpath(path)
        if not os.path.isfile(self._path):
            raise SourceNotFoundError(f"{os.fspath(path)}: no such file")
        self.title = title or os.fspath(path)
        self._stamp = Stamp.of(self._path)
        if self._stamp.size <= _SMALL_BYTES:
            self._index = index_of_lines(self._path)
        else:
            # The index of a copy belongs to its original: the next copy replaces it.
            name = fingerprint_of(original or self._path)[:16]
            folder = (cache or cache_dir()) / "indexes"
            is_copy = original not in (None, self._path)
            self._index = open_line_index(
                self._path, cached(folder / f"{name}.lines.arrow"), is_copy=is_copy
            )
        if self._index.stamp != self._stamp:
            raise changed(self.title)
        if Lines._ranges(self, [(0, min(2, self._index.stamp.size))])[0] in (
            codecs.BOM_UTF16_LE,
            codecs.BOM_UTF16_BE,
        ):
            way_out = "write it as UTF-8 first (iconv -f UTF-16 -t UTF-8)"
            raise SourceError(f"{self.title} looks like UTF-16: {way_out}")

    @classmethod
    def _reopen(
        cls, path: str, kept: str | LineIndex, title: str, fingerprint: Fingerprint, stamp: Stamp
    ) -> Lines:
        """Open the file in a worker, by the parent's index; refuse a file that changed since."""
        self = cls.__new__(cls)
        self._path, self.title, self._stamp = path, title, stamp
        stamp.check(path, title)
        index = load_line_index(Path(kept)) if isinstance(kept, str) else kept
        if index is None or index.fingerprint != fingerprint or index.stamp != stamp:
            raise changed(title)
        self._index = index
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        kept = self._index.index_path or self._index
        state = (self._path, kept, self.title, self._index.fingerprint, self._stamp)
        return type(self)._reopen, state

    def __len__(self) -> int:
        return len(self._index.starts)

    @property
    def blocks(self) -> Sequence[Block]:
        return self._index.blocks

    @property
    def fingerprint(self) -> Fingerprint:
        return self._index.fingerprint

    def prefix_fingerprints(self, count: int) -> Sequence[Fingerprint]:
        if not 0 < count <= len(self):
            return []
        if count == len(self):
            return [self.fingerprint]
        end = int(self._index.starts[count])
        hasher = xxhash.xxh3_128()
        for piece in self._pieces(0, end - 1):
            hasher.update(piece)
        # A line may not have had its line end yet when it was the last.
        without_end = hasher.hexdigest()
        hasher.update(self._bytes(end - 1, 1))
        return [hasher.hexdigest(), without_end]

    def _bytes(self, start: int, length: int) -> bytes:
        """Return bytes of the indexed file; refuse a file that has changed."""
        return self._ranges([(start, length)])[0]

    def _ranges(self, ranges: Iterable[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of ranges (start, length); refuse a file that has changed."""
        try:
            # Opened each time: a data set may have more files than a process may hold open.
            with open(self._path, "rb", buffering=0) as file:
                data = [
                    (os.pread(file.fileno(), length, start), length) for start, length in ranges
                ]
        except OSError:
            self._stamp.check(self._path, self.title)
            raise
        self._stamp.check(self._path, self.title)
        for piece, length in data:
            if len(piece) != length:
                raise SourceError(
                    f"{self.title} could be read only in part ({len(piece):,} of {length:,} "
                    "bytes): run again"
                )
        return [piece for piece, _ in data]

    def _pieces(self, start: int, stop: int) -> Iterator[bytes]:
        for position in range(start, stop, _PIECE_BYTES):
            yield self._bytes(position, min(_PIECE_BYTES, stop - position))

    def read(self, start: int, stop: int) -> Iterator[Any]:
        while start < stop:
            # Several lines are read at once: as many as fit in a piece, at least one.
            first, limit = int(self._index.starts[start]), min(start + _PIECE_ROWS, stop)
            ends = [*self._index.starts[start + 1 : limit + 1].tolist(), self._index.stamp.size]
            ends = ends[: limit - start]
            count = max(1, bisect.bisect_right(ends, first + _PIECE_BYTES))
            # A line above the maximum is read only up to the first byte beyond it.
            data = self._bytes(
                first, min(ends[count - 1] - first, max(_PIECE_BYTES, MAX_ROW_BYTES + 1))
            )
            edges = [0, *(end - first for end in ends[:count])]
            lines = [data[line_start:end] for line_start, end in pairwise(edges)]
            if first == 0:
                lines[0] = lines[0].removeprefix(_BOM)
            yield from self._rows_of(lines, data)
            start += count

    def read_many(self, indices: Iterable[int]) -> Iterator[Any]:
        starts, size = self._index.starts, self._index.stamp.size
        ranges = []
        for index in indices:
            start, *ends = starts[index : index + 2].tolist()
            ranges.append((start, min((ends or [size])[0] - start, MAX_ROW_BYTES + 1)))
        lines = self._ranges(ranges)
        lines = [
            line if start else line.removeprefix(_BOM)
            for line, (start, _) in zip(lines, ranges, strict=True)
        ]
        yield from self._rows_of(lines, b"\n".join(lines))

    @abc.abstractmethod
    def _rows_of(self, lines: Sequence[bytes], data: bytes) -> Iterable[Any]:
        """Return the rows of lines, which may end in blank lines; ``data`` holds all of them."""

    def where(self, index: int) -> str:
        line_ends = index
        # Blank lines are not rows: if the file has any, the line ends before the row are counted.
        if self._index.blank_lines:
            line_ends = sum(
                piece.count(b"\n") for piece in self._pieces(0, int(self._index.starts[index]))
            )
        return f"{self.title}:{line_ends + 1}"


class JsonLines(Lines):
    """One JSON object a line; blank lines are skipped."""

    def _rows_of(self, lines: Sequence[bytes], data: bytes) -> Iterable[Any]:
        return rows_of_lines(lines, data)


class JsonArray(JsonLines):
    """The elements of a JSON array, from a copy with one line for each."""

    def where(self, index: int) -> str:
        return Rows.where(self, index)


class TextLines(Lines):
    """One text a line; blank lines are skipped."""

    unit = "one document a line"

    def _rows_of(self, lines: Sequence[bytes], data: bytes) -> Iterable[Any]:
        return (row_of_line(line, _text_of) for line in lines)


def _text_of(line: bytes) -> str:
    return line.rstrip(b"\r\n").decode("utf-8")

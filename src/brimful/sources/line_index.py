"""Where the lines of a file begin: made once, mapped by every process, extended when lines are appended.

The index also cuts the file into blocks with fingerprints of their bytes. It is trusted as long as the
file's size and modification time are those it was made with; else the bytes are hashed again, and only if
they differ the index is made anew. Times decide when to look, never what the content is. An index that is damaged
is made anew as well. The file is read in pieces: what the index takes of memory is its lines that are not blank.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import xxhash

from brimful.cache import exclusive
from brimful.errors import BrimfulError, SourceError
from brimful.sources.block import BLOCK_BYTES, BLOCK_ROWS, Block
from brimful.sources.stamp import Stamp
from brimful.tables import Table, open_table, write_table
from brimful.typing import Fingerprint, Int64Array

__all__ = ["LineIndex", "load_line_index", "open_line_index"]

_VERSION = 2
"""Since 2 an index has checksums, and was only made if its file did not change meanwhile."""
_CHUNK = 1 << 20
_NEWLINE, _RETURN = 10, 13


@dataclass(frozen=True)
class LineIndex:
    """Offsets of the non-blank lines of one file.

    Attributes:
        index_path: where the index itself lies, for other processes to map.
        starts: ``int64[num_lines]``, first byte of each line that is not blank.
        size: bytes in the file.
        blocks: runs of lines with the fingerprint of their bytes.
        fingerprint: of all bytes.
        blank_lines: whether blank lines were passed over, so that line number and index differ.
    """

    index_path: str
    starts: Int64Array
    size: int
    stamp: int
    blocks: Sequence[Block]
    fingerprint: Fingerprint
    blank_lines: bool

    def bounds(self, index: int) -> tuple[int, int]:
        """First byte of a line and first byte behind it (blank lines behind it included)."""
        end = self.size if index + 1 == len(self.starts) else int(self.starts[index + 1])
        return int(self.starts[index]), end

    def matches(self, stamp: Stamp) -> bool:
        """Whether a file has the size and time that the index was made with."""
        return (stamp.size, stamp.mtime_ns) == (self.size, self.stamp)


def open_line_index(data_path: str, index_path: Path) -> LineIndex:
    """Map the index of a file, making or extending it first if needed. One process of many does the work.

    Raises:
        SourceError: the file is being written to.
    """
    known = load_line_index(index_path)
    if known is not None and known.matches(Stamp.of(data_path)):
        return known
    with exclusive(index_path):
        known = load_line_index(index_path)
        if known is None or not known.matches(Stamp.of(data_path)):
            _build(data_path, index_path, known)
            known = load_line_index(index_path)
    if known is None:
        raise SourceError(f"{data_path}: its index, {index_path}, cannot be read back: is the disk failing?")
    return known


def load_line_index(index_path: Path) -> LineIndex | None:
    """Map an index as it is; None if there is none that can be used."""
    try:
        table: Table = open_table(index_path)
        meta = table.description
        if not table.checksummed or meta.get("kind") != "line_index" or meta.get("version") != _VERSION:
            return None
        starts = table.flat("start")
    except (FileNotFoundError, BrimfulError):
        return None
    edges = meta["block_edges"]
    blocks = [
        Block(start, stop, digest)
        for start, stop, digest in zip(edges, edges[1:], meta["block_fingerprints"], strict=False)
    ]
    return LineIndex(
        index_path=str(index_path),
        starts=starts,
        size=meta["size"],
        stamp=meta["stamp"],
        blocks=blocks,
        fingerprint=meta["fingerprint"],
        blank_lines=meta["blank_lines"],
    )


def _build(data_path: str, index_path: Path, old: LineIndex | None) -> None:
    stamp = Stamp.of(data_path)
    with open(data_path, "rb") as file:
        kept = old if old is not None and _is_prefix(file, old, stamp.size) else None
        hasher = xxhash.xxh3_128()
        lines = _Lines(kept.size if kept is not None else 0)
        at = 0
        for piece in _pieces(file, 0, stamp.size):
            hasher.update(piece)
            skip = min(max(lines.first - at, 0), len(piece))
            lines.add(piece[skip:], at + skip)
            at += len(piece)
        starts, blank = lines.finished(stamp.size)
        edges: list[int] = [0]
        digests: list[Fingerprint] = []
        if kept is not None:
            starts = np.concatenate([kept.starts, starts])
            blank = blank or kept.blank_lines
            edges = [block.start for block in kept.blocks] + [kept.blocks[-1].stop if kept.blocks else 0]
            digests = [block.fingerprint for block in kept.blocks]
        _cut_blocks(file, starts, stamp.size, edges, digests)
    stamp.check(data_path)
    meta = {
        "kind": "line_index",
        "version": _VERSION,
        "size": stamp.size,
        "stamp": stamp.mtime_ns,
        "fingerprint": hasher.hexdigest(),
        "blank_lines": blank,
        "block_edges": edges,
        "block_fingerprints": digests,
    }
    write_table(index_path, {"start": starts}, meta)


def _pieces(file: IO[bytes], start: int, stop: int) -> Iterator[bytes]:
    """Bytes ``start … stop-1``, some megabytes at a time; fewer if the file was cut short meanwhile."""
    file.seek(start)
    while start < stop:
        piece = file.read(min(_CHUNK, stop - start))
        if not piece:
            return
        yield piece
        start += len(piece)


def _hashed(file: IO[bytes], start: int, stop: int) -> Fingerprint:
    hasher = xxhash.xxh3_128()
    for piece in _pieces(file, start, stop):
        hasher.update(piece)
    return hasher.hexdigest()


def _is_prefix(file: IO[bytes], old: LineIndex, size: int) -> bool:
    """Whether the file still begins with the bytes that were indexed, and those ended with a whole line."""
    if old.size == 0 or old.size > size:
        return False
    file.seek(old.size - 1)
    return file.read(1) == b"\n" and _hashed(file, 0, old.size) == old.fingerprint


class _Lines:
    """Collects where the non-blank lines of a file begin, from byte ``first`` on, piece by piece.

    >>> lines = _Lines(0)
    >>> lines.add(b"a\\n\\r", 0)
    >>> lines.add(b"\\n\\nb", 3)
    >>> starts, blank = lines.finished(6)
    >>> starts.tolist(), blank
    ([0, 5], True)
    """

    def __init__(self, first: int) -> None:
        self.first = first
        self._starts: list[Int64Array] = []
        self._blank = False
        self._begin = first  # of the line that the last piece left open
        self._last = 0  # byte before the next piece

    def add(self, piece: bytes, at: int) -> None:
        """Look through the piece that begins at byte ``at``."""
        if not piece:
            return
        data = np.frombuffer(piece, dtype=np.uint8)
        ends = np.flatnonzero(data == _NEWLINE)
        if len(ends):
            before = np.where(ends > 0, data[ends - 1], self._last)
            starts = np.empty(len(ends), dtype=np.int64)
            starts[0], starts[1:] = self._begin, ends[:-1] + (at + 1)
            widths = ends + at - starts
            filled = (widths > 1) | ((widths == 1) & (before != _RETURN))
            self._starts.append(starts[filled])
            self._blank |= not bool(filled.all())
            self._begin = at + int(ends[-1]) + 1
        self._last = int(data[-1])

    def finished(self, size: int) -> tuple[Int64Array, bool]:
        """The starts, and whether blank lines were among the lines; ``size``: of the file."""
        width = size - self._begin
        if width > 1 or (width == 1 and self._last != _RETURN):
            self._starts.append(np.array([self._begin], dtype=np.int64))
        elif width == 1:
            self._blank = True
        return np.concatenate([*self._starts, np.array([], dtype=np.int64)]), self._blank


def _cut_blocks(file: IO[bytes], starts: Int64Array, size: int, edges: list[int], digests: list[Fingerprint]) -> None:
    """Append blocks for the lines behind ``edges[-1]``: at most BLOCK_ROWS lines or about BLOCK_BYTES bytes."""
    total = len(starts)
    while edges[-1] < total:
        row = edges[-1]
        begin = int(starts[row])
        by_bytes = int(np.searchsorted(starts, begin + BLOCK_BYTES, side="left"))
        stop = min(total, row + BLOCK_ROWS, max(by_bytes, row + 1))
        end = int(starts[stop]) if stop < total else size
        digests.append(_hashed(file, begin, end))
        edges.append(stop)

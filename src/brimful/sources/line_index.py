"""Offsets of the lines of a file: built once and mapped by every process.

The index also cuts the file into blocks with fingerprints of their bytes. It is trusted as long as
the size and times of the file have not changed; one of them, the time of the last write, cannot be
set back by a tool. Otherwise the bytes are hashed again, and the index is rebuilt only if they
differ. Times decide when to look, never what the content is. A damaged index is rebuilt too. The
file is read in pieces: memory is needed only for the offsets of lines that are not blank.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import xxhash

from brimful.base.locks import exclusive
from brimful.base.tables import open_table, write_table
from brimful.base.typing import Fingerprint, Int64Array
from brimful.errors import BrimfulError, SourceError
from brimful.sources.rows import BLOCK_BYTES, BLOCK_ROWS, Block
from brimful.sources.stamp import Stamp

_TABLE_NAME, _VERSION = "line_index", 4

_CHUNK = 1 << 20
_NEWLINE, _RETURN = 10, 13
_SETTLED_NS = 2_000_000_000
"""Age from which a file's times are trusted: a younger file may be written again within one tick of
the clock.
"""


@dataclass(frozen=True)
class LineIndex:
    """Offsets of the non-blank lines of one file.

    Attributes:
        index_path: of the index itself, for other processes to map; empty if it is not stored.
        starts: ``int64[num_lines]``, offset of the first byte of each line that is not blank.
        stamp: of the file; ``ctime_ns`` is 0 if it was too young.
        blocks: ranges of lines with the fingerprint of their bytes.
        fingerprint: of all bytes of the file.
        blank_lines: true if blank lines were skipped, so that line number and index differ.
    """

    index_path: str
    starts: Int64Array
    stamp: Stamp
    blocks: Sequence[Block]
    fingerprint: Fingerprint
    blank_lines: bool

    def is_current(self, stamp: Stamp) -> bool:
        """Return true if the file has not been written since the index was built."""
        return stamp == self.stamp and stamp.ctime_ns == self.stamp.ctime_ns


def open_line_index(data_path: str, index_path: Path, *, is_copy: bool = False) -> LineIndex:
    """Map the index of a file; build it first if needed. One process of many does the work.

    Args:
        data_path: of the file.
        index_path: of its index.
        is_copy: the file is a copy in the cache, which does not change: it is trusted at any age.

    Raises:
        SourceError: the file is being written to.
    """
    index = load_line_index(index_path)
    if index is not None and index.is_current(Stamp.of(data_path)):
        return index
    with exclusive(index_path):
        # Another process may have built the index while this one waited for the lock.
        index = load_line_index(index_path)
        if index is None or not index.is_current(Stamp.of(data_path)):
            index = index_of_lines(data_path, is_copy=is_copy)
            meta = {
                "kind": _TABLE_NAME,
                "version": _VERSION,
                "stamp": astuple(index.stamp),
                "fingerprint": index.fingerprint,
                "blank_lines": index.blank_lines,
                "block_edges": [0, *(block.stop for block in index.blocks)],
                "block_fingerprints": [block.fingerprint for block in index.blocks],
            }
            write_table(index_path, {"start": index.starts}, meta, durable=False)
            index = load_line_index(index_path)
    if index is None:
        raise SourceError(
            f"{data_path}: its index, {index_path}, cannot be read back: is the disk failing?"
        )
    return index


def load_line_index(index_path: Path) -> LineIndex | None:
    """Map an index as it is; None if it is missing or unusable."""
    try:
        table = open_table(index_path)
        meta = table.description
        if (meta.get("kind"), meta.get("version")) != (_TABLE_NAME, _VERSION):
            return None
        starts = table.flat("start")
    except (FileNotFoundError, BrimfulError):
        return None
    edges, stamp = meta["block_edges"], Stamp(*meta["stamp"])
    sizes = np.diff(np.append(starts[edges[:-1]], stamp.size)).tolist()
    pairs = zip(edges[:-1], edges[1:], meta["block_fingerprints"], sizes, strict=True)
    return LineIndex(
        index_path=str(index_path),
        starts=starts,
        stamp=stamp,
        blocks=[Block(*block) for block in pairs],
        fingerprint=meta["fingerprint"],
        blank_lines=meta["blank_lines"],
    )


def index_of_lines(data_path: str, *, is_copy: bool = False) -> LineIndex:
    """Return the index of a file. It is not stored.

    Raises:
        SourceError: the file is being written to.
    """
    stamp = Stamp.of(data_path)
    hasher = xxhash.xxh3_128()
    with open(data_path, "rb") as file:
        starts, blank_lines = _scan(_pieces(file, 0, stamp.size, hasher))
        blocks = _blocks_of(file, starts, stamp.size)
    # The bytes read are the file's content only if the file is still the same.
    stamp.check(data_path)
    if not is_copy and time.time_ns() - stamp.ctime_ns <= _SETTLED_NS:
        stamp = replace(stamp, ctime_ns=0)
    return LineIndex("", starts, stamp, blocks, hasher.hexdigest(), blank_lines)


def _pieces(file: IO[bytes], start: int, stop: int, hasher: Any) -> Iterator[bytes]:
    """Yield bytes ``start … stop-1``, about a megabyte at a time, and hash them; fewer of a
    truncated file.
    """
    file.seek(start)
    while start < stop and (piece := file.read(min(_CHUNK, stop - start))):
        hasher.update(piece)
        yield piece
        start += len(piece)


def _scan(pieces: Iterable[bytes]) -> tuple[Int64Array, bool]:
    """Return the first bytes of the non-blank lines of a file, and true if it has blank lines.

    >>> starts, blank_lines = _scan([b"a\\n\\r", b"\\n\\nb"])
    >>> starts.tolist(), blank_lines
    ([0, 5], True)
    """
    collected_starts, blank_lines = [np.empty(0, dtype=np.int64)], False
    line_start = position = 0  # of the line that the last piece left open, and of the next piece
    last_byte = 0  # of the pieces so far
    for piece in pieces:
        data = np.frombuffer(piece, dtype=np.uint8)
        ends = np.flatnonzero(data == _NEWLINE)
        if len(ends):
            # Each line begins after the previous line end; the first one may have begun in an
            # earlier piece.
            starts = np.empty(len(ends), dtype=np.int64)
            starts[0], starts[1:] = line_start, ends[:-1] + (position + 1)
            # An empty line is blank, and so is a line with only a carriage return.
            widths = ends + position - starts
            last_bytes = np.where(ends > 0, data[ends - 1], last_byte)
            has_text = (widths > 1) | ((widths == 1) & (last_bytes != _RETURN))
            collected_starts.append(starts[has_text])
            blank_lines |= not bool(has_text.all())
            line_start = position + int(ends[-1]) + 1
        last_byte = int(data[-1])
        position += len(piece)
    # The last line may have no line end.
    if position - line_start > 1 or (position - line_start == 1 and last_byte != _RETURN):
        collected_starts.append(np.array([line_start], dtype=np.int64))
    elif position > line_start:
        blank_lines = True
    return np.concatenate(collected_starts), blank_lines


def _blocks_of(file: IO[bytes], starts: Int64Array, size: int) -> list[Block]:
    """Return blocks of lines: at most BLOCK_ROWS lines or about BLOCK_BYTES bytes in each."""
    blocks: list[Block] = []
    num_lines, row = len(starts), 0
    while row < num_lines:
        start = int(starts[row])
        # A line longer than BLOCK_BYTES is a separate block.
        first_beyond = int(np.searchsorted(starts, start + BLOCK_BYTES, side="left"))
        stop = min(num_lines, row + BLOCK_ROWS, max(first_beyond, row + 1))
        end = int(starts[stop]) if stop < num_lines else size
        hasher = xxhash.xxh3_128()
        for _ in _pieces(file, start, end, hasher):
            pass
        blocks.append(Block(row, stop, hasher.hexdigest(), end - start))
        row = stop
    return blocks

"""Where the lines of a file begin: made once, mapped by every process, extended when lines are appended.

The index also cuts the file into blocks with fingerprints of their bytes. It is trusted as long as the
file's size and modification time are those it was made with; else the bytes are hashed again, and only if
they differ the index is made anew. Times decide when to look, never what the content is.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from brimful.cache import exclusive
from brimful.columns import Columns, open_columns, write_columns
from brimful.errors import BrimfulError
from brimful.fingerprint import fingerprint_bytes
from brimful.sources.block import BLOCK_BYTES, BLOCK_ROWS, Block
from brimful.typing import Fingerprint, Int64Array

__all__ = ["LineIndex", "load_line_index", "open_line_index"]

_VERSION = 1
_CHUNK = 64 << 20
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

    def matches(self, data_path: str) -> bool:
        """Whether the file still has the size and time that the index was made with."""
        status = os.stat(data_path)
        return status.st_size == self.size and status.st_mtime_ns == self.stamp


def open_line_index(data_path: str, index_path: Path) -> LineIndex:
    """Map the index of a file, making or extending it first if needed. One process of many does the work."""
    known = load_line_index(index_path)
    if known is not None and known.matches(data_path):
        return known
    with exclusive(index_path):
        known = load_line_index(index_path)
        if known is None or not known.matches(data_path):
            _build(data_path, index_path, known)
            known = load_line_index(index_path)
    assert known is not None
    return known


def load_line_index(index_path: Path) -> LineIndex | None:
    """Map an index as it is; None if there is none that can be used."""
    try:
        table: Columns = open_columns(index_path)
    except (FileNotFoundError, BrimfulError):
        return None
    meta = table.description
    if meta.get("kind") != "line_index" or meta.get("version") != _VERSION:
        return None
    edges = meta["block_edges"]
    blocks = [
        Block(start, stop, digest)
        for start, stop, digest in zip(edges, edges[1:], meta["block_fingerprints"], strict=False)
    ]
    return LineIndex(
        index_path=str(index_path),
        starts=table.flat("start"),
        size=meta["size"],
        stamp=meta["stamp"],
        blocks=blocks,
        fingerprint=meta["fingerprint"],
        blank_lines=meta["blank_lines"],
    )


def _build(data_path: str, index_path: Path, old: LineIndex | None) -> None:
    status = os.stat(data_path)
    size = status.st_size
    data = np.memmap(data_path, dtype=np.uint8, mode="r") if size else np.empty(0, dtype=np.uint8)
    kept = old if old is not None and _is_prefix(data, old) else None
    hasher = xxhash.xxh3_128()
    newlines: list[Any] = []
    scan_from = kept.size if kept is not None else 0
    for begin in range(0, size, _CHUNK):
        chunk = data[begin : begin + _CHUNK]
        hasher.update(chunk.data)
        if begin + len(chunk) > scan_from:
            skip = max(scan_from - begin, 0)
            newlines.append(np.flatnonzero(chunk[skip:] == _NEWLINE).astype(np.int64) + (begin + skip))
    starts, blank = _line_starts(data, newlines, scan_from, size)
    edges: list[int] = [0]
    digests: list[Fingerprint] = []
    if kept is not None:
        starts = np.concatenate([kept.starts, starts])
        blank = blank or kept.blank_lines
        edges = [block.start for block in kept.blocks] + [kept.blocks[-1].stop if kept.blocks else 0]
        digests = [block.fingerprint for block in kept.blocks]
    _cut_blocks(data, starts, size, edges, digests)
    meta = {
        "kind": "line_index",
        "version": _VERSION,
        "size": size,
        "stamp": status.st_mtime_ns,
        "fingerprint": hasher.hexdigest(),
        "blank_lines": blank,
        "block_edges": edges,
        "block_fingerprints": digests,
    }
    write_columns(index_path, {"start": starts}, meta)


def _is_prefix(data: Any, old: LineIndex) -> bool:
    """Whether the file still begins with the bytes that were indexed, and those ended with a whole line."""
    if old.size == 0 or old.size > len(data) or data[old.size - 1] != _NEWLINE:
        return False
    hasher = xxhash.xxh3_128()
    for begin in range(0, old.size, _CHUNK):
        hasher.update(data[begin : min(begin + _CHUNK, old.size)].data)
    return hasher.hexdigest() == old.fingerprint


def _line_starts(data: Any, newlines: list[Any], first: int, size: int) -> tuple[Int64Array, bool]:
    """Starts of the non-blank lines from byte ``first`` on, and whether blank lines were among them."""
    ends = np.concatenate([*newlines, np.array([], dtype=np.int64)])
    if size > first and (len(ends) == 0 or ends[-1] != size - 1):
        ends = np.append(ends, size)
    starts = np.concatenate([np.array([first], dtype=np.int64), ends[:-1] + 1])[: len(ends)]
    widths = ends - starts
    blank = widths == 0
    one = np.flatnonzero(widths == 1)
    blank[one] = data[starts[one]] == _RETURN
    return starts[~blank], bool(blank.any())


def _cut_blocks(data: Any, starts: Int64Array, size: int, edges: list[int], digests: list[Fingerprint]) -> None:
    """Append blocks for the lines behind ``edges[-1]``: at most BLOCK_ROWS lines or about BLOCK_BYTES bytes."""
    total = len(starts)
    while edges[-1] < total:
        row = edges[-1]
        begin = int(starts[row])
        by_bytes = int(np.searchsorted(starts, begin + BLOCK_BYTES, side="left"))
        stop = min(total, row + BLOCK_ROWS, max(by_bytes, row + 1))
        end = int(starts[stop]) if stop < total else size
        digests.append(fingerprint_bytes(data[begin:end].data))
        edges.append(stop)

"""Files of lines, JSON lines and plain texts, read by index."""

from __future__ import annotations

import abc
import bisect
import codecs
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import xxhash

from brimful.cache import cache_dir
from brimful.errors import SourceError, SourceNotFoundError
from brimful.fingerprint import fingerprint_of
from brimful.sources.fast_json import parser_for, repeated_column, rows_at_once
from brimful.sources.line_index import LineIndex, index_of_lines, load_line_index, open_line_index
from brimful.sources.rows import MAX_ROW_BYTES, Block, Rows, oversized
from brimful.sources.sample import MalformedRowError
from brimful.sources.stamp import Stamp, changed
from brimful.typing import Fingerprint

_BOM = b"\xef\xbb\xbf"
_SMALL_BYTES = _PIECE_BYTES = 1 << 18
"""Maximum bytes of one read. One of many files, if no larger, is read again instead of being indexed on disk."""

_PIECE_ROWS = 1024
"""Maximum lines of one read: few enough that the first line comes at once, enough that checking the file's stamp after
each read costs nothing."""


class _Lines(Rows):
    """Lines of one file by index. All processes that open the file share the offset index.

    The file is read and not mapped: reading a mapped file that has been truncated kills the process.
    """

    lies_in_files = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        cache: Path | None = None,
        title: str | None = None,
        original: str | None = None,
        is_one_of_many: bool = False,
    ) -> None:
        """``is_one_of_many``: a small file is read again wherever it is opened, and its index is not stored."""
        self._path = os.path.realpath(path)
        if not os.path.isfile(self._path):
            raise SourceNotFoundError(f"{os.fspath(path)}: no such file")
        self.title = title or os.fspath(path)
        self._stamp = Stamp.of(self._path)
        if is_one_of_many and self._stamp.size <= _SMALL_BYTES:
            self._index = index_of_lines(self._path)
        else:
            # The index of a copy belongs to its original: the next copy extends it and keeps the blocks already
            # measured.
            name = fingerprint_of(original or self._path)[:16]
            folder = (cache or cache_dir()) / "indexes"
            is_copy = original not in (None, self._path)
            self._index = open_line_index(self._path, folder / f"{name}.lines.arrow", is_copy=is_copy)
        if not self._index.matches(self._stamp):
            raise changed(self.title)
        if _Lines._bytes(self, 0, min(2, self._index.size)) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            raise SourceError(f"{self.title} looks like UTF-16: write it as UTF-8 first (iconv -f UTF-16 -t UTF-8)")

    @classmethod
    def _reopen(cls, path: str, kept: str | LineIndex, title: str, fingerprint: Fingerprint, stamp: Stamp) -> _Lines:
        """Map, in a worker process, the parent's index, or take it whole; refuse a file that has changed since."""
        self = cls.__new__(cls)
        self._path, self.title, self._stamp = path, title, stamp
        stamp.check(path, title)
        index = load_line_index(Path(kept)) if isinstance(kept, str) else kept
        if index is None or index.fingerprint != fingerprint or not index.matches(stamp):
            raise changed(title)
        self._index = index
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        state = (self._path, self._index.index_path or self._index, self.title, self._index.fingerprint, self._stamp)
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
        try:
            # Opened each time: a data set may have more files than a process may hold open.
            with open(self._path, "rb", buffering=0) as file:
                data = os.pread(file.fileno(), length, start)
        except OSError:
            self._stamp.check(self._path, self.title)
            raise
        self._stamp.check(self._path, self.title)
        if len(data) != length:
            raise SourceError(f"{self.title} could be read only in part ({len(data):,} of {length:,} bytes): run again")
        return data

    def _pieces(self, start: int, stop: int) -> Iterator[bytes]:
        for begin in range(start, stop, _PIECE_BYTES):
            yield self._bytes(begin, min(_PIECE_BYTES, stop - begin))

    def read(self, start: int, stop: int) -> Iterator[Any]:
        while start < stop:
            # Several lines are read at once: as many as fit in a piece, at least one.
            first, limit = int(self._index.starts[start]), min(start + _PIECE_ROWS, stop)
            ends = [*self._index.starts[start + 1 : limit + 1].tolist(), self._index.size][: limit - start]
            count = max(1, bisect.bisect_right(ends, first + _PIECE_BYTES))
            # A line above the maximum is read only up to the first byte beyond it.
            data = self._bytes(first, min(ends[count - 1] - first, max(_PIECE_BYTES, MAX_ROW_BYTES + 1)))
            begin = len(_BOM) if first == 0 and data.startswith(_BOM) else 0
            lines = []
            for end in ends[:count]:
                lines.append(data[begin : end - first])
                begin = end - first
            yield from self._rows_of(lines, data)
            start += count

    def _rows_of(self, lines: list[bytes], data: bytes) -> Iterable[Any]:
        """Return the rows of lines, which are all of ``data``."""
        parse = self._parser_for(data)
        return (self._row(line, parse) for line in lines)

    def _row(self, line: bytes, parse: Callable[[bytes], Any]) -> Any:
        """Return the row of a line; the bytes may end in blank lines, which do not count toward its length."""
        if len(line) > MAX_ROW_BYTES:
            line = line[: line.find(b"\n") + 1]
            if not line:
                return oversized()
        try:
            return parse(line)
        except UnicodeDecodeError as error:
            return MalformedRowError(f"invalid UTF-8 at byte {error.start} of the line ({error.reason})")

    @abc.abstractmethod
    def _parser_for(self, data: bytes) -> Callable[[bytes], Any]:
        """Return the function from a line of these bytes to its row; ``UnicodeDecodeError`` if it is not UTF-8."""

    def where(self, index: int) -> str:
        line_ends = index
        # Blank lines are not rows: if the file has any, the line ends before the row are counted.
        if self._index.blank_lines:
            line_ends = sum(piece.count(b"\n") for piece in self._pieces(0, int(self._index.starts[index])))
        return f"{self.title}:{line_ends + 1}"


class JsonLines(_Lines):
    """One JSON object a line; blank lines are skipped."""

    def _rows_of(self, lines: list[bytes], data: bytes) -> Iterable[Any]:
        # All at once if every line is a row, as in most files; else one by one, with the reason for each that is not.
        rows = None if max(map(len, lines)) > MAX_ROW_BYTES else rows_at_once(lines, data)
        return super()._rows_of(lines, data) if rows is None else map(self._row_of, rows)

    def _row_of(self, value: Any) -> Any:
        """Return the row of a line that holds an object or a text."""
        return value

    def _parser_for(self, data: bytes) -> Callable[[bytes], Any]:
        return partial(json_row, parser_for(data))


def json_row(parse: Callable[[bytes], Any], line: bytes) -> Any:
    """Return the object or text of a line, or the error that says why it cannot be read."""
    try:
        value = parse(line)
    except UnicodeDecodeError:
        raise
    except json.JSONDecodeError as error:
        return MalformedRowError(f"not JSON: {error.msg} at column {error.colno}{_kind_of_whole(line)}")
    except RecursionError:
        return MalformedRowError("not readable as JSON: nested too deeply")
    except ValueError as error:  # a number of thousands of digits
        return MalformedRowError(f"not readable as JSON: {error}")
    if not isinstance(value, (dict, str)):
        return MalformedRowError(f"a row must be an object and is {type(value).__name__}{_kind_of_whole(line)}")
    name = repeated_column(value, line) if isinstance(value, dict) else None
    return value if name is None else MalformedRowError(f"it has {name!r} twice: one of them would be lost")


def _kind_of_whole(line: bytes) -> str:
    """Say what other JSON the file seems to be, judged by a line that is not a row; empty if unknown."""
    text = line.strip()
    if text.startswith(b"[") and text[1:].lstrip()[:1] in (b"", b"{"):
        return ": it looks like a JSON array: give the file a name that ends in .json"
    return ": it looks like one JSON object on several lines: each row must be one line" if text == b"{" else ""


class JsonArray(JsonLines):
    """The elements of a JSON array, from a copy with one line for each."""

    def where(self, index: int) -> str:
        return Rows.where(self, index)


class TextLines(_Lines):
    """One text a line; blank lines are skipped."""

    unit = "one document a line"

    def _parser_for(self, data: bytes) -> Callable[[bytes], Any]:
        return lambda line: line.rstrip(b"\r\n").decode("utf-8")

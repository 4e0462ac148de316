"""Files of lines: JSON lines and plain texts, mapped into memory and found by index."""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from brimful.cache import cache_dir
from brimful.errors import SourceError, SourceNotFoundError
from brimful.fingerprint import fingerprint_bytes, fingerprint_of
from brimful.sources.line_index import LineIndex, load_line_index, open_line_index
from brimful.sources.rows import Block, Rows, malformed
from brimful.typing import Fingerprint

__all__ = ["JsonArray", "JsonLines", "TextLines"]

_BOM = b"\xef\xbb\xbf"


class _Lines(Rows):
    """Lines of one file by index. The offset index is shared by all processes that open the file."""

    def __init__(self, path: str | os.PathLike[str], *, cache: Path | None = None, title: str | None = None) -> None:
        self._path = os.path.realpath(path)
        if not os.path.isfile(self._path):
            raise SourceNotFoundError(f"{os.fspath(path)}: no such file")
        self.title = title or os.fspath(path)
        name = f"{fingerprint_of(self._path)[:16]}.lines.arrow"
        self._index = open_line_index(self._path, (cache or cache_dir()) / "indexes" / name)
        self._map: mmap.mmap | None = None

    @classmethod
    def _reopen(cls, path: str, index_path: str, title: str, fingerprint: Fingerprint) -> _Lines:
        """In a worker process: map the index that the parent made, and refuse a file that changed since."""
        self = cls.__new__(cls)
        self._path, self.title, self._map = path, title, None
        index = load_line_index(Path(index_path))
        if index is None or index.fingerprint != fingerprint or not index.matches(path):
            raise SourceError(f"{title} changed while it was being read: run the command again")
        self._index = index
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self)._reopen, (self._path, self._index.index_path, self.title, self._index.fingerprint)

    @property
    def index(self) -> LineIndex:
        """The shared offset index."""
        return self._index

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
        with memoryview(self._mapped()) as data:
            end = int(self._index.starts[count])
            # The last line may have had no line end yet when it was the last.
            return [fingerprint_bytes(data[:end]), fingerprint_bytes(data[: end - 1])]

    def _mapped(self) -> mmap.mmap:
        if self._map is None:
            with open(self._path, "rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            if not self._index.matches(self._path):
                self._map = None
                raise SourceError(f"{self.title} changed while it was being read: run the command again")
        return self._map

    def _bytes(self, index: int) -> bytes:
        start, end = self._index.bounds(index)
        line = self._mapped()[start:end]
        return line[len(_BOM) :] if start == 0 and line.startswith(_BOM) else line

    def read(self, start: int, stop: int) -> Iterator[Any]:
        for index in range(start, stop):
            yield self._parse(self._bytes(index))

    def get(self, index: int) -> Any:
        return self._parse(self._bytes(index))

    def where(self, index: int) -> str:
        line = index + 1
        if self._index.blank_lines:
            line = self._mapped()[: int(self._index.starts[index])].count(b"\n") + 1
        return f"{self.title}:{line}"

    @staticmethod
    def _parse(line: bytes) -> Any:
        raise NotImplementedError


class JsonLines(_Lines):
    """One JSON object a line; blank lines are passed over."""

    @staticmethod
    def _parse(line: bytes) -> Any:
        try:
            value = json.loads(line)
        except UnicodeDecodeError as error:
            return malformed(f"invalid UTF-8 at byte {error.start} of the line ({error.reason})")
        except json.JSONDecodeError as error:
            return malformed(f"no JSON: {error.msg} at column {error.colno}")
        except RecursionError:
            return malformed("no JSON that can be read: nested too deeply")
        except ValueError as error:  # a number of thousands of digits
            return malformed(f"no JSON that can be read: {error}")
        if not isinstance(value, (dict, str)):
            return malformed(f"a row must be an object and is {type(value).__name__}")
        return value


class JsonArray(JsonLines):
    """The elements of a JSON array, from a copy with one line for each."""

    def where(self, index: int) -> str:
        return f"{self.title}: row {index}"


class TextLines(_Lines):
    """One text a line; blank lines are passed over."""

    unit = "one document a line"

    @staticmethod
    def _parse(line: bytes) -> Any:
        try:
            return line.rstrip(b"\r\n").decode("utf-8")
        except UnicodeDecodeError as error:
            return malformed(f"invalid UTF-8 at byte {error.start} of the line ({error.reason})")

"""Documents that are one file each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from brimful.errors import SourceError
from brimful.fingerprint import fingerprint_bytes, fingerprint_of
from brimful.sources.block import cut
from brimful.sources.rows import Block, Rows, malformed
from brimful.sources.stamp import Stamp
from brimful.typing import Fingerprint

__all__ = ["TextFiles"]

_BLOCK_FILES = 256
_BOM = b"\xef\xbb\xbf"


class TextFiles(Rows):
    """One document per file, in the order of the sorted names."""

    unit = "one document a file"

    def __init__(self, paths: Sequence[str], title: str, *, shown: Sequence[str] | None = None) -> None:
        """``shown``: what the files are called in messages, where they are unpacked copies."""
        self._paths = list(paths)
        self._shown = list(shown or paths)
        self.title = title
        self._stamps: dict[str, Stamp] = {}  # of the files whose fingerprints were taken

    def __len__(self) -> int:
        return len(self._paths)

    def _bytes(self, path: str) -> bytes:
        """A whole file, which must be the one that was fingerprinted, if it was."""
        try:
            stamp = self._stamps.get(path) or Stamp.of(path)
            with open(path, "rb") as file:
                data = file.read()
        except FileNotFoundError as error:
            raise SourceError(f"{path} was deleted while it was being read: run the command again") from error
        stamp.check(path)
        return data

    def read(self, start: int, stop: int) -> Iterator[Any]:
        for index in range(start, stop):
            data = self._bytes(self._paths[index])
            if data.startswith(_BOM):
                data = data[len(_BOM) :]
            try:
                yield data.decode("utf-8")
            except UnicodeDecodeError as error:
                yield malformed(f"invalid UTF-8 at byte {error.start} ({error.reason})")

    def where(self, index: int) -> str:
        return self._shown[index]

    @cached_property
    def blocks(self) -> Sequence[Block]:
        found = []
        for start, stop in cut(0, len(self), _BLOCK_FILES):
            digests = []
            for path in self._paths[start:stop]:
                self._stamps[path] = Stamp.of(path)
                digests.append(fingerprint_bytes(self._bytes(path)))
            found.append(Block(start, stop, fingerprint_of(digests)))
        return found

    @cached_property
    def fingerprint(self) -> Fingerprint:
        return fingerprint_of([block.fingerprint for block in self.blocks])

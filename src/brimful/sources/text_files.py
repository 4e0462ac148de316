"""Documents of one file each."""

from collections.abc import Iterator, Sequence
from typing import Any

from brimful.base.fingerprint import fingerprint_bytes, fingerprint_of
from brimful.base.typing import Fingerprint
from brimful.sources.fast_json import text_of
from brimful.sources.rows import UniformBlockRows
from brimful.sources.sample import MalformedRowError
from brimful.sources.stamp import Stamp, changed


class TextFiles(UniformBlockRows):
    """One document per file, in the order of the sorted names."""

    unit = "one document a file"
    lies_in_files = True
    block_rows = 256

    def __init__(self, paths: Sequence[str], title: str, *, titles: Sequence[str] | None = None) -> None:
        """``titles``: names of the files in messages, if ``paths`` are unpacked copies."""
        self._paths = list(paths)
        self._titles = list(titles or paths)
        self.title = title
        self._stamps: dict[str, Stamp] = {}  # of the files whose fingerprints were taken

    def __len__(self) -> int:
        return len(self._paths)

    def _bytes(self, path: str) -> bytes:
        """Return all bytes of a file; refuse a file that has changed since it was fingerprinted."""
        try:
            stamp = self._stamps.get(path) or Stamp.of(path)
            with open(path, "rb") as file:
                data = file.read()
        except FileNotFoundError as error:
            raise changed(path, "was deleted") from error
        stamp.check(path)
        return data

    def read(self, start: int, stop: int) -> Iterator[Any]:
        for path in self._paths[start:stop]:
            try:
                yield text_of(self._bytes(path))
            except MalformedRowError as error:
                yield error

    def where(self, index: int) -> str:
        return self._titles[index]

    def block_fingerprint(self, start: int, stop: int) -> Fingerprint:
        digests = []
        for path in self._paths[start:stop]:
            # The stamp is taken before the bytes are read: a change between the two is detected after the read.
            self._stamps[path] = Stamp.of(path)
            digests.append(fingerprint_bytes(self._bytes(path)))
        return fingerprint_of(digests)

"""Rows that are already in memory."""

from collections.abc import Iterator, Sequence
from typing import Any

from brimful.fingerprint import fingerprint_of
from brimful.sources.rows import UniformBlockRows
from brimful.typing import Fingerprint


class MemoryRows(UniformBlockRows):
    """A list of rows: for tests, notebooks and small sets.

    >>> len(MemoryRows([{"text": "a"}, {"text": "b"}]))
    2
    """

    def __init__(self, rows: Sequence[Any], title: str = "memory") -> None:
        self._rows = rows
        self.title = title

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, start: int, stop: int) -> Iterator[Any]:
        return (self._rows[index] for index in range(start, stop))

    def where(self, index: int) -> str:
        return f"{self.title}[{index}]"

    def block_fingerprint(self, start: int, stop: int) -> Fingerprint:
        return fingerprint_of(list(self.read(start, stop)))

    def prefix_fingerprints(self, count: int) -> Sequence[Fingerprint]:
        return [MemoryRows(self._rows[:count]).fingerprint]

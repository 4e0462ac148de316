"""Rows that are already in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from brimful.fingerprint import fingerprint_of
from brimful.sources.block import cut
from brimful.sources.rows import Block, Rows
from brimful.typing import Fingerprint

__all__ = ["MemoryRows"]


class MemoryRows(Rows):
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

    @cached_property
    def blocks(self) -> Sequence[Block]:
        return [
            Block(start, stop, fingerprint_of([self._rows[index] for index in range(start, stop)]))
            for start, stop in cut(0, len(self))
        ]

    @cached_property
    def fingerprint(self) -> Fingerprint:
        return fingerprint_of([block.fingerprint for block in self.blocks])

    def prefix_fingerprints(self, count: int) -> Sequence[Fingerprint]:
        return [MemoryRows(self._rows[:count]).fingerprint]

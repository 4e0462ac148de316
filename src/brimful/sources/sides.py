"""Rows of preferences as two samples each: chosen, then rejected."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from brimful.fingerprint import fingerprint_of
from brimful.sources.rows import Block, Rows
from brimful.sources.sample import MalformedRowError
from brimful.typing import Fingerprint

SIDES = ("chosen", "rejected")
"""Answers of a preference: sample ``2·row`` is chosen, sample ``2·row + 1`` rejected."""


class SideOfRow(NamedTuple):
    """A row of a preference, and which of its answers is meant: 0 for chosen, 1 for rejected."""

    row: Any
    side: int


class SideRows(Rows):
    """Rows of preferences, each of them twice.

    ::

        row        0                    1
        sample     0 chosen  1 rejected  2 chosen  3 rejected

    >>> from brimful.sources.memory import MemoryRows
    >>> rows = SideRows(MemoryRows([{"chosen": "b", "rejected": "c"}]))
    >>> len(rows), rows.get(1).side, rows.where(1)
    (2, 1, 'memory[0], rejected')
    """

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self.title = rows.title
        self.lies_in_files = rows.lies_in_files
        self.unit = rows.unit

    def __len__(self) -> int:
        return len(SIDES) * len(self._rows)

    def read(self, start: int, stop: int) -> Iterator[Any]:
        if start >= stop:
            return
        first_row, last_row = start // 2, (stop + 1) // 2
        for index, row in enumerate(self._rows.read(first_row, last_row), first_row):
            for side in (0, 1):
                if start <= 2 * index + side < stop:
                    yield row if isinstance(row, MalformedRowError) else SideOfRow(row, side)

    def get(self, index: int) -> Any:
        row = self._rows.get(index // 2)
        return row if isinstance(row, MalformedRowError) else SideOfRow(row, index % 2)

    def where(self, index: int) -> str:
        return f"{self._rows.where(index // 2)}, {SIDES[index % 2]}"

    @property
    def blocks(self) -> Sequence[Block]:
        return [
            Block(
                2 * block.start,
                2 * block.stop,
                _of_sides(block.fingerprint),
                None if block.num_bytes is None else 2 * block.num_bytes,
            )
            for block in self._rows.blocks
        ]

    @property
    def members(self) -> list[tuple[str, int]]:
        return [(title, 2 * num_rows) for title, num_rows in self._rows.members]

    @property
    def directory(self) -> str:
        return self._rows.directory

    @property
    def fingerprint(self) -> Fingerprint:
        return _of_sides(self._rows.fingerprint)

    def prefix_fingerprints(self, count: int) -> Sequence[Fingerprint]:
        # Half a preference is not an earlier state of a file.
        return [] if count % 2 else [_of_sides(digest) for digest in self._rows.prefix_fingerprints(count // 2)]


def _of_sides(fingerprint: Fingerprint) -> Fingerprint:
    return fingerprint_of([fingerprint, "sides"])

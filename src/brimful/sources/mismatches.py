"""Rows of KTO as two samples each: the answer of the row, and its prompt with the answer of another row."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from brimful.fingerprint import fingerprint_of
from brimful.sources.rows import Block
from brimful.sources.sample import MalformedRowError
from brimful.sources.sides import SideRows
from brimful.typing import Fingerprint

ROTATED_ROWS = 8
"""Number of rows that rotate their answers among themselves: TRL's default ``per_device_train_batch_size``."""


class RowAndOther(NamedTuple):
    """A row of KTO, the row whose answer is its mismatch, and which of its two samples is meant."""

    row: Any
    other: Any
    slot: int


class MismatchedRows(SideRows):
    """Rows of KTO, each of them twice, paired with the row before it; the first of eight rows is paired with the last.

    ::

        row      0   1   2  …  7   8   9
        other    7   0   1  …  6   9   8       the last rows of a file rotate among themselves

    >>> from brimful.sources.memory import MemoryRows
    >>> rows = MismatchedRows(MemoryRows(["a", "b", "c"]))
    >>> [(pair.row, pair.other, pair.slot) for pair in rows.read(0, 4)]
    [('a', 'c', 0), ('a', 'c', 1), ('b', 'a', 0), ('b', 'a', 1)]
    """

    def read(self, start: int, stop: int) -> Iterator[Any]:
        num_rows = len(self._rows)
        first_row, last_row = start // 2, (stop + 1) // 2
        # Whole rotations are read, so that the first row also has its partner.
        for begin in range(first_row - first_row % ROTATED_ROWS, last_row if start < stop else 0, ROTATED_ROWS):
            rows = list(self._rows.read(begin, min(begin + ROTATED_ROWS, num_rows)))
            for position, row in enumerate(rows):
                for slot in (0, 1):
                    if start <= 2 * (begin + position) + slot < stop:
                        yield _paired(row, rows[position - 1], slot)

    def get(self, index: int) -> Any:
        row = index // 2
        begin = row - row % ROTATED_ROWS
        other = row - 1 if row > begin else min(begin + ROTATED_ROWS, len(self._rows)) - 1
        return _paired(self._rows.get(row), self._rows.get(other), index % 2)

    def where(self, index: int) -> str:
        return self._rows.where(index // 2)

    @property
    def blocks(self) -> Sequence[Block]:
        blocks, result, first = self._rows.blocks, [], 0
        for block, sides in zip(blocks, super().blocks, strict=True):
            # A block depends on all rows of the rotations that it touches.
            begin = block.start - block.start % ROTATED_ROWS
            end = min(-(-block.stop // ROTATED_ROWS) * ROTATED_ROWS, len(self._rows))
            while blocks[first].stop <= begin:
                first += 1
            touched = []
            for number in range(first, len(blocks)):
                if blocks[number].start >= end:
                    break
                touched.append([blocks[number].fingerprint, blocks[number].start - block.start])
            identity = [touched, begin - block.start, end - block.start, "mismatches"]
            result.append(replace(sides, fingerprint=fingerprint_of(identity)))
        return result

    @property
    def fingerprint(self) -> Fingerprint:
        return fingerprint_of([self._rows.fingerprint, "mismatches"])

    def prefix_fingerprints(self, count: int) -> Sequence[Fingerprint]:
        # Rows appended to an incomplete rotation change its mismatches.
        if count % (2 * ROTATED_ROWS):
            return []
        return [fingerprint_of([digest, "mismatches"]) for digest in self._rows.prefix_fingerprints(count // 2)]


def _paired(row: Any, other: Any, slot: int) -> Any:
    if isinstance(row, MalformedRowError):
        return row
    if isinstance(other, MalformedRowError):
        return MalformedRowError(f"the row whose answer is its mismatch cannot be read: {other}")
    return RowAndOther(row, other, slot)

"""Rows of preferences as two samples each: chosen and rejected, or an answer and its KL completion."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from brimful.base.fingerprint import fingerprint_of
from brimful.sources.rows import Block, RowView
from brimful.sources.sample import MalformedRowError

ANSWERS = ("chosen", "rejected")
"""Answers of a preference: sample ``2·row`` is chosen, sample ``2·row + 1`` rejected."""

ROTATED_ROWS = 8
"""Number of rows that rotate their answers among themselves: TRL's default ``per_device_train_batch_size``."""


class AnswerOfRow(NamedTuple):
    """A row of a preference, and which of its answers is meant: 0 for chosen, 1 for rejected."""

    row: Any
    answer: int


class PreferenceRows(RowView):
    """Rows of preferences, each of them twice.

    ::

        row        0                    1
        sample     0 chosen  1 rejected  2 chosen  3 rejected

    >>> from brimful.sources.memory import MemoryRows
    >>> rows = PreferenceRows(MemoryRows([{"chosen": "b", "rejected": "c"}]))
    >>> len(rows), rows.get(1).answer, rows.where(1)
    (2, 1, 'memory[0], rejected')
    """

    name = "sides"

    def parts(self, start: int, stop: int) -> Iterator[Sequence[Any]]:
        for row in self._rows.read(start, stop):
            yield [row] * 2 if isinstance(row, MalformedRowError) else [AnswerOfRow(row, 0), AnswerOfRow(row, 1)]

    def where(self, index: int) -> str:
        return f"{super().where(index)}, {ANSWERS[index % 2]}"


class RowAndOther(NamedTuple):
    """A row of KTO, the row whose answer is its KL completion, and which of its two samples is meant."""

    row: Any
    other: Any
    slot: int


class KtoRows(RowView):
    """Rows of KTO, each of them twice, paired with the row before it; the first of eight rows is paired with the last.

    ::

        row      0   1   2  …  7   8   9
        other    7   0   1  …  6   9   8       the last rows of a file rotate among themselves

    >>> from brimful.sources.memory import MemoryRows
    >>> rows = KtoRows(MemoryRows(["a", "b", "c"]))
    >>> [(pair.row, pair.other, pair.slot) for pair in rows.read(0, 4)]
    [('a', 'c', 0), ('a', 'c', 1), ('b', 'a', 0), ('b', 'a', 1)]
    """

    name = "mismatches"
    rows_together = ROTATED_ROWS

    def parts(self, start: int, stop: int) -> Iterator[Sequence[Any]]:
        # Whole rotations are read, so that the first row also has its partner.
        for begin in range(start - start % ROTATED_ROWS, stop, ROTATED_ROWS):
            rows = list(self._rows.read(begin, min(begin + ROTATED_ROWS, len(self._rows))))
            for position in range(max(start - begin, 0), min(stop - begin, len(rows))):
                yield [_paired(rows[position], rows[position - 1], slot) for slot in (0, 1)]

    @property
    def blocks(self) -> Sequence[Block]:
        blocks, result, first = self._rows.blocks, [], 0
        for block in blocks:
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
            identity = [touched, begin - block.start, end - block.start, self.name]
            result.append(replace(self._block_of_samples(block), fingerprint=fingerprint_of(identity)))
        return result


def _paired(row: Any, other: Any, slot: int) -> Any:
    if isinstance(row, MalformedRowError):
        return row
    if isinstance(other, MalformedRowError):
        return MalformedRowError(f"the row whose answer is its mismatch cannot be read: {other}")
    return RowAndOther(row, other, slot)

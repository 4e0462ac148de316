"""Rows that are each seen as several samples: any range of samples is that part of the whole."""

from collections.abc import Iterator, Sequence
from itertools import combinations_with_replacement
from typing import Any

from brimful.sources.memory import MemoryRows
from brimful.sources.rows import RowView


class Thirds(RowView):
    """Three samples of a row: the row, and which of the three."""

    name = "thirds"
    samples_per_row = 3

    def parts(self, start: int, stop: int) -> Iterator[Sequence[Any]]:
        for row in self._rows.read(start, stop):
            yield [(row, third) for third in range(3)]


def test_any_range_of_samples_is_part_of_the_whole():
    rows = Thirds(MemoryRows(["a", "b", "c", "d", "e"]))
    whole = [(row, third) for row in "abcde" for third in range(3)]
    assert (len(rows), rows.num_rows, rows.samples_by_row.tolist()) == (15, 5, [3] * 5)
    for start, stop in combinations_with_replacement(range(16), 2):
        assert list(rows.read(start, stop)) == whole[start:stop]
    assert [rows.get(index) for index in range(15)] == whole
    assert [rows.where(index) for index in range(15)] == [MemoryRows(["a"]).where(index // 3) for index in range(15)]

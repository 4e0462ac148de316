"""The pricing problem of column generation: the unbounded knapsack, solved for all sizes at
once.
"""

from __future__ import annotations

import time

import numpy as np

from brimful.base.compiling import compiled
from brimful.base.typing import Int32Array, Int64Array


class SearchLimit:
    """A limit in seconds, in operations, or in both. A search ends at the first limit and keeps its
    best result.

    Seconds depend on the machine and its load, operations do not: a search with a limit in
    operations gives the same result everywhere. An operation is one step of an inner loop over an
    array, about a nanosecond on a processor from 2024.

    Args:
        seconds: wall time from construction; None for no limit.
        operations: None for no limit.

    >>> limit = SearchLimit(operations=100)
    >>> limit.spend(99), limit.exhausted, limit.spend(1), limit.exhausted
    (None, False, None, True)
    """

    def __init__(self, *, seconds: float | None = None, operations: float | None = None) -> None:
        self._start = time.perf_counter()
        self._max_seconds = float("inf") if seconds is None else seconds
        self.remaining_operations = float("inf") if operations is None else operations
        """Infinite without a limit."""

    def spend(self, operations: float) -> None:
        """Count operations of the search."""
        self.remaining_operations -= operations

    @property
    def exhausted(self) -> bool:
        """True once the seconds or the operations are used up."""
        return self.remaining_operations <= 0 or self.remaining_seconds <= 0

    @property
    def remaining_seconds(self) -> float:
        """Infinite without a limit."""
        return self._max_seconds - (time.perf_counter() - self._start)


STEPS_PER_ITEM = 100
"""Steps (distinct lengths times capacity) that take as long as one item as ``compiling.compiled``
counts them.
"""

_STEPS_PER_BLOCK = 100_000_000
"""Steps of the compiled form between two checks of the search limit: some tenths of a second."""


def solve_knapsack(
    lengths: Int64Array, values: Int64Array, *, capacity: int, limit: SearchLimit
) -> tuple[Int64Array, Int32Array] | None:
    """Find the most valuable content of a pack of every size up to the capacity, any number of each
    length.

    With a value for each length (its price in packs), the best content of size ``capacity`` is the
    pattern of least reduced cost. Lengths 2 and 3 with values 4 and 7, capacity 7::

        size    0  1  2  3  4  5  6  7
        best    0  0  4  7  8 11 14 15      15: 2 + 2 + 3
        last    -  -  0  1  0  1  1  1      position of a length that is in the best content

        best[s] = max(0, max over lengths l ≤ s of best[s - l] + value[l])

    Values are whole numbers and sums are exact, so the result can support a proof. A length may be
    taken more often than it has items: this does not make ``best`` smaller, so bounds from it hold.

    Returns:
        ``best``: ``int64[capacity + 1]``, value of the best content of each size; ``last``:
        ``int32[capacity + 1]``, positions in ``lengths``, -1 if the best content is empty. None if
        the search limit was exhausted first.

    Cost: O(distinct lengths · capacity) steps. Source: Gilmore and Gomory (1966), the unbounded
        knapsack.

    >>> lengths, values = np.array([2, 3]), np.array([4, 7])
    >>> best, last = solve_knapsack(lengths, values, capacity=7, limit=SearchLimit())
    >>> int(best[7]), best_content(lengths, last, 7)
    (15, [1, 0, 0])
    """
    best: Int64Array = np.zeros(capacity + 1, dtype=np.int64)
    last: Int32Array = np.full(capacity + 1, -1, dtype=np.int32)
    work = len(lengths) * capacity // STEPS_PER_ITEM
    fill_tables = compiled(_fill_tables, work) or _fill_tables_in_numpy
    block_size = max(1, _STEPS_PER_BLOCK // (capacity + 1))
    for first in range(0, len(lengths), block_size):
        if limit.exhausted:
            return None
        stop = min(first + block_size, len(lengths))
        limit.spend((stop - first) * capacity)
        fill_tables(lengths, values, first, stop, best, last)
    return best, last


def best_content(lengths: Int64Array, last: Int32Array, size: int) -> list[int]:
    """Return positions of the lengths in the best content of a pack of this size."""
    positions = []
    while (position := int(last[size])) >= 0:
        positions.append(position)
        size -= int(lengths[position])
    return positions


def _fill_tables(
    lengths: Int64Array,
    values: Int64Array,
    first: int,
    stop: int,
    best: Int64Array,
    last: Int32Array,
) -> None:
    """Offer the lengths ``first … stop - 1`` to packs of every size, as plain loops for the
    compiler.
    """
    for position in range(first, stop):
        length = lengths[position]
        value = values[position]
        # Sizes ascend, so best[size - length] may already contain any number of copies of this
        # length.
        for size in range(length, len(best)):
            candidate = best[size - length] + value
            if candidate > best[size]:
                best[size] = candidate
                last[size] = position


def _fill_tables_in_numpy(
    lengths: Int64Array,
    values: Int64Array,
    first: int,
    stop: int,
    best: Int64Array,
    last: Int32Array,
) -> None:
    """Do the same with array operations: 1, 2, 4, … further copies in one operation each."""
    previous = np.empty_like(best)
    for position in range(first, stop):
        previous[:] = best
        length, value = int(lengths[position]), int(values[position])
        while length < len(best):
            best[length:] = np.maximum(best[length:], best[:-length] + value)
            length, value = 2 * length, 2 * value
        last[best > previous] = position

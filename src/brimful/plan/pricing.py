"""Searches that make patterns: what one pack can hold, at given prices or to the brim.

Like ``kernels``, compiled if numba is installed, and with the same result without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from brimful.compiling import compiled_form
from brimful.plan.effort import Effort
from brimful.typing import Int32Array, Int64Array

__all__ = ["Knapsack", "brim_search", "reachable_sums"]

WORTH_COMPILING = 20_000_000
"""Different lengths times capacity from which loading compiled code is quicker than running NumPy and Python."""

_BLOCK = 100_000_000
"""Steps of the compiled knapsack between two looks at the clock: some tenths of a second."""


class _Compiled:
    """Compiled functions; made once by ``_compiled``."""

    def __init__(self) -> None:
        self.knapsack: Any = compiled_form(_knapsack)
        self.brim_search: Any = compiled_form(_brim_search)


@cache
def _load() -> _Compiled | None:
    return None if compiled_form(_knapsack) is None else _Compiled()


def _compiled(work: int) -> _Compiled | None:
    """The compiled functions if they are there already, or pay for so much work: lengths times capacity."""
    return _load() if work >= WORTH_COMPILING or _load.cache_info().currsize else None


class Knapsack:
    """The most valuable contents of a pack of every size up to the capacity, any number of each length.

    Lengths 2 and 3 of value 4 and 7, capacity 7::

        size    0  1  2  3  4  5  6  7
        best    0  0  4  7  8 11 14 15      15: 2 + 2 + 3
        last    -  -  0  1  0  1  1  1      position of a length that is in the best contents

    Values are whole numbers and sums are exact: what comes out can carry a proof. That an item may be taken more often
    than there are items makes ``best`` no smaller, so bounds from it hold.

    Attributes:
        best: ``int64[capacity + 1]``.
        last: ``int32[capacity + 1]``, positions in ``lengths``; -1 where the best contents are none.

    Cost: O(distinct lengths · capacity) steps. Source: Gilmore and Gomory (1966), the unbounded knapsack.
    """

    def __init__(self, lengths: Int64Array, values: Int64Array, *, capacity: int) -> None:
        self.lengths = lengths
        self.values = values
        self.capacity = capacity
        self.best: Int64Array = np.zeros(capacity + 1, dtype=np.int64)
        self.last: Int32Array = np.full(capacity + 1, -1, dtype=np.int32)

    def solve(self, effort: Effort) -> bool:
        """Fill the tables; False if the effort was over first."""
        compiled = _compiled(len(self.lengths) * self.capacity)
        block = max(1, _BLOCK // (self.capacity + 1))
        for first in range(0, len(self.lengths), block):
            if effort.over:
                return False
            effort.spend(min(block, len(self.lengths) - first) * self.capacity)
            run = compiled.knapsack if compiled else _knapsack_of_arrays
            run(self.lengths, self.values, first, min(first + block, len(self.lengths)), self.best, self.last)
        return True

    def contents(self, size: int) -> list[int]:
        """Positions of the lengths in the best contents of a pack of that size."""
        positions = []
        while (position := int(self.last[size])) >= 0:
            positions.append(position)
            size -= int(self.lengths[position])
        return positions


def _knapsack(
    lengths: Int64Array, values: Int64Array, first: int, stop: int, best: Int64Array, last: Int32Array
) -> None:
    for position in range(first, stop):
        length = lengths[position]
        value = values[position]
        for size in range(length, len(best)):
            with_it = best[size - length] + value
            if with_it > best[size]:
                best[size] = with_it
                last[size] = position


def _knapsack_of_arrays(
    lengths: Int64Array, values: Int64Array, first: int, stop: int, best: Int64Array, last: Int32Array
) -> None:
    """In NumPy: 1, 2, 4, … copies at once, so that each pass is one operation on whole arrays."""
    before = np.empty_like(best)
    for position in range(first, stop):
        before[:] = best
        length, value = int(lengths[position]), int(values[position])
        while length < len(best):
            best[length:] = np.maximum(best[length:], best[:-length] + value)
            length, value = 2 * length, 2 * value
        last[best > before] = position


def reachable_sums(lengths: Int64Array, counts: Int64Array, *, capacity: int) -> npt.NDArray[np.uint8]:
    """Which sums up to the capacity some of the items have: ``uint8[capacity + 1]``, 0 or 1.

    The sums are the bits of one large number; adding an item shifts it. Copies go in as 1, 2, 4, … and a rest.

    >>> reachable_sums(np.array([3, 5]), np.array([2, 1]), capacity=9).nonzero()[0].tolist()
    [0, 3, 5, 6, 8]
    """
    mask = (1 << (capacity + 1)) - 1
    sums = 1
    for length, count in zip(lengths.tolist(), counts.tolist(), strict=True):
        left = min(count, capacity // length)
        copies = 1
        while left > 0:
            step = min(copies, left)
            sums |= (sums << (length * step)) & mask
            left -= step
            copies *= 2
    bits = np.frombuffer(sums.to_bytes(capacity // 8 + 1, "little"), dtype=np.uint8)
    return np.unpackbits(bits, bitorder="little")[: capacity + 1]


def brim_search(lengths: Int64Array, *others: Any, capacity: int) -> tuple[int, int, int]:
    """``_brim_search``, compiled if that pays; else on lists, which plain Python reads faster than arrays."""
    compiled = _compiled(len(lengths) * capacity)
    arguments = (lengths, capacity, *others)
    if compiled is not None:
        patterns, size, emptied = compiled.brim_search(*arguments)
        return int(patterns), int(size), int(emptied)
    lists = [argument.tolist() if isinstance(argument, np.ndarray) else argument for argument in arguments]
    result = _brim_search(*lists)
    for argument, values in zip(arguments, lists, strict=True):
        if isinstance(argument, np.ndarray) and argument.flags.writeable:
            argument[:] = values
    return result


def _brim_search(
    lengths: Sequence[int],
    capacity: int,
    left: Int64Array,
    reach: npt.NDArray[np.uint8],
    longest: Sequence[int],
    enough: int,
    patience: int,
    stale: bool,
    used: Int64Array,
    content: Int64Array,
    ends: Int64Array,
    times: Int64Array,
) -> tuple[int, int, int]:
    """Patterns that leave as little room as a limited search finds, until some lengths are used up.

    Args:
        lengths: ascending.
        left: items of each length; those packed are taken off.
        reach: 1 at sums that items have, perhaps of items gone since.
        longest: of each room, the position of the longest length that fits, or -1.
        enough: stop when so many lengths have been used up.
        patience: steps of one search.
        stale: stop too where nothing fits exactly and ``reach`` may be out of date.
        used: zeros, one for each length.
        content: receives positions in ``lengths``, pattern after pattern.
        ends: receives the end of each pattern in ``content``.
        times: receives how many packs have the pattern.

    Returns:
        Patterns, their size in ``content``, lengths used up.
    """
    patterns = 0
    at = 0
    emptied = 0
    top = len(lengths) - 1
    while emptied < enough and patterns < len(ends):
        while top >= 0 and left[top] == 0:
            top -= 1
        if top < 0 or at + capacity // lengths[0] + 1 > len(content):
            break
        content[at] = top
        used[top] = 1
        end = at + 1
        target = capacity - lengths[top]
        fails = 0
        found = target == 0
        alone = 0
        while left[alone] == 0:
            alone += 1
        alone = 2 * lengths[alone]  # sums below this are single items
        while not found and target > 0:
            if fails == 8:
                break
            if reach[target] == 0:
                target -= 1
                continue
            # Longest first; back to the last choice where nothing fits exactly.
            room = target
            upto = top
            steps = 0
            while room > 0:
                item = min(upto, longest[room])
                while item >= 0 and (left[item] == used[item] or reach[room - lengths[item]] == 0):
                    item -= 1
                    steps += 1
                if item >= 0:
                    content[end] = item
                    used[item] += 1
                    end += 1
                    room -= lengths[item]
                    upto = item
                else:
                    if end == at + 1 or steps > patience:
                        break
                    end -= 1
                    item = content[end]
                    used[item] -= 1
                    room += lengths[item]
                    upto = item - 1
                steps += 1
            found = room == 0
            if not found:
                while end > at + 1:
                    end -= 1
                    used[content[end]] -= 1
                fails += 1
                target -= 1
        if not found and emptied > 0 and stale:
            for number in range(at, end):
                used[content[number]] = 0
            return patterns, at, emptied
        if not found:
            # Nothing exact: the longest that fits, again and again.
            room = capacity - lengths[top]
            item = min(top, longest[room])
            while item >= 0:
                if left[item] > used[item]:
                    content[end] = item
                    used[item] += 1
                    end += 1
                    room -= lengths[item]
                    item = min(item, longest[room])
                else:
                    item -= 1
        packs = left[top]
        for number in range(at, end):
            item = content[number]
            packs = min(packs, left[item] // used[item])
        for number in range(at, end):
            item = content[number]
            if used[item] > 0:
                left[item] -= packs * used[item]
                used[item] = 0
                if left[item] == 0:
                    emptied += 1
                    if lengths[item] < alone:
                        reach[lengths[item]] = 0
        times[patterns] = packs
        ends[patterns] = end
        patterns += 1
        at = end
    return patterns, at, emptied

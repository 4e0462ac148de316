"""Next fit: samples in their order, a new pack when the next does not fit."""

from __future__ import annotations

import numpy as np

from brimful.compiling import compiled
from brimful.plan.in_order import as_items
from brimful.plan.packing import Packing
from brimful.typing import AnyIntArray, Lengths, Offsets

__all__ = ["next_fit"]

_CHUNK_ITEMS = 1 << 20


def next_fit(lengths: AnyIntArray, *, capacity: int) -> Packing:
    """Keep one pack open; close it when the next item does not fit. The order of the items is kept.

    ::

        capacity 7     3        3        5        6        1        1
        pack 0       3 ------ 3 3
        pack 1                         5
        pack 2                                  6 ------ 6 1               fill 19/28
        pack 3                                                    1

    Pure: no I/O, no randomness.

    Args:
        lengths: ``int[num_items]``, each in [1, capacity].
        capacity: most that a pack holds, from 1 to 2**31 - 1.

    Returns:
        Packs in order of opening, items in their order.

    Cost: O(n) for n items. Source: Johnson (1973).

    >>> next_fit(np.array([3, 3, 5, 6, 1, 1]), capacity=7).as_lists()
    [[0, 1], [2], [3, 4], [5]]
    """
    items = as_items(lengths)
    form = compiled(_next_fit, len(items))
    offsets = form(items, capacity) if form is not None else _by_jumps(items, capacity)
    return Packing(offsets, np.arange(len(items), dtype=np.int32 if len(items) < 2**31 else np.int64))


def _next_fit(lengths: Lengths, capacity: int) -> Offsets:
    offsets = np.zeros(1, dtype=np.int64)
    for write in (False, True):  # count the packs, then note where each begins
        num_packs = 0
        load = capacity
        for item in range(len(lengths)):
            load += lengths[item]
            if load > capacity:
                load = lengths[item]
                if write:
                    offsets[num_packs] = item
                num_packs += 1
        if not write:
            offsets = np.full(num_packs + 1, len(lengths), dtype=np.int64)
    return offsets


def _by_jumps(lengths: Lengths, capacity: int) -> Offsets:
    """In NumPy: where a pack that begins with each item would end, for some items at a time; then pack to pack."""
    ends = np.cumsum(lengths, dtype=np.int64)
    begins = []
    at = 0
    while at < len(lengths):
        chunk = slice(at, at + _CHUNK_ITEMS)
        full = ends[chunk] - lengths[chunk] + capacity
        jumps = np.searchsorted(ends, full, side="right").tolist()
        first = at
        while at - first < len(jumps):
            begins.append(at)
            at = jumps[at - first]
    begins.append(len(lengths))
    return np.array(begins, dtype=np.int64)

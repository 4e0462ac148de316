"""Next fit: samples in their order, a new pack when the next does not fit."""

import numpy as np

from brimful.base.compiling import compiled
from brimful.base.ragged import positions_type
from brimful.base.typing import AnyIntArray, Lengths, Offsets
from brimful.plan.fit.any_fit import as_int32
from brimful.plan.packing import Packing

_CHUNK_ITEMS = 1 << 20
"""Items that NumPy processes together."""


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
        capacity: maximum tokens of a pack, from 1 to 2**31 - 1.

    Returns:
        Packs in order of opening, items in their order.

    Cost: O(n) for n items. Source: Johnson (1973).

    >>> next_fit(np.array([3, 3, 5, 6, 1, 1]), capacity=7).as_lists()
    [[0, 1], [2], [3, 4], [5]]
    """
    items = as_int32(lengths)
    kernel = compiled(_next_fit, len(items), sum_calls=True) or _jump_from_pack_to_pack
    return Packing(kernel(items, capacity), np.arange(len(items), dtype=positions_type(len(items))))


def _next_fit(lengths: Lengths, capacity: int) -> Offsets:
    """Return the offsets of the packs; to be compiled."""
    offsets = np.zeros(1, dtype=np.int64)
    for is_counted in (False, True):  # first count the packs, then write their offsets
        num_packs = 0
        load = capacity
        for item in range(len(lengths)):
            load += lengths[item]
            if load > capacity:
                load = lengths[item]
                if is_counted:
                    offsets[num_packs] = item
                num_packs += 1
        if not is_counted:
            offsets = np.full(num_packs + 1, len(lengths), dtype=np.int64)
    return offsets


def _jump_from_pack_to_pack(lengths: Lengths, capacity: int) -> Offsets:
    """Return the offsets of the packs, in NumPy."""
    ends = np.cumsum(lengths, dtype=np.int64)
    begins = []
    item = 0
    while item < len(lengths):
        # For each item of a chunk, the begin of the next pack if a pack began with this item.
        first = item
        chunk = slice(first, first + _CHUNK_ITEMS)
        next_begins = np.searchsorted(ends, ends[chunk] - lengths[chunk] + capacity, side="right").tolist()
        while item - first < len(next_begins):
            begins.append(item)
            item = next_begins[item - first]
    begins.append(len(lengths))
    return np.array(begins, dtype=np.int64)

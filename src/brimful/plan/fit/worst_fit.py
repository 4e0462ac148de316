"""Worst fit: samples in their order, each in the emptiest pack."""

from collections.abc import MutableSequence, Sequence
from heapq import heappush, heapreplace

import numpy as np

from brimful.plan.fit.any_fit import as_int32, compiled_fit, empty_assignment, packs_of_items
from brimful.plan.packing import Packing
from brimful.typing import AnyIntArray


def worst_fit(lengths: AnyIntArray, *, capacity: int) -> Packing:
    """Place items in their given order, each in the emptiest pack; a new pack only when none has room.

    ::

        capacity 7     3        3        5        6        1        1
        pack 0       3 ------ 3 3 ---- 3 3 ---- 3 3 ---- 3 3 ---- 3 3 1
        pack 1                         5 ------ 5 ------ 5 1 ---- 5 1       fill 19/21
        pack 2                                  6 ------ 6 ------ 6

    Of equally empty packs the one that was opened first is taken. Packs come out evenly filled rather than full: for
    comparisons, and for packs of similar numbers of samples.

    Pure: no I/O, no randomness.

    Args:
        lengths: ``int[num_items]``, each in [1, capacity].
        capacity: tokens that a pack holds at most, from 1 to 2**31 - 1.

    Returns:
        Packs in order of opening, items in their order.

    Cost: O(n·log p) for n items and p packs. Source: Johnson (1973).

    >>> worst_fit(np.array([3, 3, 5, 6, 1, 1]), capacity=7).as_lists()
    [[0, 1, 5], [2, 4], [3]]
    """
    items = as_int32(lengths)
    if len(items) == 0:
        return packs_of_items(items, 0)
    kernel = compiled_fit(_worst_fit, len(items))
    if kernel is not None:
        pack_of = empty_assignment(len(items))
        return packs_of_items(pack_of, kernel(items, capacity, pack_of))
    packs = [0] * len(items)
    num_packs = _worst_fit(items.tolist(), int(capacity), packs)
    return packs_of_items(np.array(packs, dtype=np.int64), num_packs)


def _worst_fit(lengths: Sequence[int], capacity: int, pack_of: MutableSequence[int]) -> int:
    """Write the pack of each item and return the number of packs."""
    # A heap of load · 2**32 + pack: the emptiest pack is on top, of equal ones the one opened first.
    heap = [lengths[0] << 32]
    pack_of[0] = 0
    for item in range(1, len(lengths)):
        length = lengths[item]
        key = heap[0]
        if (key >> 32) + length <= capacity:
            pack_of[item] = key & 0xFFFFFFFF
            heapreplace(heap, key + (length << 32))
        else:
            pack_of[item] = len(heap)
            heappush(heap, (length << 32) + len(heap))
    return len(heap)

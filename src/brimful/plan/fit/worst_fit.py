"""Worst fit: samples in their order, each in the emptiest pack."""

from collections.abc import MutableSequence, Sequence
from heapq import heappush, heapreplace

from brimful.base.typing import AnyIntArray
from brimful.plan.fit.any_fit import fit_in_order
from brimful.plan.packing import Packing


def worst_fit(lengths: AnyIntArray, *, capacity: int) -> Packing:
    """Place items in their given order, each in the emptiest pack; open a new pack only when none has room.

    ::

        capacity 7     3        3        5        6        1        1
        pack 0       3 ------ 3 3 ---- 3 3 ---- 3 3 ---- 3 3 ---- 3 3 1
        pack 1                         5 ------ 5 ------ 5 1 ---- 5 1       fill 19/21
        pack 2                                  6 ------ 6 ------ 6

    Of equally empty packs the one that was opened first is taken. Packs become evenly filled rather than full: useful
    for comparisons, and for packs with similar numbers of samples.

    Pure: no I/O, no randomness.

    Args:
        lengths: ``int[num_items]``, each in [1, capacity].
        capacity: maximum tokens of a pack, from 1 to 2**31 - 1.

    Returns:
        Packs in order of opening, items in their order.

    Cost: O(n·log p) for n items and p packs. Source: Johnson (1973).

    >>> import numpy as np
    >>> worst_fit(np.array([3, 3, 5, 6, 1, 1]), capacity=7).as_lists()
    [[0, 1, 5], [2, 4], [3]]
    """
    return fit_in_order(_worst_fit, _worst_fit, lengths, int(capacity))


def _worst_fit(lengths: Sequence[int], capacity: int, pack_of: MutableSequence[int]) -> int:
    """Write the pack of each item and return the number of packs."""
    # A heap of load · 2**32 + pack: the emptiest pack is on top, of equal ones the one opened first. After all packs
    # comes a full dummy pack, so that the heap is never empty.
    heap = [(capacity << 32) + 0xFFFFFFFF]
    for item in range(len(lengths)):
        length = lengths[item]
        key = heap[0]
        if (key >> 32) + length <= capacity:
            pack_of[item] = key & 0xFFFFFFFF
            heapreplace(heap, key + (length << 32))
        else:
            pack_of[item] = len(heap) - 1
            heappush(heap, (length << 32) + len(heap) - 1)
    return len(heap) - 1

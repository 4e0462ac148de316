"""First fit: samples in their order, each in the first pack that has room."""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence

import numpy as np

from brimful.compiling import compiled
from brimful.plan.in_order import as_items, most_packs, packs_of_items, unplaced
from brimful.plan.packing import Packing
from brimful.typing import AnyIntArray

__all__ = ["first_fit"]


def first_fit(lengths: AnyIntArray, *, capacity: int) -> Packing:
    """Place items in their given order, each in the first opened pack that has room.

    ::

        capacity 7     3        3        5        6        1        1
        pack 0       3 ------ 3 3 ---- 3 3 ---- 3 3 ---- 3 3 1    3 3 1
        pack 1                         5 ------ 5 ------ 5 ------ 5 1       fill 19/21
        pack 2                                  6 ------ 6 ------ 6

    A tree over the packs, whose nodes say the most room of any pack below them, leads to the first with room; packs
    that are not open yet have all of it, so the same step opens one.

    Pure: no I/O, no randomness.

    Args:
        lengths: ``int[num_items]``, each in [1, capacity].
        capacity: most that a pack holds, from 1 to 2**31 - 1.

    Returns:
        Packs in order of opening, items in their order.

    Cost: O(n·log p) for n items and p packs. Source: Johnson (1973).

    >>> first_fit(np.array([3, 3, 5, 6, 1, 1]), capacity=7).as_lists()
    [[0, 1, 4], [2, 5], [3]]
    """
    items = as_items(lengths)
    leaves = 1 << max(0, most_packs(items, capacity=capacity) - 1).bit_length()
    form = compiled(_first_fit, len(items))
    if form is not None:
        rooms = np.full(2 * leaves, capacity, dtype=np.int32)
        pack_of = unplaced(len(items))
        return packs_of_items(pack_of, form(items, rooms, pack_of))
    packs = [0] * len(items)
    num_packs = _first_fit(items.tolist(), [int(capacity)] * (2 * leaves), packs)
    return packs_of_items(np.array(packs, dtype=np.int64), num_packs)


def _first_fit(lengths: Sequence[int], rooms: MutableSequence[int], pack_of: MutableSequence[int]) -> int:
    """Write the pack of each item; how many packs there are. ``rooms`` is the tree: its root is 1, leaves behind."""
    leaves = len(rooms) // 2
    num_packs = 0
    for item in range(len(lengths)):
        length = lengths[item]
        node = 1
        while node < leaves:
            node *= 2
            if rooms[node] < length:
                node += 1
        pack = node - leaves
        pack_of[item] = pack
        if pack >= num_packs:
            num_packs = pack + 1
        room = rooms[node] - length
        rooms[node] = room
        while node > 1:
            room = max(rooms[node], rooms[node ^ 1])
            node //= 2
            if rooms[node] == room:
                break  # nothing changes further up
            rooms[node] = room
    return num_packs

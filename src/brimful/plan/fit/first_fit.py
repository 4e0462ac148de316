"""First fit: samples in their order, each in the first pack that has room."""

from collections.abc import MutableSequence, Sequence

import numpy as np

from brimful.base.typing import AnyIntArray
from brimful.plan.fit.any_fit import fit_in_order, next_fit_upper_bound
from brimful.plan.packing import Packing


def first_fit(lengths: AnyIntArray, *, capacity: int) -> Packing:
    """Place items in their given order, each in the first opened pack that has room.

    ::

        capacity 7     3        3        5        6        1        1
        pack 0       3 ------ 3 3 ---- 3 3 ---- 3 3 ---- 3 3 1    3 3 1
        pack 1                         5 ------ 5 ------ 5 ------ 5 1       fill 19/21
        pack 2                                  6 ------ 6 ------ 6

    A binary tree over the packs leads to the first with room: each node holds the maximum room of the packs below it.
    Packs that are not open yet are empty leaves with full room, so the same step opens one.

    Pure: no I/O, no randomness.

    Args:
        lengths: ``int[num_items]``, each in [1, capacity].
        capacity: maximum tokens of a pack, from 1 to 2**31 - 1.

    Returns:
        Packs in order of opening, items in their order.

    Cost: O(n·log p) for n items and p packs. Source: Johnson (1973).

    >>> first_fit(np.array([3, 3, 5, 6, 1, 1]), capacity=7).as_lists()
    [[0, 1, 4], [2, 5], [3]]
    """
    num_leaves = 1 << max(0, next_fit_upper_bound(lengths, capacity=capacity) - 1).bit_length()
    rooms = np.full(2 * num_leaves, capacity, dtype=np.int32)
    return fit_in_order(_first_fit, _first_fit, lengths, rooms)


def _first_fit(lengths: Sequence[int], rooms: MutableSequence[int], pack_of: MutableSequence[int]) -> int:
    """Write the pack of each item and return the number of packs.

    Args:
        lengths: lengths of the items; lists in plain Python, arrays when compiled.
        rooms: a binary tree with its root at 1 and one leaf for each pack; packs that are not open have full room.
        pack_of: the output.
    """
    num_leaves = len(rooms) // 2
    num_packs = 0
    for item in range(len(lengths)):
        length = lengths[item]
        # Go down to the first pack with room: a node holds the maximum room of the packs below it.
        node = 1
        while node < num_leaves:
            node *= 2
            if rooms[node] < length:
                node += 1
        pack = node - num_leaves
        pack_of[item] = pack
        num_packs = max(num_packs, pack + 1)
        # Go up again and correct the nodes, until the other child of a node has as much room.
        room = rooms[node] - length
        rooms[node] = room
        while node > 1:
            room = max(rooms[node], rooms[node ^ 1])
            node //= 2
            if rooms[node] == room:
                break
            rooms[node] = room
    return num_packs

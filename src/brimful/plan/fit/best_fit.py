"""Best fit: samples in their order, each in the fullest pack with room."""

from bisect import bisect_left
from collections.abc import MutableSequence, Sequence

from brimful.base.typing import AnyIntArray
from brimful.plan.fit.any_fit import fit_in_order
from brimful.plan.packing import Packing

_BLOCK_KEYS = 256
"""Maximum keys of a block. Moving half of them costs about as much as finding the block."""


def best_fit(lengths: AnyIntArray, *, capacity: int) -> Packing:
    """Place items in their given order, each in the fullest pack that still has room.

    ::

        capacity 7     3        3        5        6        1        1
        pack 0       3 ------ 3 3 ---- 3 3 ---- 3 3 ---- 3 3 1    3 3 1
        pack 1                         5 ------ 5 ------ 5 ------ 5         fill 19/21
        pack 2                                  6 ------ 6 ------ 6 1

    Of equally full packs, the one that was opened first is taken. Packs with room are kept sorted
    by their key, room · 2**32 + pack, in blocks of some hundred keys: the pack for an item has the
    first key that is at least length · 2**32. The cost does not depend on the capacity.

    Pure: no I/O, no randomness.

    Args:
        lengths: ``int[num_items]``, each in [1, capacity].
        capacity: maximum tokens of a pack, from 1 to 2**31 - 1.

    Returns:
        Packs in order of opening, items in their order.

    Cost: O(n·log p) for n items and p packs with room, and moves within a block. Source: Johnson
        (1973).

    >>> import numpy as np
    >>> best_fit(np.array([3, 3, 5, 6, 1, 1]), capacity=7).as_lists()
    [[0, 1, 4], [2], [3, 5]]
    """
    return fit_in_order(_best_fit, lengths, int(capacity), _BLOCK_KEYS)


def _best_fit(
    lengths: Sequence[int], capacity: int, block_keys: int, pack_of: MutableSequence[int]
) -> int:
    """Write the pack of each item and return the number of packs; lists in plain Python, arrays
    when compiled.
    """
    shortest = capacity
    for item in range(len(lengths)):
        shortest = min(shortest, lengths[item])
    # Keys of packs with room, ascending within and among blocks. The last one is of the pack that
    # is opened next.
    blocks = [[capacity << 32]]
    last_keys = [capacity << 32]  # of each block
    num_packs = 0
    for item in range(len(lengths)):
        # Take the first key from (length, pack 0) on.
        lowest = int(lengths[item]) << 32
        index = bisect_left(last_keys, lowest)
        block = blocks[index]
        key = block.pop(bisect_left(block, lowest))
        pack_of[item] = pack = key & 0xFFFFFFFF
        if pack == num_packs:
            num_packs += 1
            block.append((capacity << 32) + num_packs)
        if len(block) == 0:
            blocks.pop(index)
            last_keys.pop(index)
        else:
            last_keys[index] = block[-1]
        key -= lowest
        if key >> 32 < shortest:
            continue  # the pack is full
        # Put the key back with the remaining room; a block that grew too long is halved.
        index = bisect_left(last_keys, key)
        block = blocks[index]
        block.insert(bisect_left(block, key), key)
        if len(block) == block_keys:
            half = block_keys // 2
            blocks.insert(index, block[:half])
            last_keys.insert(index, block[half - 1])
            blocks[index + 1] = block[half:]
    return num_packs

"""Best fit: samples in their order, each in the fullest pack with room."""

from bisect import bisect_left, insort
from typing import Any

import numpy as np

from brimful.base.typing import AnyIntArray, Int64Array, Lengths
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

    >>> best_fit(np.array([3, 3, 5, 6, 1, 1]), capacity=7).as_lists()
    [[0, 1, 4], [2], [3, 5]]
    """
    return fit_in_order(_best_fit, _best_fit_on_lists, lengths, int(capacity), _BLOCK_KEYS)


def _best_fit_on_lists(
    lengths: list[int], capacity: int, block_keys: int, pack_of: list[int]
) -> int:
    """Write the pack of each item and return the number of packs; on lists, which plain Python
    reads fastest.
    """
    shortest = min(lengths, default=0)
    blocks: list[list[int]] = []  # keys of packs with room, ascending within and among blocks
    last_keys: list[int] = []  # of each block
    num_packs = 0
    for item, length in enumerate(lengths):
        # Take the first key from (length, pack 0) on, or the key of a new pack.
        index = bisect_left(last_keys, length << 32)
        if index == len(blocks):
            key = (capacity << 32) + num_packs
            num_packs += 1
        else:
            block = blocks[index]
            place = bisect_left(block, length << 32)
            key = block.pop(place)
            if not block:
                del blocks[index], last_keys[index]
            elif place == len(block):
                last_keys[index] = block[-1]
        pack_of[item] = key & 0xFFFFFFFF
        key -= length << 32
        if key >> 32 < shortest:
            continue  # the pack is full
        # Put the key back with the remaining room; a block that grew too long is halved.
        if not blocks:
            blocks.append([])
            last_keys.append(key)
        index = min(bisect_left(last_keys, key), len(blocks) - 1)
        block = blocks[index]
        insort(block, key)
        last_keys[index] = block[-1]
        if len(block) == block_keys:
            blocks.insert(index + 1, block[block_keys // 2 :])
            del block[block_keys // 2 :]
            last_keys.insert(index, block[-1])
    return num_packs


def _best_fit(lengths: Lengths, capacity: int, block_keys: int, pack_of: AnyIntArray) -> int:
    """Do the same on arrays; to be compiled. Block ``i`` in the order of keys is row ``rows[i]`` of
    ``keys``.

    Loops replace NumPy's functions, with which compiling took three times as long.
    """

    def first_from(values: Int64Array, end: Any, key: Any) -> Any:
        """Return the place of the first of ``end`` ascending values that is not below a key, or
        ``end``.
        """
        begin = 0
        while begin < end:
            middle = (begin + end) >> 1
            if values[middle] < key:
                begin = middle + 1
            else:
                end = middle
        return begin

    shortest = np.int64(capacity)
    for item in range(len(lengths)):
        shortest = min(shortest, np.int64(lengths[item]))
    # A block needs half of its keys before it is full again. Memory of rows that are never used is
    # not touched.
    half = block_keys // 2
    max_blocks = 1 + len(lengths) // half
    keys = np.empty((max_blocks, block_keys), dtype=np.int64)
    sizes = np.zeros(max_blocks, dtype=np.int64)  # keys of each row
    rows = np.arange(max_blocks)  # the rows in use, followed by the free ones
    last_keys = np.empty(max_blocks, dtype=np.int64)
    num_blocks = 0
    num_packs = 0
    for item in range(len(lengths)):
        length = np.int64(lengths[item])
        # Take the first key from (length, pack 0) on, or the key of a new pack.
        lowest = length << 32
        index = first_from(last_keys, num_blocks, lowest)
        if index == num_blocks:
            key = (np.int64(capacity) << 32) + num_packs
            num_packs += 1
        else:
            row = rows[index]
            size = sizes[row]
            place = first_from(keys[row], size, lowest)
            key = keys[row, place]
            for i in range(place, size - 1):
                keys[row, i] = keys[row, i + 1]
            size -= 1
            sizes[row] = size
            if size == 0:
                # An empty block leaves the order, and its row becomes free.
                num_blocks -= 1
                for i in range(index, num_blocks):
                    rows[i], last_keys[i] = rows[i + 1], last_keys[i + 1]
                rows[num_blocks] = row
            elif place == size:
                last_keys[index] = keys[row, size - 1]
        pack_of[item] = key & 0xFFFFFFFF
        key -= length << 32
        if key >> 32 < shortest:
            continue
        # Put the key back with the remaining room, into the first block whose last key is not below
        # it.
        if num_blocks == 0:
            last_keys[0] = key
            num_blocks = 1
        index = first_from(last_keys, num_blocks - 1, key)
        row = rows[index]
        size = sizes[row]
        place = first_from(keys[row], size, key)
        for i in range(size, place, -1):
            keys[row, i] = keys[row, i - 1]
        keys[row, place] = key
        size += 1
        sizes[row] = size
        last_keys[index] = keys[row, size - 1]
        if size == block_keys:
            # The upper half of a full block moves to a free row, which comes next in the order.
            free_row = rows[num_blocks]
            for i in range(num_blocks, index + 1, -1):
                rows[i], last_keys[i] = rows[i - 1], last_keys[i - 1]
            num_blocks += 1
            for i in range(half, block_keys):
                keys[free_row, i - half] = keys[row, i]
            sizes[free_row] = block_keys - half
            sizes[row] = half
            rows[index + 1], last_keys[index + 1] = free_row, last_keys[index]
            last_keys[index] = keys[row, half - 1]
    return num_packs

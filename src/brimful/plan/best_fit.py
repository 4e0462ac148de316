"""Best fit: samples in their order, each where the least room is left."""

from __future__ import annotations

from bisect import bisect_left, insort

import numpy as np

from brimful.compiling import compiled
from brimful.plan.in_order import as_items, packs_of_items, unplaced
from brimful.plan.packing import Packing
from brimful.typing import AnyIntArray, Lengths

__all__ = ["best_fit"]

_BLOCK = 256
"""Most keys of a block. Moving half of them costs as much as looking for the block, about."""


def best_fit(lengths: AnyIntArray, *, capacity: int) -> Packing:
    """Place items in their given order, each in the fullest pack that still has room.

    ::

        capacity 7     3        3        5        6        1        1
        pack 0       3 ------ 3 3 ---- 3 3 ---- 3 3 ---- 3 3 1    3 3 1
        pack 1                         5 ------ 5 ------ 5 ------ 5         fill 19/21
        pack 2                                  6 ------ 6 ------ 6 1

    Of equally full packs the one that was opened first is taken. Packs with room are kept sorted by (room, pack), as
    one number, in blocks of some hundred: the pack for an item is the first number from (length, 0) on. Any capacity
    costs the same.

    Pure: no I/O, no randomness.

    Args:
        lengths: ``int[num_items]``, each in [1, capacity].
        capacity: most that a pack holds, from 1 to 2**31 - 1.

    Returns:
        Packs in order of opening, items in their order.

    Cost: O(n·log p) for n items and p packs with room, and moves within a block. Source: Johnson (1973).

    >>> best_fit(np.array([3, 3, 5, 6, 1, 1]), capacity=7).as_lists()
    [[0, 1, 4], [2], [3, 5]]
    """
    items = as_items(lengths)
    form = compiled(_best_fit, len(items))
    pack_of = unplaced(len(items))
    if form is not None:
        return packs_of_items(pack_of, form(items, capacity, _BLOCK, pack_of))
    return packs_of_items(pack_of, _by_bisection(items, int(capacity), pack_of))


def _by_bisection(lengths: Lengths, capacity: int, pack_of: AnyIntArray) -> int:
    """Write the pack of each item; how many packs there are."""
    shortest = int(lengths.min()) if len(lengths) else 0
    blocks: list[list[int]] = []
    lasts: list[int] = []  # the last number of each block
    num_packs = 0
    for item, length in enumerate(lengths.tolist()):
        at = bisect_left(lasts, length << 32)
        if at == len(blocks):
            key = (capacity << 32) + num_packs
            num_packs += 1
        else:
            block = blocks[at]
            place = bisect_left(block, length << 32)
            key = block.pop(place)
            if not block:
                del blocks[at], lasts[at]
            elif place == len(block):
                lasts[at] = block[-1]
        pack_of[item] = key & 0xFFFFFFFF
        key -= length << 32
        if key >> 32 < shortest:
            continue  # nothing will fit there any more
        if not blocks:
            blocks.append([])
            lasts.append(key)
        at = min(bisect_left(lasts, key), len(blocks) - 1)
        block = blocks[at]
        insort(block, key)
        lasts[at] = block[-1]
        if len(block) == _BLOCK:
            blocks.insert(at + 1, block[_BLOCK // 2 :])
            del block[_BLOCK // 2 :]
            lasts.insert(at, block[-1])
    return num_packs


def _best_fit(lengths: Lengths, capacity: int, most: int, pack_of: AnyIntArray) -> int:
    """The same with arrays, to be compiled. Block ``i`` in the order of numbers is row ``rows[i]`` of ``keys``."""
    shortest = capacity
    for length in lengths:
        if length < shortest:
            shortest = int(length)
    keys = np.empty((16, most), dtype=np.int64)
    sizes = np.zeros(16, dtype=np.int64)
    rows = np.arange(16)  # behind the blocks in use stand the free rows
    lasts = np.empty(16, dtype=np.int64)
    blocks = 0
    num_packs = 0
    for item in range(len(lengths)):
        length = np.int64(lengths[item])
        at = np.searchsorted(lasts[:blocks], length << 32)
        if at == blocks:
            key = (np.int64(capacity) << 32) + num_packs
            num_packs += 1
        else:
            row = rows[at]
            size = sizes[row]
            place = np.searchsorted(keys[row, :size], length << 32)
            key = keys[row, place]
            for move in range(place, size - 1):
                keys[row, move] = keys[row, move + 1]
            size -= 1
            sizes[row] = size
            if size == 0:
                blocks -= 1
                for move in range(at, blocks):
                    rows[move], lasts[move] = rows[move + 1], lasts[move + 1]
                rows[blocks] = row
            elif place == size:
                lasts[at] = keys[row, size - 1]
        pack_of[item] = key & 0xFFFFFFFF
        key -= length << 32
        if key >> 32 < shortest:
            continue
        if blocks == 0:
            lasts[0] = key
            blocks = 1
        at = np.searchsorted(lasts[:blocks], key)
        if at == blocks:
            at -= 1
        row = rows[at]
        size = sizes[row]
        place = np.searchsorted(keys[row, :size], key)
        for move in range(size, place, -1):
            keys[row, move] = keys[row, move - 1]
        keys[row, place] = key
        size += 1
        sizes[row] = size
        lasts[at] = keys[row, size - 1]
        if size == most:
            if blocks == len(rows):
                keys = np.concatenate((keys, np.empty_like(keys)))
                sizes = np.concatenate((sizes, np.zeros_like(sizes)))
                rows = np.concatenate((rows, np.arange(blocks, 2 * blocks)))
                lasts = np.concatenate((lasts, np.empty_like(lasts)))
            fresh = rows[blocks]
            for move in range(blocks, at + 1, -1):
                rows[move], lasts[move] = rows[move - 1], lasts[move - 1]
            blocks += 1
            half = most // 2
            keys[fresh, : most - half] = keys[row, half:]
            sizes[fresh] = most - half
            sizes[row] = half
            rows[at + 1], lasts[at + 1] = fresh, lasts[at]
            lasts[at] = keys[row, half - 1]
    return num_packs

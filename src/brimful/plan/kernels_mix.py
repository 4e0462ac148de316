"""The passes of ``mix`` over all segments: compiled if numba is installed and it pays, else in NumPy, to the same result.

A pack is a ring: what it offers are ``count`` segments from ``first`` on, round its end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from brimful.compiling import compiled
from brimful.typing import AnyIntArray, Int64Array, Offsets

__all__ = ["passes", "ranges"]


def passes(num_items: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """``offer`` and ``exchange``, as they are quickest for that many items, each passed some hundred times."""
    offer = compiled(_offer, 2 * num_items) or _offer_in_numpy
    exchange = compiled(_exchange, 2 * num_items) or _exchange_in_numpy
    return offer, exchange


def ranges(begins: Int64Array, sizes: Int64Array) -> Int64Array:
    """``begins[0], begins[0] + 1, …``, ``sizes[0]`` of them, then those of the next.

    >>> ranges(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    starts = np.cumsum(sizes) - sizes
    found: Int64Array = np.arange(int(sizes.sum())) + np.repeat(begins - starts, sizes)
    return found


def _offer(offsets: Offsets, lengths: AnyIntArray, first: Int64Array, count: Int64Array, sums: Int64Array) -> None:
    """``sums``: tokens that each pack offers."""
    for pack in range(len(sums)):
        begin, end = offsets[pack], offsets[pack + 1]
        at = begin + first[pack]
        total = 0
        for _ in range(count[pack]):
            total += lengths[at]
            at += 1
            if at == end:
                at = begin
        sums[pack] = total


def _offer_in_numpy(
    offsets: Offsets, lengths: AnyIntArray, first: Int64Array, count: Int64Array, sums: Int64Array
) -> None:
    ends = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=ends[1:])
    begin = offsets[:-1]
    last = first + count
    over = np.maximum(last - np.diff(offsets), 0)
    sums[:] = ends[begin + last - over] - ends[begin + first] + ends[begin + over] - ends[begin]


def _exchange(
    offsets: Offsets,
    items: AnyIntArray,
    lengths: AnyIntArray,
    first: Int64Array,
    count: Int64Array,
    partner: Int64Array,
    new_items: AnyIntArray,
    new_lengths: AnyIntArray,
) -> None:
    """Write each pack anew: what it keeps, then what its partner offers."""
    target = 0
    for pack in range(len(partner)):
        for part in range(2):
            giver = pack if part == 0 else partner[pack]
            begin, end = offsets[giver], offsets[giver + 1]
            at = begin + first[giver]
            left = count[giver]
            if part == 0:
                at += left
                left = end - begin - left
            if at >= end:
                at -= end - begin
            for _ in range(left):
                new_items[target] = items[at]
                new_lengths[target] = lengths[at]
                target += 1
                at += 1
                if at == end:
                    at = begin


def _exchange_in_numpy(
    offsets: Offsets,
    items: AnyIntArray,
    lengths: AnyIntArray,
    first: Int64Array,
    count: Int64Array,
    partner: Int64Array,
    new_items: AnyIntArray,
    new_lengths: AnyIntArray,
) -> None:
    segments = np.diff(offsets)
    giver = np.stack([np.arange(len(partner)), partner], axis=1).ravel()
    begin = np.stack([(first + count) % segments, first[partner]], axis=1).ravel()
    number = np.stack([segments - count, count[partner]], axis=1).ravel()
    at = ranges(begin, number)
    size = np.repeat(segments[giver], number)
    at -= np.where(at >= size, size, 0)
    at += np.repeat(offsets[giver], number)
    new_items[:] = items[at]
    new_lengths[:] = lengths[at]

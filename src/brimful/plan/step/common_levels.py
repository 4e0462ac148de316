"""Slices of equal cost for samples with fixed ranks: ranks fill a slice to the cost of its most expensive sample."""

from collections.abc import Sequence

import numpy as np

from brimful.plan.step.fill import run_loop
from brimful.typing import Int64Array


def fill_common_levels(
    lengths: Int64Array, weights: Int64Array, offsets: Int64Array, *, capacity: int, micro_batches: int
) -> tuple[Int64Array, int]:
    """Fill whole slices of micro-batches while one sample alone costs more than any rank's mean micro-batch.

    All ranks wait for the rank of this sample, so every other rank fills its micro-batch of the slice up to the same
    cost, with its longest samples that fit, and has less in later slices.

    ::

        capacity 8, 2 micro-batches each; weights as squares
        rank 0    8 2 1     costs 69, 34.5 per micro-batch; 8 alone costs 64: the level of slice 0
        rank 1    5 4 3     costs 50; after 5 (25), 3 has room, and fits below 64
        slice 0   8 | 5 3         then the mean of rank 1 is 16, and no sample is above it

    Pure: no I/O, no randomness.

    Args:
        lengths: ``int64[num_items]``, rank after rank, descending within each rank.
        weights: ``int64[num_items]``, descending within each rank; at least 1.
        offsets: ``int64[num_ranks + 1]``: the items of each rank, at least as many as its micro-batches.
        capacity: capacity of a micro-batch.
        micro_batches: number of micro-batches of each rank.

    Returns:
        ``int64[num_items]``: the slice of each item, -1 for unplaced items; and the number of filled slices.

    Cost: O(n·log n).

    >>> lengths = np.array([8, 2, 1, 5, 4, 3])
    >>> slice_of, slices = fill_common_levels(lengths, lengths**2, np.array([0, 3, 6]), capacity=8, micro_batches=2)
    >>> slice_of.tolist(), slices
    ([0, -1, -1, 0, -1, 0], 1)
    """
    slice_of = np.full(len(lengths), -1, dtype=np.int64)
    following = np.arange(len(lengths) + 1)
    num_ranks = len(offsets) - 1
    totals = np.add.reduceat(weights, offsets[:-1])
    firsts, counts = offsets[:-1].copy(), np.diff(offsets)
    slices = run_loop(
        _fill_common_levels, len(lengths), lengths, weights, offsets, int(capacity), int(num_ranks),
        int(micro_batches), results=(totals, firsts, counts, following, slice_of),
    )  # fmt: skip
    return slice_of, int(slices)


def _fill_common_levels(
    lengths: Sequence[int],
    weights: Sequence[int],
    offsets: Sequence[int],
    capacity: int,
    num_ranks: int,
    micro_batches: int,
    totals: list[int],
    firsts: list[int],
    counts: list[int],
    following: list[int],
    slice_of: list[int],
) -> int:
    """Write the slice of each placed item, and return the number of slices; to be compiled.

    ``totals``, ``firsts`` and ``counts`` describe the unplaced items of each rank. ``following[i]`` leads to the first
    unplaced item at or after ``i``, in several hops, which are shortened as they are followed.
    """
    for number in range(micro_batches):
        level, most = 0, 0
        for rank in range(num_ranks):
            first = firsts[rank]
            while slice_of[first] >= 0:
                first += 1
            firsts[rank] = first
            level = max(level, weights[first])
            most = max(most, totals[rank])
        reserve = micro_batches - number - 1
        if level * (reserve + 1) <= most:
            return number
        for rank in range(num_ranks):
            end = offsets[rank + 1]
            room, allowance = capacity, level
            low = firsts[rank]
            while low < end:
                item = low
                while following[item] != item:
                    following[item] = following[following[item]]
                    item = following[item]
                if item >= end:
                    break
                slice_of[item] = number
                following[item] = item + 1
                room -= lengths[item]
                allowance -= weights[item]
                totals[rank] -= weights[item]
                counts[rank] -= 1
                if counts[rank] <= reserve:
                    break
                # The first later item that is short and cheap enough: both fall along the items of a rank.
                low, high = item + 1, end
                while low < high:
                    middle = (low + high) // 2
                    if lengths[middle] <= room and weights[middle] <= allowance:
                        high = middle
                    else:
                        low = middle + 1
    return micro_batches

"""Slices of equal cost: micro-batches that run at the same time, filled to the cost of their most expensive sample."""

from collections.abc import Sequence

import numpy as np

from brimful.plan.step.fill import run_loop
from brimful.typing import Int64Array


def fill_levels(
    lengths: Int64Array, weights: Int64Array, *, capacity: int, num_ranks: int, micro_batches: int
) -> tuple[Int64Array, int]:
    """Fill whole slices of micro-batches while one sample alone costs more than the mean micro-batch.

    Ranks wait for the slowest micro-batch of a slice, so work in the other micro-batches is free up to this level: the
    room below it is filled with the longest items that fit, and later slices get less.

    ::

        capacity 8, 2 ranks, 2 micro-batches each; weights as squares
        lengths 8 4 4 3 2 2 1          the mean micro-batch costs 114 ÷ 4 = 28.5, and 8 alone costs 64
        slice 0   8 | 4 4              seeds 8 and 4, filled up to 64 and 8 tokens
        then      3 | 2 2 1            the mean is 9: no item is above it, so least load first continues

    Pure: no I/O, no randomness.

    Args:
        lengths: ``int64[num_items]``, descending.
        weights: ``int64[num_items]``, descending; at least 1.
        capacity: capacity of a micro-batch.
        num_ranks: number of micro-batches of a slice.
        micro_batches: number of slices; each micro-batch gets an item: at least ``num_ranks · micro_batches`` items.

    Returns:
        ``int64[num_items]``: the micro-batch ``slice · num_ranks + place`` of each item, -1 for unplaced items; and the
        number of filled slices.

    Cost: O(n·log n).

    >>> lengths = np.array([8, 4, 4, 3, 2, 2, 1])
    >>> bin_of, slices = fill_levels(lengths, lengths**2, capacity=8, num_ranks=2, micro_batches=2)
    >>> bin_of.tolist(), slices
    ([0, 1, 1, -1, -1, -1, -1], 1)
    """
    bin_of = np.full(len(lengths), -1, dtype=np.int64)
    following = np.arange(len(lengths) + 1)
    slices = run_loop(
        _fill_levels, len(lengths), lengths, weights, int(weights.sum()), int(capacity), int(num_ranks),
        int(micro_batches), results=(following, bin_of),
    )  # fmt: skip
    return bin_of, int(slices)


def _fill_levels(
    lengths: Sequence[int],
    weights: Sequence[int],
    total: int,
    capacity: int,
    num_ranks: int,
    micro_batches: int,
    following: list[int],
    bin_of: list[int],
) -> int:
    """Write the bin of each placed item, and return the number of slices; to be compiled.

    ``following[i]`` leads to the first unplaced item at or after ``i``, in several hops, which are shortened as they
    are followed.
    """
    num_items = len(lengths)
    num_unplaced = num_items
    first = 0
    for number in range(micro_batches):
        while first < num_items and bin_of[first] >= 0:
            first += 1
        if first == num_items or weights[first] * num_ranks * (micro_batches - number) <= total:
            return number
        level = weights[first]
        # Seeds: the longest unplaced items, one for each micro-batch of the slice.
        seed_end = first
        place = number * num_ranks
        while place < (number + 1) * num_ranks:
            if bin_of[seed_end] < 0:
                bin_of[seed_end] = place
                following[seed_end] = seed_end + 1
                total -= weights[seed_end]
                place += 1
            seed_end += 1
        num_unplaced -= num_ranks
        reserve = (micro_batches - number - 1) * num_ranks
        # The shortest seed is filled first: its micro-batch has the largest room, for the longest items.
        seed = seed_end
        for _ in range(num_ranks):
            seed -= 1
            while bin_of[seed] < number * num_ranks:
                seed -= 1
            room = capacity - lengths[seed]
            allowance = level - weights[seed]
            while num_unplaced > reserve:
                # The first item that is short and cheap enough: both fall along the items.
                low, high = 0, num_items
                while low < high:
                    middle = (low + high) // 2
                    if lengths[middle] <= room and weights[middle] <= allowance:
                        high = middle
                    else:
                        low = middle + 1
                item = low
                while following[item] != item:
                    following[item] = following[following[item]]
                    item = following[item]
                if item == num_items:
                    break
                bin_of[item] = bin_of[seed]
                following[item] = item + 1
                room -= lengths[item]
                allowance -= weights[item]
                total -= weights[item]
                num_unplaced -= 1
    return micro_batches

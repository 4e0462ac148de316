"""Slices of equal cost: micro-batches that run at the same time, filled to the cost of their most
expensive sample.
"""

from collections.abc import Sequence


def fill_levels(
    lengths: Sequence[int],
    weights: Sequence[int],
    total: int,
    capacity: int,
    num_ranks: int,
    micro_batches: int,
    next_unplaced: list[int],
    bin_of: list[int],
) -> int:
    """Fill whole slices of micro-batches while one sample alone costs more than the mean
    micro-batch.

    Ranks wait for the slowest micro-batch of a slice, so work in the other micro-batches is free up
    to this level: the room below it is filled with the longest items that fit, and later slices get
    less.

    ::

        capacity 8, 2 ranks, 2 micro-batches each; weights as squares
        lengths 8 4 4 3 2 2 1          the mean micro-batch costs 114 ÷ 4 = 28.5, and 8 alone costs 64
        slice 0   8 | 4 4              seeds 8 and 4, filled up to 64 and 8 tokens
        then      3 | 2 2 1            the mean is 9: no item is above it, so least load first continues

    Pure: no I/O, no randomness.

    To be compiled. ``next_unplaced[i]`` leads to the first unplaced item at or after ``i``, in
    several hops, which are shortened as they are followed.

    Args:
        lengths: ``int64[num_items]``, descending.
        weights: ``int64[num_items]``, descending; at least 1.
        total: sum of the weights.
        capacity: capacity of a micro-batch.
        num_ranks: number of micro-batches of a slice.
        micro_batches: number of slices; each micro-batch gets an item: at least
            ``num_ranks · micro_batches`` items.
        next_unplaced: ``int64[num_items + 1]``, from 0; changed in place.
        bin_of: ``int64[num_items]``, -1; gets the micro-batch ``slice · num_ranks + bin_index`` of each
            placed item.

    Returns:
        Number of filled slices.

    Cost: O(n·log n).

    >>> import numpy as np
    >>> lengths, bin_of = np.array([8, 4, 4, 3, 2, 2, 1]), np.full(7, -1)
    >>> fill_levels(lengths, lengths**2, 114, 8, 2, 2, np.arange(8), bin_of), bin_of.tolist()
    (1, [0, 1, 1, -1, -1, -1, -1])
    """
    num_items = len(lengths)
    num_unplaced = num_items
    first = 0
    for slice_index in range(micro_batches):
        while first < num_items and bin_of[first] >= 0:
            first += 1
        if (
            first == num_items
            or weights[first] * num_ranks * (micro_batches - slice_index) <= total
        ):
            return slice_index
        level = weights[first]
        # Seeds: the longest unplaced items, one for each micro-batch of the slice.
        seed_end = first
        bin_index = slice_index * num_ranks
        while bin_index < (slice_index + 1) * num_ranks:
            if bin_of[seed_end] < 0:
                bin_of[seed_end] = bin_index
                next_unplaced[seed_end] = seed_end + 1
                total -= weights[seed_end]
                bin_index += 1
            seed_end += 1
        num_unplaced -= num_ranks
        reserve = (micro_batches - slice_index - 1) * num_ranks
        # The shortest seed is filled first: its micro-batch has the largest room, for the longest
        # items.
        seed = seed_end
        for _ in range(num_ranks):
            seed -= 1
            while bin_of[seed] < slice_index * num_ranks:
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
                while next_unplaced[item] != item:
                    next_unplaced[item] = next_unplaced[next_unplaced[item]]
                    item = next_unplaced[item]
                if item == num_items:
                    break
                bin_of[item] = bin_of[seed]
                next_unplaced[item] = item + 1
                room -= lengths[item]
                allowance -= weights[item]
                total -= weights[item]
                num_unplaced -= 1
    return micro_batches


def fill_common_levels(
    lengths: Sequence[int],
    weights: Sequence[int],
    offsets: Sequence[int],
    capacity: int,
    micro_batches: int,
    next_unplaced: list[int],
    slice_of: list[int],
) -> int:
    """Fill whole slices of micro-batches while one sample alone costs more than any rank's mean
    micro-batch.

    All ranks wait for the rank of this sample, so every other rank fills its micro-batch of the
    slice up to the same cost, with its longest samples that fit, and has less in later slices.

    ::

        capacity 8, 2 micro-batches each; weights as squares
        rank 0    8 2 1     costs 69, 34.5 per micro-batch; 8 alone costs 64: the level of slice 0
        rank 1    5 4 3     costs 50; after 5 (25), 3 has room, and fits below 64
        slice 0   8 | 5 3         then the mean of rank 1 is 16, and no sample is above it

    Pure: no I/O, no randomness.

    To be compiled. ``next_unplaced[i]`` leads to the first unplaced item at or after ``i``, in
    several hops, which are shortened as they are followed.

    Args:
        lengths: ``int64[num_items]``, rank after rank, descending within each rank.
        weights: ``int64[num_items]``, descending within each rank; at least 1.
        offsets: ``int64[num_ranks + 1]``: the items of each rank, at least as many as its
            micro-batches.
        capacity: capacity of a micro-batch.
        micro_batches: number of micro-batches of each rank.
        next_unplaced: ``int64[num_items + 1]``, from 0; changed in place.
        slice_of: ``int64[num_items]``, -1; gets the slice of each placed item.

    Returns:
        Number of filled slices.

    Cost: O(n·log n).

    >>> import numpy as np
    >>> lengths, slice_of = np.array([8, 2, 1, 5, 4, 3]), np.full(6, -1)
    >>> offsets = np.array([0, 3, 6])
    >>> fill_common_levels(lengths, lengths**2, offsets, 8, 2, np.arange(7), slice_of), slice_of.tolist()
    (1, [0, -1, -1, 0, -1, 0])
    """
    num_ranks = len(offsets) - 1
    # The unplaced items of each rank: the first of them, their number, and the sum of their
    # weights.
    firsts = [offsets[rank] for rank in range(num_ranks)]
    counts = [offsets[rank + 1] - offsets[rank] for rank in range(num_ranks)]
    totals = [0 for _ in range(num_ranks)]
    for rank in range(num_ranks):
        for item in range(offsets[rank], offsets[rank + 1]):
            totals[rank] += weights[item]
    for slice_index in range(micro_batches):
        level, most = 0, 0
        for rank in range(num_ranks):
            first = firsts[rank]
            while slice_of[first] >= 0:
                first += 1
            firsts[rank] = first
            level = max(level, weights[first])
            most = max(most, totals[rank])
        reserve = micro_batches - slice_index - 1
        if level * (reserve + 1) <= most:
            return slice_index
        for rank in range(num_ranks):
            end = offsets[rank + 1]
            room, allowance = capacity, level
            low = firsts[rank]
            while low < end:
                item = low
                while next_unplaced[item] != item:
                    next_unplaced[item] = next_unplaced[next_unplaced[item]]
                    item = next_unplaced[item]
                if item >= end:
                    break
                slice_of[item] = slice_index
                next_unplaced[item] = item + 1
                room -= lengths[item]
                allowance -= weights[item]
                totals[rank] -= weights[item]
                counts[rank] -= 1
                if counts[rank] <= reserve:
                    break
                # The first later item that is short and cheap enough: both fall along the items of
                # a rank.
                low, high = item + 1, end
                while low < high:
                    middle = (low + high) // 2
                    if lengths[middle] <= room and weights[middle] <= allowance:
                        high = middle
                    else:
                        low = middle + 1
    return micro_batches

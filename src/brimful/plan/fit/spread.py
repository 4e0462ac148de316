"""Spread: longest first, each in the emptiest of a given number of packs."""

from heapq import heappop, heappush

import numpy as np

from brimful.base.compiling import compiled
from brimful.base.typing import Int64Array
from brimful.base.wording import setting
from brimful.errors import InvalidLengthsError
from brimful.plan.counts.histogram import Histogram
from brimful.plan.counts.runs import PackRuns
from brimful.plan.fit.best_fit_decreasing import best_fit_decreasing


def spread(items: Histogram, *, capacity: int, num_packs: int | None, bound: int) -> PackRuns:
    """Place items, longest first, each in the emptiest of ``num_packs`` packs: even packs instead
    of few packs.

    ::

        capacity 7     6        5        3        3        1        1
        pack 0       6 ------ 6 ------ 6 ------ 6 ------ 6 ------ 6 1
        pack 1                5 ------ 5 ------ 5 ------ 5 1 ---- 5 1       fill 19/21
        pack 2                         3 ------ 3 3 ---- 3 3 ---- 3 3

    Of equally empty packs the first is taken. If an item fits into no pack, all packs are nearly
    full: then best fit decreasing packs with the least capacity at which it needs at most
    ``num_packs`` packs, and unneeded packs get the shortest items of others. No pack exceeds the
    capacity, and no pack is empty.

    Pure: no I/O, no randomness.

    Args:
        items: number of items of each length, none longer than the capacity.
        capacity: maximum tokens of a pack, at least 1.
        num_packs: exact number of packs; None for the number that best fit decreasing takes.
        bound: no packing of the items has fewer packs.

    Returns:
        The runs; ``assign`` adds the items.

    Raises:
        InvalidLengthsError: fewer packs than the bound or than best fit decreasing takes, or more
            than items.

    Cost: O(n·log p) at worst, for n items and p packs; runs of equal items in equal packs are
        placed at once.
    Source: longest processing time first (Graham, 1969); if that fails, multifit (Coffman, Garey
        and Johnson, 1978).

    >>> items = Histogram.of(np.array([3, 3, 5, 6, 1, 1]))
    >>> spread(items, capacity=7, num_packs=4, bound=3).num_packs
    4
    """
    num_items = items.num_items
    densest = None
    if num_packs is None:
        densest = best_fit_decreasing(items, capacity=capacity)
        num_packs = densest.num_packs
    if num_packs < bound:
        raise InvalidLengthsError(
            f"{setting('num_packs', num_packs)} is below the bound: {items.total:,} tokens in "
            f"packs of {capacity:,} need at least {bound:,} packs; use "
            f"{setting('num_packs', bound)} or more, or a larger {setting('capacity')}"
        )
    if num_packs > num_items:
        raise InvalidLengthsError(
            f"{setting('num_packs', num_packs)} is more than the {num_items:,} samples, and no "
            "pack may be empty"
        )
    if num_packs == 0:
        return PackRuns.of_table([], 0)
    fill = compiled(_spread, num_items, sum_calls=True) or _spread
    table = fill(items.lengths, items.counts, capacity, num_packs)
    if len(table):
        return PackRuns.of_table(table, num_packs)
    return _multifit(items, capacity, num_packs, densest)


def _spread(lengths: Int64Array, counts: Int64Array, capacity: int, num_packs: int) -> Int64Array:
    """Return the rows of ``PackRuns.of_table``; no rows if an item has no room; to be compiled."""
    table = np.empty((1024, 5), dtype=np.int64)
    num_rows = 0
    # Runs of consecutive, equally full packs: load, first pack, packs, items per pack.
    heap = [(0, 0, num_packs, 0)]
    for index in range(len(lengths) - 1, -1, -1):
        length = int(lengths[index])
        num_left = int(counts[index])
        while num_left > 0:
            load, first_pack, packs, items_before = heappop(heap)
            if load + length > capacity:
                return table[:0]
            if num_rows == len(table):
                table = np.concatenate((table, np.empty_like(table)))
            num_filled = min(packs, num_left)
            table[num_rows, 0], table[num_rows, 1], table[num_rows, 2] = (
                length,
                first_pack,
                num_filled,
            )
            table[num_rows, 3], table[num_rows, 4] = 1, items_before
            num_rows += 1
            num_left -= num_filled
            heappush(heap, (load + length, first_pack, num_filled, items_before + 1))
            if num_filled < packs:
                heappush(heap, (load, first_pack + num_filled, packs - num_filled, items_before))
    return table[:num_rows]


def _multifit(
    items: Histogram, capacity: int, num_packs: int, densest: PackRuns | None
) -> PackRuns:
    """Pack with the least capacity at which best fit decreasing takes at most ``num_packs``
    packs.
    """
    runs = best_fit_decreasing(items, capacity=capacity) if densest is None else densest
    if runs.num_packs > num_packs:
        raise InvalidLengthsError(
            f"{setting('num_packs', num_packs)}: no such packing was found; best fit decreasing "
            f"takes {runs.num_packs:,} packs of {capacity:,} tokens. Use "
            f"{setting('num_packs', runs.num_packs)}, or a larger {setting('capacity')}"
        )
    # Bisect between a capacity that is too small and one that is not; the number of packs need not
    # be monotonic.
    small = max(-(-items.total // num_packs), int(items.lengths[-1])) - 1
    large = capacity
    while large - small > max(1, capacity >> 10):
        middle = (small + large) // 2
        candidate = best_fit_decreasing(items, capacity=middle)
        if candidate.num_packs <= num_packs:
            runs, large = candidate, middle
        else:
            small = middle
    return runs if runs.num_packs == num_packs else _with_more_packs(items, runs, num_packs)


def _with_more_packs(items: Histogram, runs: PackRuns, num_packs: int) -> PackRuns:
    """Move the shortest items, one by one, into packs of their own until ``num_packs`` is
    reached.
    """
    lengths = np.repeat(items.lengths[::-1], items.counts[::-1])
    packing = runs.assign(np.arange(len(lengths)))
    pack_of = np.empty(len(lengths), dtype=np.int64)
    pack_of[packing.items] = np.repeat(np.arange(len(packing)), packing.sizes)
    occupy_empty_bins(pack_of, num_packs)
    # Items of a pack are contiguous, in order of position: longest first.
    by_pack = np.argsort(pack_of, kind="stable")
    counts = np.bincount(pack_of, minlength=num_packs)
    items_before = np.empty(len(lengths), dtype=np.int64)
    items_before[by_pack] = np.arange(len(lengths)) - np.repeat(np.cumsum(counts) - counts, counts)
    ones = np.ones(len(lengths), dtype=np.int64)
    return PackRuns(lengths, pack_of, ones, ones, items_before, num_packs)


def occupy_empty_bins(bin_of: Int64Array, num_bins: int) -> None:
    """Move the last items into empty bins, from bins that keep another item; in place.

    Args:
        bin_of: ``int64[num_items]``, the bin of each item, longest item first; at least
            ``num_bins`` items.
        num_bins: number of bins; no bin is empty in the end.

    >>> bin_of = np.array([0, 0, 1, 0])
    >>> occupy_empty_bins(bin_of, 3)
    >>> bin_of.tolist()
    [0, 0, 1, 2]
    """
    counts = np.bincount(bin_of, minlength=num_bins)
    if counts.all():
        return
    item = len(bin_of)
    for empty in np.flatnonzero(counts == 0).tolist():
        item -= 1
        while counts[bin_of[item]] < 2:
            item -= 1
        counts[bin_of[item]] -= 1
        bin_of[item] = empty

"""Minimum bin slack: packs filled exactly if a limited search succeeds (Gupta and Ho, 1999)."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from brimful.base.compiling import compiled
from brimful.base.typing import Int64Array
from brimful.plan.counts.histogram import Histogram
from brimful.planners.optimal.knapsack import STEPS_PER_ITEM, SearchLimit
from brimful.planners.patterns import PatternCounts, pattern_of

_MAX_STEPS_PER_TARGET = 4000
"""Steps of the search for items of one exact sum: some microseconds compiled."""

_MAX_TARGETS = 8
"""Number of sums to try for one pattern before it is filled greedily."""

_MAX_ITEMS_PER_TABLE = 1 << 14
"""Maximum items in all patterns that use one table of sums."""

_MAX_PATTERNS_PER_TABLE = 1 << 11
"""Maximum patterns that use one table of sums."""

_OPERATIONS_PER_PATTERN = 10_000
"""Approximate operations of the search limit that one pattern takes."""

_MAX_TABLES = 200
"""Maximum tables of sums that are made early because the old one yields no exact fit."""


def minimum_bin_slack(items: Histogram, *, capacity: int, limit: SearchLimit) -> PatternCounts:
    """Fill packs exactly: the longest remaining item, then the longest items that together fill the
    remaining room.

    ::

        capacity 10, lengths 4 4 3 3 3 3       best fit decreasing   4 4 · 3 3 3 · 3
            4  room 6 = 3 + 3                  minimum bin slack     4 3 3 · 4 3 3

    A table of the sums that items can have shows which choices can still end at zero room; if no
    items have this sum, the search tries the next smaller one. A pattern is used for as many packs
    as the counts allow, so that each pattern exhausts a length. This packs lengths with a long tail
    without waste, where best fit decreasing leaves gaps. It is not better if a pack holds two or
    three items; column generation solves this case.

    Cost: O(distinct lengths · capacity / 64) for a table, 20 to 200 of them, and microseconds for a
    pattern.
    Source: the minimum bin slack heuristic of Gupta and Ho (1999), on counts.

    Args:
        items: none longer than the capacity.
        limit: limit of the search; the result is empty if it is exhausted before the end.

    Returns:
        The patterns of all items; empty if the limit was exhausted first (or without items).
    """
    lengths = items.lengths
    counts = items.counts.copy()
    patterns: PatternCounts = Counter()
    num_tables = 0
    while len(lengths):
        if limit.exhausted:
            return Counter()
        num_tables += 1
        longest_fit = np.searchsorted(lengths, np.arange(capacity), side="right") - 1
        reachable = reachable_sums(lengths, counts, capacity=capacity)
        # Until a twentieth of the lengths is exhausted, one table of sums is good enough.
        options = (
            max(1, len(lengths) // 20),
            max(_MAX_ITEMS_PER_TABLE, 2 * (capacity // int(lengths[0]) + 1)),
            num_tables < _MAX_TABLES,
        )
        search = compiled(_search, len(lengths) * capacity // STEPS_PER_ITEM)
        if search is not None:
            contents, ends, packs = search(
                lengths, capacity, counts, reachable, longest_fit, *options
            )
        else:
            # On lists, which plain Python reads faster than arrays.
            count_list = counts.tolist()
            contents, ends, packs = _search(
                lengths.tolist(), capacity, count_list, reachable.tolist(), longest_fit.tolist(),
                *options,
            )  # fmt: skip
            counts[:] = count_list
        limit.spend(len(lengths) * capacity / 16 + _OPERATIONS_PER_PATTERN * len(packs))
        length_list = lengths.tolist()
        start = 0
        for end, num_packs in zip(ends, packs, strict=True):
            patterns[pattern_of(length_list, contents[start:end])] += num_packs
            start = end
        lengths, counts = lengths[counts > 0], counts[counts > 0]
    return patterns


def reachable_sums(
    lengths: Int64Array, counts: Int64Array, *, capacity: int
) -> npt.NDArray[np.uint8]:
    """Mark the sums up to the capacity that subsets of the items have.

    The sums are the bits of one large number; an item shifts it. Copies are added as 1, 2, 4, … and
    a remainder.

    Returns:
        ``uint8[capacity + 1]``: 1 at each such sum, otherwise 0.

    >>> reachable_sums(np.array([3, 5]), np.array([2, 1]), capacity=9).nonzero()[0].tolist()
    [0, 3, 5, 6, 8]
    """
    mask = (1 << (capacity + 1)) - 1
    sums = 1
    for length, count in zip(lengths.tolist(), counts.tolist(), strict=True):
        remaining_copies = min(count, capacity // length)
        step = 1
        while remaining_copies > 0:
            copies = min(step, remaining_copies)
            sums |= (sums << (length * copies)) & mask
            remaining_copies -= copies
            step *= 2
    bits = np.frombuffer(sums.to_bytes(capacity // 8 + 1, "little"), dtype=np.uint8)
    return np.unpackbits(bits, bitorder="little")[: capacity + 1]


def _search(
    lengths: Sequence[int],
    capacity: int,
    remaining: list[int],
    reachable: list[int],
    longest_fit: Sequence[int],
    max_exhausted: int,
    max_items: int,
    may_stop_early: bool,
) -> tuple[list[int], list[int], list[int]]:
    """Find patterns with little slack until some lengths are exhausted. Plain loops, for Python and
    for the compiler.

    Args:
        lengths: ascending.
        remaining: items of each length; the packed ones are subtracted.
        reachable: 1 at sums of items, some of which may since have been used.
        longest_fit: position of the longest length that fits into each room, or -1.
        max_exhausted: number of exhausted lengths at which the search ends.
        max_items: size of the result.
        may_stop_early: also end if nothing fits exactly and ``reachable`` may be outdated.

    Returns:
        Positions in ``lengths``, pattern after pattern; the end of each pattern in them; its number
        of packs.
    """
    contents: list[int] = []
    ends: list[int] = []
    packs: list[int] = []
    max_pattern_items = capacity // lengths[0] + 1
    num_exhausted = 0
    shortest = 0
    longest = len(lengths) - 1
    while num_exhausted < max_exhausted and len(packs) < _MAX_PATTERNS_PER_TABLE:
        while longest >= 0 and remaining[longest] == 0:
            longest -= 1
        if longest < 0 or len(contents) + max_pattern_items > max_items:
            break
        while remaining[shortest] == 0:
            shortest += 1
        smallest_pair = 2 * lengths[shortest]

        # Invariant: remaining + contents[begin:] are the items before this pattern, and room is the
        # rest of the target.
        start = len(contents)
        contents.append(longest)
        remaining[longest] -= 1
        target = capacity - lengths[longest]
        num_targets = 0
        is_exact = target == 0
        while not is_exact and target > 0 and num_targets < _MAX_TARGETS:
            if reachable[target] == 0:
                target -= 1
                continue
            # Depth first, in descending order of length: each multiset of items is visited once. An
            # item is taken only if the remaining sum is reachable; at a dead end a shorter item
            # replaces the last one.
            room = target
            upper = longest
            steps = 0
            while room > 0:
                item = longest_fit[room]
                if item > upper:
                    item = upper
                while item >= 0 and (remaining[item] == 0 or reachable[room - lengths[item]] == 0):
                    item -= 1
                    steps += 1
                if item >= 0:
                    contents.append(item)
                    remaining[item] -= 1
                    room -= lengths[item]
                    upper = item
                else:
                    if len(contents) == start + 1 or steps > _MAX_STEPS_PER_TARGET:
                        break
                    item = contents.pop()
                    remaining[item] += 1
                    room += lengths[item]
                    upper = item - 1
                steps += 1
            is_exact = room == 0
            if not is_exact:
                while len(contents) > start + 1:
                    remaining[contents.pop()] += 1
                num_targets += 1
                target -= 1

        if not is_exact:
            # After an exhausted length the table may contain outdated sums: a new table may yield
            # an exact pattern.
            if num_exhausted > 0 and may_stop_early:
                remaining[contents.pop()] += 1
                break
            # Without an exact sum: add the longest item that fits, again and again.
            room = capacity - lengths[longest]
            item = min(longest, longest_fit[room])
            while item >= 0:
                if remaining[item] > 0:
                    contents.append(item)
                    remaining[item] -= 1
                    room -= lengths[item]
                    item = min(item, longest_fit[room])
                else:
                    item -= 1

        # Copies of one length are contiguous; at the last copy their number is known, and so the
        # packs it allows.
        for index in range(start, len(contents)):
            remaining[contents[index]] += 1
        num_packs = remaining[longest]
        copies = 0
        for index in range(start, len(contents)):
            item = contents[index]
            copies = copies + 1 if index > start and contents[index - 1] == item else 1
            num_packs = min(num_packs, remaining[item] // copies)
        for index in range(start, len(contents)):
            item = contents[index]
            remaining[item] -= num_packs
            if remaining[item] == 0:
                num_exhausted += 1
                # A sum smaller than any two items is one item, so it is gone; other items may have
                # larger sums.
                if lengths[item] < smallest_pair:
                    reachable[lengths[item]] = 0
        ends.append(len(contents))
        packs.append(num_packs)
    return contents, ends, packs

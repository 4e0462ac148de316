"""Patterns: what packs hold, as counts of each length, and how many packs hold it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from brimful.plan.effort import Effort
from brimful.plan.histogram import Histogram, Placements
from brimful.plan.pricing import brim_search, reachable_sums
from brimful.typing import Int64Array

__all__ = [
    "Pattern",
    "Patterns",
    "add_patterns",
    "of_positions",
    "packs_of",
    "patterns_of",
    "placements_of",
    "remaining",
    "to_the_brim",
]

Pattern: TypeAlias = tuple[tuple[int, int], ...]
"""``((length, copies), …)``, longest first, copies at least 1: what one pack holds."""

Patterns: TypeAlias = dict[Pattern, int]
"""How many packs hold each pattern."""

_PATIENCE = 4000
"""Steps of the search for one pattern: some microseconds compiled."""

_CONTENT = 1 << 14
"""Items that the patterns of one search together may hold."""

_PATTERN = 10_000
"""Operations that finding a pattern takes, about."""

_TABLES = 200
"""So many times the table of sums is made anew because nothing fits exactly."""


def packs_of(patterns: Mapping[Pattern, int]) -> int:
    """Packs in all."""
    return sum(patterns.values())


def add_patterns(*parts: Mapping[Pattern, int]) -> Patterns:
    """Packs of all the parts together."""
    together: Patterns = {}
    for part in parts:
        for pattern, packs in part.items():
            together[pattern] = together.get(pattern, 0) + packs
    return together


def patterns_of(placements: Placements) -> Patterns:
    """What the packs hold, equal packs together.

    >>> patterns_of(Placements.of_patterns([([3, 3, 1], 1), ([6, 1], 5)]))
    {((3, 2), (1, 1)): 1, ((6, 1), (1, 1)): 5}
    """
    # Between two packs where a run begins or ends, all packs hold the same.
    changes: dict[int, list[tuple[int, int]]] = {}
    columns = (placements.length, placements.first, placements.packs, placements.copies)
    for length, first, packs, copies in zip(*(column.tolist() for column in columns), strict=True):
        changes.setdefault(first, []).append((length, copies))
        changes.setdefault(first + packs, []).append((length, -copies))
    held: Counter[int] = Counter()
    patterns: Patterns = {}
    places = sorted(changes)
    for first, stop in pairwise(places):
        for length, copies in changes[first]:
            held[length] += copies
            if held[length] == 0:
                del held[length]
        if held:
            pattern = tuple(sorted(held.items(), reverse=True))
            patterns[pattern] = patterns.get(pattern, 0) + stop - first
    return patterns


def placements_of(patterns: Mapping[Pattern, int]) -> Placements:
    """Packs that hold these patterns, those with the longest lengths first."""
    ordered = sorted(patterns.items(), reverse=True)
    return Placements.of_patterns(
        ([length for length, copies in pattern for _ in range(copies)], packs) for pattern, packs in ordered if packs
    )


def of_positions(lengths: list[int], positions: Iterable[int]) -> Pattern:
    """The pattern that holds the lengths at these positions, each as often as it is named."""
    return tuple((lengths[at], copies) for at, copies in sorted(Counter(positions).items(), reverse=True))


def to_the_brim(items: Histogram, *, capacity: int, effort: Effort) -> Patterns:
    """Fill packs exactly: the longest item that is left, then the longest ones that together take all its room.

    ::

        capacity 10, lengths 4 4 3 3 3 3       best fit decreasing   4 4 · 3 3 3 · 3
            4  room 6 = 3 + 3                  to the brim           4 3 3 · 4 3 3

    A table of the sums that the items have tells which choices can still end at zero room; where none does, the
    next smaller sum is tried. A pattern is used for as many packs as the counts allow, so that each pattern uses a
    length up. Lengths with a long tail fall into packs without waste this way, where best fit decreasing leaves
    gaps; it is no better where a pack holds two or three items, which is for the linear programme.

    Cost: O(distinct lengths · capacity / 64) for a table, 20 to 200 of them, and microseconds for a pattern.
    Source: the minimum bin slack heuristic of Gupta and Ho (1999), on counts.

    Args:
        items: none longer than the capacity.
        effort: where it is over before the end, there is no result.

    Returns:
        The patterns; empty if the effort was over first (or there are no items).
    """
    lengths = items.lengths
    left = items.counts.copy()
    packed: Patterns = {}
    tables = 0
    while len(lengths):
        if effort.over:
            return {}
        longest = np.searchsorted(lengths, np.arange(capacity + 1), side="right") - 1
        reach = reachable_sums(lengths, left, capacity=capacity)
        content = np.zeros(max(_CONTENT, 2 * (capacity // int(lengths[0]) + 1)), dtype=np.int64)
        ends, times = np.zeros(_CONTENT // 8, dtype=np.int64), np.zeros(_CONTENT // 8, dtype=np.int64)
        fresh = max(1, len(lengths) // 20)  # the table of sums is good until a twentieth of the lengths is used up
        used = np.zeros(len(lengths), dtype=np.int64)
        tables += 1
        again = tables < _TABLES
        found, _, _ = brim_search(
            lengths, left, reach, longest, fresh, _PATIENCE, again, used, content, ends, times, capacity=capacity
        )
        effort.spend(len(lengths) * capacity / 16 + _PATTERN * found)
        names = lengths.tolist()
        begin = 0
        for end, packs in zip(ends[:found].tolist(), times[:found].tolist(), strict=True):
            pattern = of_positions(names, content[begin:end].tolist())
            packed[pattern] = packed.get(pattern, 0) + packs
            begin = end
        alive = left > 0
        lengths, left = lengths[alive], left[alive]
    return packed


def remaining(items: Histogram, taken: Mapping[Pattern, int]) -> Histogram:
    """The items that these packs do not hold; the packs hold no others."""
    left = dict(zip(items.lengths.tolist(), items.counts.tolist(), strict=True))
    for pattern, packs in taken.items():
        for length, copies in pattern:
            left[length] -= copies * packs
            assert left[length] >= 0, f"more items of length {length} in packs than there are"
    counts: Int64Array = np.array([left[length] for length in items.lengths.tolist()], dtype=np.int64)
    return Histogram(items.lengths[counts > 0], counts[counts > 0])

"""Whole packs from a fractional solution."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np

from brimful.base.typing import Int64Array
from brimful.plan.counts.histogram import Histogram
from brimful.planners.optimal.column_generation import SOLVER_TOLERANCE
from brimful.planners.patterns import (
    Pattern,
    PatternCounts,
    RemainingItems,
    pattern_of,
    remaining,
)


def substitute_lengths(patterns: Iterable[Pattern], items: Histogram) -> list[Pattern]:
    """Replace each length of the patterns by the longest length of the items that is not longer.

    >>> import numpy as np
    >>> substitute_lengths([((7, 1), (2, 1)), ((1, 2),)], Histogram.of(np.array([6, 2])))
    [((6, 1), (2, 1))]
    """
    lengths = items.lengths.tolist()
    substituted_patterns = []
    for pattern in patterns:
        positions = [
            bisect_right(lengths, length) - 1 for length, copies in pattern for _ in range(copies)
        ]
        positions = [position for position in positions if position >= 0]
        if positions:
            substituted_patterns.append(pattern_of(lengths, positions))
    return substituted_patterns


def fix_whole_packs(
    items: Histogram, solution: Mapping[Pattern, float], min_share: float
) -> tuple[PatternCounts, Histogram]:
    """Make the packs from the whole parts of a solution.

    Args:
        items: items of the solution.
        solution: packs of each pattern, with fractions.
        min_share: minimum number of packs to make, as a share of the solution's packs. If the whole
            parts are fewer, the largest fractions are rounded up.

    Returns:
        The packs, at least one, and the items that are not in them.
    """
    requests = Counter(
        {pattern: int(packs + SOLVER_TOLERANCE) for pattern, packs in solution.items()}
    )
    num_missing = max(1, int(min_share * sum(solution.values()))) - requests.total()
    if num_missing > 0:
        by_fraction = sorted(
            solution, key=lambda pattern: (requests[pattern] - solution[pattern], pattern)
        )
        requests.update(by_fraction[:num_missing])
    requests = +requests  # without patterns of 0 packs
    packs = _fill_master_columns(items, requests)
    if not packs:  # a pattern may hold more items of a length than ``items``
        packs = _fill_master_columns(items, {next(iter(requests)): 1}, may_be_partial=True)
    assert packs, "rounding takes at least one pack"
    return packs, remaining(items, packs.items())


def _fill_master_columns(
    items: Histogram, requests: Mapping[Pattern, int], *, may_be_partial: bool = False
) -> PatternCounts:
    """Put real items into the places of the requested packs, by the substitution that the master
    problem allows.

    The items of a length have two parts: reserved items, for the places of their own length, and
    the remaining free items. A place without a reserved item gets the longest free item that is not
    longer. A pack with an empty place is not made, unless it ``may_be_partial``: its items remain.

    Args:
        items: items that may be used.
        requests: packs of each pattern.
        may_be_partial: also make packs with empty places.
    """
    num_places: Counter[int] = Counter()
    for pattern, packs in requests.items():
        for length, copies in pattern:
            num_places[length] += copies * packs
    reserved_counts = np.minimum(
        items.counts, [num_places[length] for length in items.lengths.tolist()]
    )
    reserved_items = _items_of(items.lengths, reserved_counts)
    free_items = _items_of(items.lengths, items.counts - reserved_counts)
    packs_made: PatternCounts = Counter()
    for pattern, num_requested in sorted(requests.items(), reverse=True):
        while num_requested:
            # The content of one pack, from both parts; nothing is removed yet.
            reserved_content: Counter[int] = Counter()
            free_content: Counter[int] = Counter()
            num_empty = 0
            for length, copies in pattern:
                num_reserved = min(copies, reserved_items.counts.get(length, 0))
                if num_reserved:
                    reserved_content[length] = num_reserved
                for _ in range(copies - num_reserved):
                    num_empty += free_items.add_longest(length, free_content, 1) == length
            if (num_empty and not may_be_partial) or not (reserved_content or free_content):
                break
            # The same content for all further packs for which both parts have items.
            packs = min(
                num_requested,
                reserved_items.num_packs(reserved_content),
                free_items.num_packs(free_content),
            )
            reserved_items.remove(reserved_content, packs)
            free_items.remove(free_content, packs)
            packs_made[tuple(sorted((reserved_content + free_content).items(), reverse=True))] += (
                packs
            )
            num_requested -= packs
    return packs_made


def _items_of(lengths: Int64Array, counts: Int64Array) -> RemainingItems:
    return RemainingItems(Histogram(lengths[counts > 0], counts[counts > 0]))

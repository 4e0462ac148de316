"""Whole packs from a solution in fractions of packs."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np

from brimful.plan.counts.histogram import Histogram
from brimful.plan.counts.patterns import Pattern, PatternCounts, pattern_of, remaining
from brimful.plan.counts.remaining_items import RemainingItems
from brimful.plan.optimal.column_generation import SOLVER_TOLERANCE
from brimful.typing import Int64Array


def substitute_lengths(patterns: Iterable[Pattern], items: Histogram) -> list[Pattern]:
    """Replace each length of the patterns by the longest length of the items that is not longer.

    >>> import numpy as np
    >>> substitute_lengths([((7, 1), (2, 1)), ((1, 2),)], Histogram.of(np.array([6, 2])))
    [((6, 1), (2, 1))]
    """
    lengths = items.lengths.tolist()
    substituted_patterns = []
    for pattern in patterns:
        positions = [bisect_right(lengths, length) - 1 for length, copies in pattern for _ in range(copies)]
        positions = [position for position in positions if position >= 0]
        if positions:
            substituted_patterns.append(pattern_of(lengths, positions))
    return substituted_patterns


def fix_whole_packs(
    items: Histogram, solution: Mapping[Pattern, float], min_share: float
) -> tuple[PatternCounts, Histogram]:
    """Make the packs of the whole parts of a solution.

    Args:
        items: of the solution.
        solution: packs of each pattern, with fractions.
        min_share: packs to make at least, as a share of the solution's packs. Where the whole parts are fewer, the
            largest fractions are rounded up.

    Returns:
        The packs, at least one, and the items that are in none of them.
    """
    requests = Counter({pattern: int(packs + SOLVER_TOLERANCE) for pattern, packs in solution.items()})
    num_missing = max(1, int(min_share * sum(solution.values()))) - requests.total()
    if num_missing > 0:
        by_fraction = sorted(solution, key=lambda pattern: (requests[pattern] - solution[pattern], pattern))
        requests.update(by_fraction[:num_missing])
    requests = +requests  # without patterns of 0 packs
    packs = _fill_master_columns(items, requests)
    if not packs:  # a pattern may hold more items of a length than there are
        packs = _fill_master_columns(items, {next(iter(requests)): 1}, may_be_partial=True)
    assert packs, "rounding takes at least one pack"
    return packs, remaining(items, packs.items())


def _fill_master_columns(
    items: Histogram, requests: Mapping[Pattern, int], *, may_be_partial: bool = False
) -> PatternCounts:
    """Put real items into the places of the requested packs, by the substitution that the master problem allows.

    The items of a length have two parts: the reserved ones, for the places of their own length, and the free ones
    beyond those. A place without a reserved item goes to the longest free item that is not longer. A pack with an empty
    place is not made, unless it ``may_be_partial``: its items stay with the remaining ones.

    Args:
        items: that may be used.
        requests: packs of each pattern.
        may_be_partial: make packs with empty places too.
    """
    num_places: Counter[int] = Counter()
    for pattern, packs in requests.items():
        for length, copies in pattern:
            num_places[length] += copies * packs
    reserved_counts = np.minimum(items.counts, [num_places[length] for length in items.lengths.tolist()])
    reserved_items = _items_of(items.lengths, reserved_counts)
    free_items = _items_of(items.lengths, items.counts - reserved_counts)
    packs_made: PatternCounts = Counter()
    for pattern, num_requested in sorted(requests.items(), reverse=True):
        while num_requested:
            # The content of one pack, from both parts; none of it is removed yet.
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
            # The same content for every further pack that both parts have items for.
            packs = min(num_requested, reserved_items.num_packs(reserved_content), free_items.num_packs(free_content))
            reserved_items.remove(reserved_content, packs)
            free_items.remove(free_content, packs)
            packs_made[tuple(sorted((reserved_content + free_content).items(), reverse=True))] += packs
            num_requested -= packs
    return packs_made


def _items_of(lengths: Int64Array, counts: Int64Array) -> RemainingItems:
    return RemainingItems(Histogram(lengths[counts > 0], counts[counts > 0]))

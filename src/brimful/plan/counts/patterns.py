"""Patterns: the content of a pack as counts of lengths, and the number of packs with this content."""

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from brimful.base.typing import Int64Array
from brimful.plan.counts.histogram import Histogram
from brimful.plan.counts.runs import PackRuns

Pattern: TypeAlias = tuple[tuple[int, int], ...]
"""``((length, copies), …)``, longest first, copies at least 1: the content of one pack."""

PatternCounts: TypeAlias = Counter[Pattern]
"""Number of packs of each pattern; ``total()`` is the number of all packs."""

PatternRun: TypeAlias = tuple[Pattern, int]
"""A pattern and the number of consecutive packs with this pattern."""


def load_of(pattern: Pattern) -> int:
    """Return the sum of the lengths in one pack.

    >>> load_of(((6, 1), (1, 2)))
    8
    """
    return sum(length * copies for length, copies in pattern)


def pattern_of(lengths: list[int], positions: Iterable[int]) -> Pattern:
    """Return the pattern of the lengths at these positions; a repeated position is one more copy.

    >>> pattern_of([1, 3, 6], [2, 0, 0])
    ((6, 1), (1, 2))
    """
    return tuple((lengths[position], copies) for position, copies in sorted(Counter(positions).items(), reverse=True))


def patterns_of(pack_runs: PackRuns) -> PatternCounts:
    """Count the packs of each pattern.

    >>> patterns_of(runs_of([(((3, 2), (1, 1)), 1), (((6, 1), (1, 1)), 5)])).most_common()
    [(((6, 1), (1, 1)), 5), (((3, 2), (1, 1)), 1)]
    """
    # Runs begin and end at few packs; all packs from one such boundary to the next hold the same items.
    changes: dict[int, list[tuple[int, int]]] = {}
    columns = (pack_runs.length, pack_runs.first_pack, pack_runs.packs_in_run, pack_runs.copies_per_pack)
    for length, first, packs, copies in zip(*(column.tolist() for column in columns), strict=True):
        changes.setdefault(first, []).append((length, copies))
        changes.setdefault(first + packs, []).append((length, -copies))
    content: Counter[int] = Counter()
    patterns: PatternCounts = Counter()
    for first, stop in pairwise(sorted(changes)):
        for length, copies in changes[first]:
            content[length] += copies
            if content[length] == 0:
                del content[length]
        if content:
            patterns[tuple(sorted(content.items(), reverse=True))] += stop - first
    return patterns


def runs_of(runs: Iterable[PatternRun]) -> PackRuns:
    """Return packs in the order of these runs of patterns.

    >>> runs_of([(((3, 2), (1, 1)), 1), (((6, 1),), 2)]).num_packs
    3
    """
    table: list[tuple[int, int, int, int, int]] = []
    first_pack = 0
    for pattern, packs in runs:
        items_before = 0
        for length, copies in pattern:
            table.append((length, first_pack, packs, copies, items_before))
            items_before += copies
        first_pack += packs
    # The longest items come first, equal ones by pack.
    table.sort(key=lambda row: (-row[0], row[1]))
    return PackRuns.of_table(table, first_pack)


def remaining(items: Histogram, runs: Iterable[PatternRun]) -> Histogram:
    """Return the items that are not in these packs; all items of the packs are among ``items``.

    >>> remaining(Histogram.of(np.array([6, 3, 1, 1])), [(((6, 1), (1, 1)), 1)])
    Histogram({1: 1, 3: 1})
    """
    num_remaining = dict(zip(items.lengths.tolist(), items.counts.tolist(), strict=True))
    for pattern, packs in runs:
        for length, copies in pattern:
            num_remaining[length] -= copies * packs
            assert num_remaining[length] >= 0, f"more items of length {length} in packs than in total"
    counts: Int64Array = np.fromiter(num_remaining.values(), dtype=np.int64, count=len(num_remaining))
    return Histogram(items.lengths[counts > 0], counts[counts > 0])

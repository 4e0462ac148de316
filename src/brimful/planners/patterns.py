"""Patterns: the content of a pack as counts of lengths, and the number of packs with this
content.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from brimful.base.typing import Float64Array, Int64Array
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
    return tuple(
        (lengths[position], copies)
        for position, copies in sorted(Counter(positions).items(), reverse=True)
    )


def patterns_of(pack_runs: PackRuns) -> PatternCounts:
    """Count the packs of each pattern.

    >>> patterns_of(runs_of([(((3, 2), (1, 1)), 1), (((6, 1), (1, 1)), 5)])).most_common()
    [(((6, 1), (1, 1)), 5), (((3, 2), (1, 1)), 1)]
    """
    # Runs begin and end at few packs; all packs from one such boundary to the next hold the same
    # items.
    changes: dict[int, list[tuple[int, int]]] = {}
    columns = (
        pack_runs.length,
        pack_runs.first_pack,
        pack_runs.packs_in_run,
        pack_runs.copies_per_pack,
    )
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
            assert num_remaining[length] >= 0, (
                f"more items of length {length} in packs than in total"
            )
    counts: Int64Array = np.fromiter(
        num_remaining.values(), dtype=np.int64, count=len(num_remaining)
    )
    return Histogram(items.lengths[counts > 0], counts[counts > 0])


class RemainingItems:
    """Counts of lengths, and three rules that choose among them.

    A rule adds items to ``content`` (copies of each length in the pack that is being made) and does
    not change the counts; ``remove`` takes the items, for any number of equal packs. A pack that is
    not accepted is discarded. Each rule adds at most ``max_items`` items and returns the remaining
    room.
    """

    def __init__(self, items: Histogram) -> None:
        self._all_lengths = items.lengths
        self.lengths: list[int] = items.lengths.tolist()
        """Lengths with items, ascending."""
        self.counts: dict[int, int] = dict(zip(self.lengths, items.counts.tolist(), strict=True))
        """Items of each length; 0 once they are used up."""
        self._rates: Float64Array | None = (
            None  # count / length of each of _all_lengths; None until the first use
        )

    def add_longest(self, room: int, content: dict[int, int], max_items: int) -> int:
        """Add the longest item that fits, again and again."""
        position = bisect_right(self.lengths, room) - 1
        while position >= 0 and max_items:
            room, max_items = self._add(self.lengths[position], room, content, max_items)
            position = bisect_right(self.lengths, room, 0, position) - 1
        return room

    def add_shortest(self, room: int, content: dict[int, int], max_items: int) -> int:
        """Add the shortest item, again and again."""
        for length in self.lengths:
            if length > room or not max_items:
                break
            room, max_items = self._add(length, room, content, max_items)
        return room

    def _add(
        self, length: int, room: int, content: dict[int, int], max_items: int
    ) -> tuple[int, int]:
        """Add as many items of one length as possible; return the room, and how many items may
        still follow.
        """
        copies = max(
            0, min(self.counts[length] - content.get(length, 0), room // length, max_items)
        )
        if copies:
            content[length] = content.get(length, 0) + copies
        return room - copies * length, max_items - copies

    def add_commonest(self, room: int, content: dict[int, int], max_items: int) -> int:
        """Add the item with the highest count / length, again and again; at equal values, the
        shortest.

        This is the item with the largest count · room / length, since the room is the same for all.
        Counts exclude the items of the content.
        """
        if self._rates is None:
            counts = np.array(
                [self.counts[length] for length in self._all_lengths.tolist()], dtype=np.int64
            )
            self._rates = np.asarray(counts / self._all_lengths, dtype=np.float64)
        # Between calls, rates match the counts; here they are lowered by the content, and restored
        # at the end.
        for length, copies in content.items():
            self._rate(length, self.counts[length] - copies)
        while max_items:
            rates = self._rates[: np.searchsorted(self._all_lengths, room, side="right")]
            position = int(rates.argmax()) if len(rates) else 0
            if not len(rates) or rates[position] <= 0:
                break
            length = int(self._all_lengths[position])
            content[length] = content.get(length, 0) + 1
            self._rate(length, self.counts[length] - content[length])
            room -= length
            max_items -= 1
        for length in content:
            self._rate(length, self.counts[length])
        return room

    def num_packs(self, content: Mapping[int, int]) -> int:
        """Return the number of packs of this content for which enough items remain."""
        return min(
            (self.counts[length] // copies for length, copies in content.items()), default=2**63 - 1
        )

    def remove(self, content: Mapping[int, int], num_packs: int) -> None:
        """Remove the items of this number of packs."""
        for length, copies in content.items():
            self.counts[length] -= copies * num_packs
            if self.counts[length] == 0:
                del self.lengths[bisect_left(self.lengths, length)]
            self._rate(length, self.counts[length])

    def _rate(self, length: int, count: int) -> None:
        if self._rates is not None:
            self._rates[np.searchsorted(self._all_lengths, length)] = count / length

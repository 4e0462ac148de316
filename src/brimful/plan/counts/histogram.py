"""Lengths as counts: the input of the decreasing algorithms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from brimful.base.compiling import compiled
from brimful.base.typing import AnyIntArray, Int64Array

DENSE_LENGTHS = 1 << 24
"""Lengths below this are counted in a table with an entry for each; longer ones are sorted."""


@dataclass(frozen=True)
class Histogram:
    """Distinct lengths with the number of items of each. The sum of the histograms of parts is the
    whole's histogram.

    Attributes:
        lengths: ``int64[d]``, ascending, each at least 1.
        counts: ``int64[d]``, each at least 1.

    >>> Histogram.of(np.array([3, 1, 3])) + Histogram.of(np.array([7, 1]))
    Histogram({1: 2, 3: 2, 7: 1})
    """

    lengths: Int64Array
    counts: Int64Array

    @classmethod
    def of(cls, lengths: AnyIntArray, *, at_most: int | None = None) -> Histogram:
        """Count the items of an array of lengths, each at least 1 and, if it is given, not longer
        than ``at_most``.
        """
        if len(lengths) == 0:
            return cls(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
        # A table that is longer than the array costs more than finding the longest item.
        longest = at_most if at_most is not None and at_most <= len(lengths) else int(lengths.max())
        if longest >= DENSE_LENGTHS:
            distinct, counts = np.unique(lengths, return_counts=True)
            return cls(distinct.astype(np.int64), counts.astype(np.int64))
        count = compiled(_count, len(lengths))
        if count is None:
            dense = np.bincount(lengths)
        else:
            dense = np.zeros(longest + 1, dtype=np.int64)
            count(lengths, dense)
        distinct = np.flatnonzero(dense)
        return cls(distinct, dense[distinct])

    @classmethod
    def of_counts(cls, lengths: AnyIntArray, counts: AnyIntArray) -> Histogram:
        """Make a histogram from lengths in any order, which may repeat, and the number of items of
        each entry.

        >>> Histogram.of_counts(np.array([4, 8, 4]), np.array([1, 2, 3]))
        Histogram({4: 4, 8: 2})
        """
        if int(lengths.max(initial=0)) >= DENSE_LENGTHS:
            distinct, entry = np.unique(lengths, return_inverse=True)
            sums = np.zeros(len(distinct), dtype=np.int64)
            np.add.at(sums, entry, counts)
            return cls(distinct.astype(np.int64, copy=False), sums)
        dense = np.bincount(lengths, weights=counts).astype(np.int64)  # sums are exact below 2**53
        distinct = np.flatnonzero(dense)
        return cls(distinct, dense[distinct])

    @classmethod
    def sum(cls, histograms: Sequence[Histogram]) -> Histogram:
        """Add up histograms, at least one.

        >>> Histogram.sum([Histogram.of(np.array([3, 1, 3])), Histogram.of(np.array([1]))])
        Histogram({1: 2, 3: 2})
        """
        return cls.of_counts(
            np.concatenate([histogram.lengths for histogram in histograms]),
            np.concatenate([histogram.counts for histogram in histograms]),
        )

    def __add__(self, other: Histogram) -> Histogram:
        return Histogram.sum([self, other])

    @property
    def num_items(self) -> int:
        """Number of items."""
        return int(self.counts.sum())

    @property
    def total(self) -> int:
        """Sum of all lengths."""
        return int((self.lengths * self.counts).sum())

    def __repr__(self) -> str:
        pairs = zip(self.lengths[:8], self.counts[:8], strict=True)
        text = ", ".join(f"{length}: {count}" for length, count in pairs)
        return f"Histogram({{{text}{', …' if len(self.lengths) > 8 else ''}}})"


def _count(lengths: AnyIntArray, counts: Int64Array) -> None:
    """Count each length in a table; to be compiled."""
    for length in lengths:
        counts[np.uint64(length)] += 1  # unsigned: a signed index costs a third more


def lower_bound(items: Histogram, *, capacity: int) -> int:
    """Return a lower bound on the number of packs of any plan of these items.

    The bound L2 of Martello and Toth (1990). For a threshold k up to half the capacity C, let

    * N1 be the items longer than C - k: no item of k or more tokens fits into their packs,
    * N2 the other items longer than C / 2: one pack each,
    * N3 the items from k to C / 2: they fill the room that N2 leaves, and the rest needs further
      packs.

    Then L(k) = |N1| + |N2| + max(0, ⌈(tokens(N3) - room left by N2) / C⌉), and the bound is the
    maximum over k, never below tokens ÷ C.

    >>> lower_bound(Histogram.of(np.array([5, 5, 5])), capacity=8)  # 15 would fit two packs of 8; three items do not
    3
    """
    counts = np.append(
        0, np.cumsum(items.counts)
    )  # number of items shorter than each length, and of all items
    totals = np.append(0, np.cumsum(items.lengths * items.counts))  # their tokens
    half = capacity // 2
    # The bound changes only at thresholds that are lengths.
    up_to_half = int(np.searchsorted(items.lengths, half, side="right"))
    threshold = np.concatenate([[0], items.lengths[:up_to_half]])
    below = np.arange(-1, up_to_half)
    below[0] = 0
    # Searching in ascending order is several times as fast: each search begins at the result of the
    # previous one.
    up_to_large = np.searchsorted(items.lengths, (capacity - threshold)[::-1], side="right")[::-1]
    num_alone = counts[-1] - counts[up_to_large]
    num_large = counts[up_to_large] - counts[up_to_half]
    room_beside_large = num_large * capacity - (totals[up_to_large] - totals[up_to_half])
    small_tokens = totals[up_to_half] - totals[below]
    num_small = np.maximum(0, -((room_beside_large - small_tokens) // capacity))
    return int((num_alone + num_large + num_small).max())

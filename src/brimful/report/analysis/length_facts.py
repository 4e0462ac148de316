"""Lengths in numbers: bins of histograms, percentiles, and facts of all samples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from brimful.base.fingerprint import short
from brimful.base.ragged import offsets_of
from brimful.base.typing import AnyIntArray, Int64Array
from brimful.base.wording import counted
from brimful.lengths.table import LengthTable
from brimful.plan.counts.histogram import Histogram


@dataclass(frozen=True)
class Bin:
    """Items from ``begin`` to ``end - 1``: their number and their sum."""

    begin: int
    end: int
    number: int
    total: int

    def describe(self, noun: str) -> str:
        """Describe the values of the bin: ``1 token``, ``4 tokens`` or ``4 … 7 tokens``."""
        is_single = self.end - self.begin == 1
        return counted(self.begin, noun) if is_single else f"{self.begin:,} … {self.end - 1:,} {noun}s"


def count_bins(items: Histogram, edges: AnyIntArray) -> list[Bin]:
    """Count the items in each bin; edges must cover them all.

    >>> count_bins(Histogram.of(np.array([1, 2, 3, 7])), np.array([1, 2, 4, 8]))
    [Bin(begin=1, end=2, number=1, total=1), Bin(begin=2, end=4, number=2, total=5), Bin(begin=4, end=8, number=1, total=7)]
    """
    # Items below an edge are a prefix of the sorted lengths: differences of running sums count a bin.
    indices = np.searchsorted(items.lengths, edges)
    numbers = np.diff(offsets_of(items.counts)[indices])
    totals = np.diff(offsets_of(items.lengths * items.counts)[indices])
    return [Bin(*map(int, row)) for row in zip(edges[:-1], edges[1:], numbers, totals, strict=True)]


def ratio_edges(minimum: int, maximum: int, per_octave: int = 2) -> Int64Array:
    """Return whole numbers that rise by a constant ratio and cover the range.

    The first is a power of two at or below ``minimum``, the last one above ``maximum``.

    >>> ratio_edges(3, 9).tolist()
    [2, 3, 4, 6, 8, 11, 16]
    """
    # Rounding makes small edges equal: unique removes them.
    octaves = np.arange(per_octave * (minimum.bit_length() - 1), per_octave * maximum.bit_length() + 1) / per_octave
    edges: Int64Array = np.unique(np.rint(2.0**octaves).astype(np.int64))
    return edges


def step_edges(minimum: int, maximum: int, max_bins: int = 30) -> Int64Array:
    """Return whole numbers that rise by a constant step and cover the range in ``max_bins`` bins or fewer.

    >>> step_edges(3, 9).tolist()
    [3, 4, 5, 6, 7, 8, 9, 10]
    """
    step = -(-(maximum + 1 - minimum) // max_bins)
    begin = minimum // step * step
    return np.arange(begin, maximum + step + 1, step, dtype=np.int64)


def percentiles(items: Histogram, marks: tuple[float, ...]) -> list[int]:
    """Return the item that each percentage of the items does not exceed.

    >>> percentiles(Histogram.of(np.array([1, 2, 3, 7])), (0, 50, 100))
    [1, 2, 7]
    """
    cumulative = np.cumsum(items.counts)
    # The mark 0 means the smallest item, whose rank is 1.
    ranks = np.maximum(1, np.ceil(np.asarray(marks) / 100 * cumulative[-1]))
    return [int(length) for length in items.lengths[np.searchsorted(cumulative, ranks)]]


@dataclass(frozen=True)
class LengthFacts:
    """Lengths of samples, or of the segments of a plan without its length table.

    Attributes:
        of: ``samples`` or ``segments``.
        number: of them.
        tokens: of all together.
        mean, shortest, p5, median, p95, p99, longest: tokens.
        fingerprint: of the table, short; None without one.
        classes: bins of equal ratios.
    """

    of: str
    number: int
    tokens: int
    mean: float
    shortest: int
    p5: int
    median: int
    p95: int
    p99: int
    longest: int
    fingerprint: str | None
    classes: list[Bin]

    @classmethod
    def of_items(cls, items: Histogram, table: LengthTable | None) -> LengthFacts | None:
        """Summarize lengths; None without items."""
        if not items.num_items:
            return None
        names = {"shortest": 0, "p5": 5, "median": 50, "p95": 95, "p99": 99, "longest": 100}
        marks = dict(zip(names, percentiles(items, tuple(names.values())), strict=True))
        return cls(
            of="segments" if table is None else "samples",
            number=items.num_items,
            tokens=items.total,
            mean=items.total / items.num_items,
            **marks,
            fingerprint=None if table is None else short(table.fingerprint),
            classes=count_bins(items, ratio_edges(marks["shortest"], marks["longest"])),
        )

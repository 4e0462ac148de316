"""Numbers put into classes, for histograms: in equal steps, or in equal ratios for a logarithmic axis."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from brimful.plan.counts.histogram import Histogram
from brimful.typing import AnyIntArray, Int64Array

__all__ = ["Class", "classify", "percentiles", "ratio_edges", "step_edges"]


@dataclass(frozen=True)
class Class:
    """The items from ``begin`` to ``end - 1``: how many, and their sum."""

    begin: int
    end: int
    number: int
    total: int


def classify(items: Histogram, edges: AnyIntArray) -> list[Class]:
    """Items by class; edges must cover them all.

    >>> classify(Histogram.of(np.array([1, 2, 3, 7])), np.array([1, 2, 4, 8]))
    [Class(begin=1, end=2, number=1, total=1), Class(begin=2, end=4, number=2, total=5), Class(begin=4, end=8, number=1, total=7)]
    """
    at = np.searchsorted(items.lengths, edges)
    number = np.concatenate([[0], np.cumsum(items.counts)])[at]
    total = np.concatenate([[0], np.cumsum(items.lengths * items.counts)])[at]
    columns = (edges[:-1], edges[1:], np.diff(number), np.diff(total))
    return [Class(*map(int, row)) for row in zip(*columns, strict=True)]


def ratio_edges(least: int, most: int, per_octave: int = 2) -> Int64Array:
    """Whole numbers that rise by a constant ratio, from a power of two at or below ``least`` to one above ``most``.

    >>> ratio_edges(3, 9).tolist()
    [2, 3, 4, 6, 8, 11, 16]
    """
    octaves = np.arange(per_octave * (least.bit_length() - 1), per_octave * most.bit_length() + 1) / per_octave
    edges: Int64Array = np.unique(np.rint(2.0**octaves).astype(np.int64))
    return edges


def step_edges(least: int, most: int, classes: int = 40) -> Int64Array:
    """Whole numbers that rise by a constant step, of at most so many classes.

    >>> step_edges(3, 9).tolist()
    [3, 4, 5, 6, 7, 8, 9, 10]
    """
    step = -(-(most + 1 - least) // classes)
    begin = least // step * step
    return np.arange(begin, most + step + 1, step, dtype=np.int64)


def percentiles(items: Histogram, marks: tuple[float, ...]) -> list[int]:
    """The item that so many percent of the items do not exceed.

    >>> percentiles(Histogram.of(np.array([1, 2, 3, 7])), (0, 50, 100))
    [1, 2, 7]
    """
    upto = np.cumsum(items.counts)
    wanted = np.maximum(1, np.ceil(np.asarray(marks) / 100 * upto[-1]))
    return [int(length) for length in items.lengths[np.searchsorted(upto, wanted)]]

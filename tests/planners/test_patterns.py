"""Patterns counted from packs, and packs made of patterns."""

import numpy as np

from brimful.plan.counts.counting_sort import decreasing_order
from brimful.plan.counts.histogram import Histogram
from brimful.plan.fit.best_fit_decreasing import best_fit_decreasing
from brimful.planners.patterns import patterns_of


def test_packs_hold_their_patterns():
    """The way back: patterns counted from the packs equal the runs'."""
    lengths = np.random.default_rng(1).integers(1, 50, 5_000).astype(np.int32)
    runs = best_fit_decreasing(Histogram.of(lengths), capacity=100)
    patterns = {}
    for pack in runs.assign(decreasing_order(lengths)).as_lists():
        distinct, copies = np.unique(lengths[pack], return_counts=True)
        pattern = tuple(sorted(zip(distinct.tolist(), copies.tolist(), strict=True), reverse=True))
        patterns[pattern] = patterns.get(pattern, 0) + 1
    assert patterns == patterns_of(runs)

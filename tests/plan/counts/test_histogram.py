"""Counts of lengths, of one machine and of many."""

import numpy as np

from brimful.plan.counts.histogram import Histogram, lower_bound
from brimful.plan.fit.best_fit_decreasing import best_fit_decreasing
from brimful.planners.patterns import patterns_of, remaining


def test_a_billion_samples_by_the_counts_of_many_machines():
    """No machine has all lengths: each sends its counts, the sum is planned, and each names its own samples later."""
    rng = np.random.default_rng(0)
    parts = []
    for _ in range(64):
        lengths, counts = np.unique(np.clip(rng.lognormal(6, 1, 20_000), 1, 8192).astype(np.int64), return_counts=True)
        parts.append(Histogram(lengths, counts * 800))
    whole = sum(parts, start=Histogram(np.empty(0, np.int64), np.empty(0, np.int64)))
    assert whole.num_items == 64 * 20_000 * 800 > 1_000_000_000
    runs = best_fit_decreasing(whole, capacity=8192)
    assert not len(remaining(whole, patterns_of(runs).items()).lengths)
    for pattern in patterns_of(runs):
        assert sum(length * copies for length, copies in pattern) <= 8192
    bound = lower_bound(whole, capacity=8192)
    assert bound <= runs.num_packs <= bound * 1.001
    # In whichever order the counts arrive:
    again = best_fit_decreasing(sum(reversed(parts), start=parts[0].of(np.empty(0, np.int64))), capacity=8192)
    assert [run.tolist() for run in (again.length, again.packs_in_run, again.copies_per_pack)] == [
        run.tolist() for run in (runs.length, runs.packs_in_run, runs.copies_per_pack)
    ]

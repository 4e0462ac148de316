"""The last phase: all remaining items are in packs."""

import numpy as np
from hypothesis import given

from brimful.plan.counts.histogram import Histogram
from brimful.plan.fit.best_fit_decreasing import best_fit_decreasing
from brimful.planners.patterns import patterns_of
from brimful.planners.phased import (
    Finish,
)
from brimful.testing.strategies import capacities_and_lengths
from tests.planners.phased.instances import histogram, one_by_one


def test_finish_by_hand():
    """Best fit decreasing; with min_fill, a seed of 2 finds the 6 and the other 2 before the 3 takes the 6."""
    items = histogram({6: 1, 3: 1, 2: 2})
    assert one_by_one(Finish().place(items, capacity=10)) == [(6, 3), (2, 2)]
    assert one_by_one(Finish(min_fill=1).place(items, capacity=10)) == [(6, 2, 2), (3,)]
    assert one_by_one(Finish(min_fill=1, every=2).place(items, capacity=10)) == [(6, 2, 2), (3,)]
    assert one_by_one(Finish(min_fill=1, every=2, last=1).place(items, capacity=10)) == [(6, 3), (2, 2)]


def test_finish_takes_so_many_seeds_of_a_length():
    """Two seeds of 2, each with a 6; a third would leave 3 3 3 alone."""
    items = histogram({6: 3, 3: 3, 2: 6})
    placed = Finish(min_fill=1, every=3, seeds_per_length=2).place(items, capacity=10)
    assert one_by_one(placed) == [(6, 2, 2)] * 2 + [(6, 3), (3, 3, 2, 2)]
    placed = Finish(min_fill=1, every=3, seeds_per_length=3).place(items, capacity=10)
    assert one_by_one(placed) == [(6, 2, 2)] * 3 + [(3, 3, 3)]


def test_finish_takes_the_longest_seeds_first():
    """The other way round, the 2 would take the 6 away from the 4."""
    assert one_by_one(Finish(min_fill=1).place(histogram({6: 1, 4: 1, 2: 2}), capacity=10)) == [(6, 4), (2, 2)]


@given(capacities_and_lengths())
def test_finish_is_best_fit_decreasing(case):
    """Without min_fill, the same packs."""
    capacity, lengths = case
    items = Histogram.of(np.array(lengths))
    expected = patterns_of(best_fit_decreasing(items, capacity=capacity))
    assert dict(Finish().place(items, capacity=capacity).packs) == expected

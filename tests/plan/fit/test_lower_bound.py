"""The lower bound on the number of packs."""

import numpy as np
from hypothesis import given

from brimful.plan.counts.histogram import Histogram, lower_bound
from brimful.testing.strategies import capacities_and_lengths


def test_lower_bound_knows_more_than_the_sum():
    """Three items over half a pack need three packs, though their sum would fit two."""
    assert lower_bound(Histogram.of(np.array([5, 5, 5])), capacity=8) == 3
    assert lower_bound(Histogram.of(np.array([2, 2, 2])), capacity=8) == 1
    # 6 6 leave room 2 each beside them, 3 3 fit together: Martello and Toth's bound sees it with threshold 3.
    assert lower_bound(Histogram.of(np.array([6, 6, 3, 3, 3])), capacity=8) == 4


@given(case=capacities_and_lengths(max_samples=30))
def test_the_bound_is_its_formula_at_every_threshold(case):
    """Thresholds are searched for together: one that is passed over gives a bound that is too low."""
    capacity, lengths = case
    bounds = [-(-sum(lengths) // capacity)]
    for threshold in range(capacity // 2 + 1):
        alone = [length for length in lengths if length > capacity - threshold]
        large = [length for length in lengths if capacity // 2 < length <= capacity - threshold]
        small = [length for length in lengths if threshold <= length <= capacity // 2]
        further = -(-(sum(small) - (len(large) * capacity - sum(large))) // capacity)
        bounds.append(len(alone) + len(large) + max(0, further))
    assert lower_bound(Histogram.of(np.array(lengths, dtype=np.int64)), capacity=capacity) == max(bounds)

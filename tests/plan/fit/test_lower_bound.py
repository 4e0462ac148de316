"""The lower bound on the number of packs."""

import numpy as np

from brimful.plan.counts.histogram import Histogram
from brimful.plan.fit.lower_bound import lower_bound


def test_lower_bound_knows_more_than_the_sum():
    """Three items over half a pack need three packs, though their sum would fit two."""
    assert lower_bound(Histogram.of(np.array([5, 5, 5])), capacity=8) == 3
    assert lower_bound(Histogram.of(np.array([2, 2, 2])), capacity=8) == 1
    # 6 6 leave room 2 each beside them, 3 3 fit together: Martello and Toth's bound sees it with threshold 3.
    assert lower_bound(Histogram.of(np.array([6, 6, 3, 3, 3])), capacity=8) == 4

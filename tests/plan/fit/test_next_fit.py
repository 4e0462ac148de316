"""Next fit on traces of existing packers."""

import numpy as np
import pytest

from brimful import plan_packs
from brimful.errors import OversizedSampleError
from brimful.plan.fit.any_fit import next_fit
from tests.plan.contents import ids_of, lengths_of


def test_sequential_trace(form):
    """Next fit on the trace of an existing packer; the sample of 120 is reported, never packed over-full."""
    lengths = [60, 50, 40, 100, 30, 30, 30, 30, 120, 10]
    plan = plan_packs(lengths, capacity=100, algorithm="next_fit", overflow="drop")
    assert ids_of(plan) == [[0], [1, 2], [3], [4, 5, 6], [7, 9]]
    assert plan.dropped_ids.tolist() == [8]
    assert next_fit(np.delete(lengths, 8), capacity=100).as_lists() == [[0], [1, 2], [3], [4, 5, 6], [7, 8]]


def test_sequential_packs_and_a_sample_over_the_capacity():
    """ms-swift's own trace; the sample of 120 became an over-full pack there, and here it is refused by name."""
    lengths = [60, 50, 40, 100, 30, 30, 30, 30, 120, 10]
    with pytest.raises(OversizedSampleError, match=r"sample 8 \(120\)"):
        plan_packs(lengths, capacity=100, algorithm="sequential")
    plan = plan_packs(lengths, capacity=100, algorithm="sequential", overflow="drop")
    assert lengths_of(plan) == [[60], [50, 40], [100], [30, 30, 30], [30, 10]]
    assert plan.dropped_ids.tolist() == [8]

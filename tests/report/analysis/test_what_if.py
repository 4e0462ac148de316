"""Other capacities: what the sweep says of each is what planning at it would give."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful import plan_packs
from brimful.plan import Alignment
from brimful.plan.counts.histogram import Histogram
from brimful.report.analysis.what_if import sweep_capacities
from brimful.testing.strategies import capacities_and_lengths


@given(
    case=capacities_and_lengths(),
    alignment=st.sampled_from([Alignment(), Alignment(2), Alignment(3, 6), Alignment(1, 4)]),
)
def test_the_sweep_is_what_planning_would_give(case, alignment):
    """A table that counted without the padding would show packs that cannot be planned."""
    capacity, lengths = case
    if capacity < alignment.total:
        assert (
            sweep_capacities(Histogram.of(np.array(lengths)), [capacity], alignment=alignment, packs_per_step=1) == []
        )
        return
    plan = plan_packs(lengths, capacity=capacity, alignment=alignment, algorithm="best_fit_decreasing", overflow="drop")
    points = sweep_capacities(Histogram.of(np.array(lengths)), [capacity], alignment=alignment, packs_per_step=1)
    if not plan.num_packs:
        assert points == []
        return
    (point,) = points
    assert (point.num_packs, point.oversized) == (plan.num_packs, plan.ledger.samples_dropped)
    assert point.fill_ratio == pytest.approx(plan.fill_ratio)

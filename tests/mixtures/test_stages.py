"""Schedules of weights and capacity, cut into stages."""

import numpy as np
import pytest

from brimful.errors import SettingsError
from brimful.mixtures import consumed_samples, mixture_stages
from brimful.plan import plan_packs


def test_weights_are_linear_and_capacities_cut_stages():
    """Six steps: shares of a fall from 1 to 0; packs double at step 4."""
    stages = mixture_stages(
        [(0, {"a": 2, "b": 0}), (4, {"a": 0, "b": 5})], num_steps=6, steps_per_stage=3, capacities=[(0, 8), (4, 16)]
    )
    assert [(stage.first_step, stage.num_steps, stage.weights["a"], stage.capacity) for stage in stages] == [
        (0, 3, pytest.approx(0.75), 8),
        (3, 1, pytest.approx(0.25), 8),
        (4, 2, 0.0, 16),
    ]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([(1, {"a": 1})], "must ascend from 0"),
        ([(0, {"a": 1}), (0, {"a": 2})], "must ascend from 0"),
        ([(0, {"a": 1}), (5, {"b": 2})], "step 5 are for b, and for a at step 0"),
        ([(0, {"a": 0})], "weights of step 0 must be"),
    ],
)
def test_schedules_that_say_nothing_are_refused(weights, message):
    """Without it a source vanishes between two points."""
    with pytest.raises(SettingsError, match=message):
        mixture_stages(weights, num_steps=6, steps_per_stage=3)


def test_a_split_sample_is_consumed_with_any_of_its_parts():
    """Without it half a sample comes again."""
    plan = plan_packs([2, 8], capacity=5, overflow="split", algorithm="next_fit")
    assert plan.sample_ids.tolist() == [0, 1, 1]
    assert consumed_samples(plan, [2], before=np.array([5, 0])).tolist() == [5, 1]

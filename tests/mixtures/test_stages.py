"""Schedules of weights and capacity, cut into stages."""

import numpy as np
import pytest

from brimful.errors import SettingsError
from brimful.mixtures import Mixture, consumed_samples, draws, mixture_stages, plan_stages
from brimful.plan import PlanSettings, plan_packs
from tests.plan.frozen import digest_of


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
        ([], "steps of weights must ascend from 0"),
        ([(1, {"a": 1})], "must ascend from 0"),
        ([(-1, {"a": 1})], "must ascend from 0"),
        ([(0, {"a": 1}), (3, {"a": 2}), (2, {"a": 1})], "must ascend from 0"),
        ([(0, {"a": 1}), (0, {"a": 2})], "must ascend from 0"),
        ([(0, {"a": 1}), (5, {"b": 2})], "step 5 are for b, and for a at step 0"),
        ([(0, {"a": 0})], "weights of step 0 must be"),
        ([(0, {"a": 2, "b": -1})], "weights of step 0 must be"),
    ],
)
def test_schedules_that_say_nothing_are_refused(weights, message):
    """Without it a source vanishes between two points."""
    with pytest.raises(SettingsError, match=message):
        mixture_stages(weights, num_steps=6, steps_per_stage=3)


@pytest.mark.parametrize("wrong", [{"num_steps": 0}, {"steps_per_stage": 0}, {"capacities": [(2, 8)]}])
def test_stages_of_no_step_are_refused(wrong):
    """The first capacity is that of the first step: before it there would be none."""
    with pytest.raises(SettingsError):
        mixture_stages([(0, {"a": 1})], **{"num_steps": 1, "steps_per_stage": 1, **wrong})


def test_a_split_sample_is_consumed_with_any_of_its_parts():
    """Without it half a sample comes again."""
    plan = plan_packs([2, 8], capacity=5, overflow="split", algorithm="next_fit")
    assert plan.sample_ids.tolist() == [0, 1, 1]
    assert consumed_samples(plan, [2], before=np.array([5, 0])).tolist() == [5, 1]


def _random_stages(chance):
    """A schedule of weights and capacities, its stages and their plans, and what is consumed in some packs of the last."""
    names = "abc"[: chance.number(1, 4)]
    points = lambda: [0, *sorted(set(chance.numbers(1, 12, chance.number(3)).tolist()))]  # noqa: E731
    weights = [(step, {name: chance.of(0, 1, 3) for name in names} | {"a": chance.of(1, 2)}) for step in points()]
    capacities = [(step, chance.of(4, 8, 16)) for step in points()]
    stages = mixture_stages(
        weights,
        num_steps=chance.number(1, 11),
        steps_per_stage=chance.number(1, 5),
        capacities=chance.of([], capacities),
    )
    sources = {name: chance.number(5, 60) for name in names}
    lengths = chance.numbers(1, 5, sum(sources.values()))
    mixture = Mixture(weights=dict.fromkeys(names, 1), **chance.of({}, {"unit": "tokens"}))
    settings = PlanSettings(capacity=6, draw=mixture, epoch=chance.number(2), algorithm="best_fit_decreasing")
    uses = chance.of(None, chance.numbers(0, 2, len(lengths)))
    plans = plan_stages(lengths, settings, stages, packs_per_step=chance.number(1, 4), sources=sources, uses=uses)
    served = chance.numbers(-1, plans[-1].num_packs, chance.number(4))
    return [
        [[stage.first_step, stage.num_steps, stage.capacity, sorted(stage.weights.items())] for stage in stages],
        *([plan.fingerprint, plan.capacity, plan.settings.epoch] for plan in plans),
        consumed_samples(plans[-1], served, uses).tolist(),
    ]


def test_random_stages_are_what_they_were(monkeypatch):
    """A stage that begins one step or one sample later is a stage too, and goes on from other counts."""
    monkeypatch.setattr(draws, "_LEAST_REFILL", 8)
    assert digest_of(_random_stages, 100) == "9e9d3181a9e9fb82"

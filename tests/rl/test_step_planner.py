"""``plan_step``: the laws of a step, on six lengths and on thousands of random steps."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful import CostModel, LengthTable
from brimful.base import compiling
from brimful.errors import InvalidLengthsError, OversizedSampleError, SettingsError
from brimful.plan.fit.best_fit_decreasing import place_decreasing
from brimful.plan.schedule import imbalance
from brimful.rl import fill_bins as fill
from brimful.rl import plan_step, warm_up
from brimful.rl.step_plan import StepPlan
from brimful.testing.strategies import capacities_and_lengths
from tests.plan.forms import use
from tests.rl.laws import check_step, plan_or_refuse, random_step

SIX = [3, 3, 5, 6, 1, 1]
QUADRATIC = CostModel(linear=24576, quadratic=1, tile=1)


def lognormal(samples, seed, *, median=2500, largest=32768):
    return np.clip(np.random.default_rng(seed).lognormal(np.log(median), 1, samples), 64, largest).astype(np.int64)


def rows(step):
    return [[positions.tolist() for positions in step.micro_batches(rank)] for rank in range(step.dp_world_size)]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [[[3], [1]], [[2, 4], [0, 5]]]),
        ({"barrier": "step"}, [[[1, 3], []], [[], []]]),
    ],
    ids=["micro_batch", "step"],
)
def test_six_lengths(settings, expected):
    """19 tokens in micro-batches of 7 need three, and two ranks are equal at four."""
    step = plan_step(SIX, capacity=7, dp_world_size=2, **settings)
    check_step(step, SIX, capacity=7, ranks=2)
    if not settings:
        assert rows(step) == expected
    assert step.num_micro_batches == 2


@pytest.mark.parametrize("form", ["compiled", "plain"])
@given(case=capacities_and_lengths(max_samples=60), ranks=st.integers(1, 5), data=st.data())
def test_laws_hold_or_the_step_is_refused(form, case, ranks, data):
    """A micro-batch above its budget is memory that is not there; one too few on a rank is a job that hangs."""
    capacity, lengths = case
    lengths = np.array(lengths, dtype=np.int64)
    if not len(lengths):
        return
    settings = {"capacity": capacity, "multiple_of": data.draw(st.sampled_from([1, 1, 2, 3]))}
    if data.draw(st.booleans()):
        settings["groups"] = data.draw(st.lists(st.integers(-1, 6), min_size=len(lengths), max_size=len(lengths)))
        settings["groups_share"] = data.draw(st.sampled_from(["rank", "micro_batch"]))
    if data.draw(st.integers(0, 3)) == 0:
        settings["budgets"] = {"samples": data.draw(st.integers(1, 6))}
    settings["barrier"] = data.draw(st.sampled_from(["micro_batch", "step"]))
    with pytest.MonkeyPatch.context() as monkeypatch:
        use(form, monkeypatch)
        outcome = plan_or_refuse(lengths, ranks, settings)
    assert isinstance(outcome, StepPlan) or len(outcome) == 1


def sweep(seeds):
    outcomes = [plan_or_refuse(*random_step(np.random.default_rng([18, seed]))) for seed in seeds]
    plans = [outcome for outcome in outcomes if isinstance(outcome, StepPlan)]
    assert all(len(outcome) == 1 for outcome in outcomes if not isinstance(outcome, StepPlan)), "more than one line"
    assert 0.5 < len(plans) / len(outcomes) < 1, "the sweep proves little, or refuses nothing"


def test_random_steps():
    """The first of the ten thousand below."""
    sweep(range(300))


@pytest.mark.chaos
def test_ten_thousand_random_steps():
    """Rare corners: all samples large, groups of half a rank, budgets that bind one by one."""
    sweep(range(10_000))


@pytest.mark.parametrize("barrier", ["micro_batch", "step"])
@pytest.mark.parametrize("budgets", [None, {"samples": 40}], ids=["tokens", "budgets"])
def test_both_forms_plan_the_same(barrier, budgets):
    """Ranks with and without numba would otherwise wait for each other for ever."""
    lengths = lognormal(700, 3)
    found = []
    for form in ("compiled", "plain"):
        with pytest.MonkeyPatch.context() as monkeypatch:
            use(form, monkeypatch)
            step = plan_step(lengths, capacity=32768, dp_world_size=8, cost=QUADRATIC, barrier=barrier, budgets=budgets)
            found.append(step)
    assert found[0].fingerprint == found[1].fingerprint
    assert rows(found[0]) == rows(found[1])


@pytest.mark.parametrize(
    ("samples", "ranks", "most"),
    [(1024, 8, 1.036), (4096, 64, 1.062), (16384, 64, 1.024)],
)
def test_ranks_wait_no_longer_than_the_best_of_others(samples, ranks, most):
    """Σ of the slowest ÷ ideal, on lengths as rollouts have them; and 1.01 where ranks meet once a step."""
    lengths = lognormal(samples, 1)
    step = plan_step(lengths, capacity=32768, dp_world_size=ranks, cost=QUADRATIC)
    assert step.imbalance() <= most
    schedule = np.arange(step.costs.size).reshape(1, ranks, step.num_micro_batches, 1)
    assert step.imbalance() == pytest.approx(float(imbalance(schedule, step.costs.reshape(-1))[0]))
    once = plan_step(lengths, capacity=32768, dp_world_size=ranks, cost=QUADRATIC, barrier="step")
    assert once.imbalance("step") <= 1.01
    assert once.num_micro_batches == step.num_micro_batches == -(-int(lengths.sum()) // (32768 * ranks))


def test_a_count_is_rounded_up_by_splitting():
    """Pipeline stages want a multiple; a dummy would cost as much as a micro-batch with samples."""
    lengths = [4] * 12
    for multiple, expected in ((1, 3), (2, 4), (4, 4), (6, 6)):
        step = plan_step(lengths, capacity=8, dp_world_size=2, multiple_of=multiple)
        assert step.num_micro_batches == expected
        check_step(step, lengths, capacity=8, ranks=2, multiple_of=multiple)
    assert plan_step(lengths, capacity=8, dp_world_size=2, min_micro_batches=5).num_micro_batches == 5


def test_nearly_full_micro_batches_are_found():
    """Least load first leaves no room for the last 3; a plan of the data set packs them, and so must a step."""
    lengths = [5, 5, 4, 4, 3, 3, 6, 6]
    step = plan_step(lengths, capacity=9, dp_world_size=2)
    assert step.num_micro_batches == 2
    check_step(step, lengths, capacity=9, ranks=2)


def test_a_column_of_the_table_is_a_budget():
    table = LengthTable.from_lengths([4, 4, 4, 4], patches=[9, 1, 9, 1])
    step = plan_step(table, capacity=16, dp_world_size=1, budgets={"patches": 10})
    assert sorted(map(sorted, rows(step)[0])) == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("lengths", "settings", "error", "words"),
    [
        ([], {}, InvalidLengthsError, "no lengths: nothing"),
        ([3, 0], {}, InvalidLengthsError, "sample 1 has length 0"),
        ([3], {}, InvalidLengthsError, "1 sample cannot fill 2 ranks of 1 micro-batches"),
        ([8, 8, 8], {}, InvalidLengthsError, "3 samples cannot fill 2 ranks of 2"),
        ([3, 3], {"multiple_of": 4}, InvalidLengthsError, "or multiple_of=1"),
        ([3, 9], {}, OversizedSampleError, r"1 of 2 samples are longer than the capacity of 8 tokens: sample 1 \(9\)"),
        ([5, 5, 1], {"groups": [0, 0, 1], "groups_share": "micro_batch"}, OversizedSampleError, 'groups_share="rank"'),
        ([5, 5], {"groups": [0, 0]}, InvalidLengthsError, "1 group cannot give each of 2 ranks one"),
        ([8, 8, 8, 1], {"groups": [0, 0, 0, 1]}, InvalidLengthsError, "room for group 0 of 3 samples"),
        ([3, 3], {"budgets": {"patches": 4}}, SettingsError, "patches"),
        ([3, 3], {"cost": [1.0]}, SettingsError, "one number for each of 2 samples"),
        ([3, 3], {"cost": [1.0, float("nan")]}, SettingsError, "nan"),
        ([3, 3], {"loss_tokens": [1, 4]}, InvalidLengthsError, "sample 1 has 4 targets in 3 tokens"),
        ([3, 3], {"barrier": "layer"}, SettingsError, "micro_batch, step"),
        ([3, 3], {"capacity": 0}, SettingsError, "capacity must be from 1 to 2,147,483,647"),
        ([3, 3], {"capacity": 2**31}, SettingsError, "capacity must be from 1 to 2,147,483,647"),
        ([3, 3], {"multiple_of": 0}, SettingsError, "multiple_of must be a whole number of at least 1"),
        ([3, 3], {"dp_world_size": 0}, SettingsError, "dp_world_size must be a whole number of at least 1"),
        ([3, 3], {"min_micro_batches": 0}, SettingsError, "min_micro_batches must be a whole number of at least 1"),
        ([3, 3], {"loss_tokens": [-1, 3]}, InvalidLengthsError, "sample 0 has -1 targets in 3 tokens|at least 0"),
        ([3, 3], {"loss_tokens": [1]}, InvalidLengthsError, "one number for each of 2 samples and are 1"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(lengths, settings, error, words):
    with pytest.raises(error, match=words):
        plan_step(lengths, **{"capacity": 8, "dp_world_size": 2, **settings})


def test_the_largest_and_the_smallest_numbers_are_allowed():
    """A whole sequence of two thousand million tokens, one token, a sample that is target from end to end, or not at all."""
    assert plan_step([1, 2**31 - 1], capacity=2**31 - 1, dp_world_size=2).tokens.tolist() == [[2**31 - 1], [1]]
    step = plan_step([1, 1], capacity=1, dp_world_size=1, loss_tokens=[0, 1])
    assert (step.tokens.tolist(), step.loss_tokens.tolist()) == ([[1, 1]], [0, 1])


def test_names_of_trainers_are_understood():
    settings: dict[str, Any] = {"max_tokens_per_gpu": 8, "dp_world_size": 2}
    assert plan_step([3, 3], **settings).capacity == 8


@pytest.mark.parametrize("size", [2, 8, 16])
def test_ranks_of_groups_are_equal_where_they_wait_once(size):
    """By cost below the room for tokens alone, ranks with groups were up to a tenth apart."""
    lengths = lognormal(2048, seed=0)
    step = plan_step(
        lengths, capacity=32768, dp_world_size=16, cost=QUADRATIC, barrier="step", groups=np.arange(2048) // size
    )
    assert step.imbalance("step") <= 1.005


@pytest.mark.long  # in a fresh clone: every loop of steps is compiled
def test_small_calls_are_compiled_from_then_on(monkeypatch):
    """Without it the first steps of a training run in plain Python, or wait seconds for the compiler."""
    pytest.importorskip("numba")
    monkeypatch.setattr(compiling, "_loaded", set())
    monkeypatch.setattr(compiling, "_work_done", {})
    assert compiling.compiled(place_decreasing, 20) is None
    assert warm_up()
    for function in (place_decreasing, fill._fill):
        assert compiling.compiled(function, 20) is not None


def test_without_a_compiler_nothing_happens(monkeypatch):
    monkeypatch.setattr(compiling, "_numba", lambda: None)
    monkeypatch.setattr(compiling, "_loaded", set())
    assert warm_up() is False
    assert compiling._loaded == set()


def test_every_loop_of_steps_is_asked_for(monkeypatch):
    """In the form that is loaded: one that no plan of the warm-up reaches is compiled in the first step of a training."""
    asked = set()

    def form(function):
        asked.add(function.__name__)
        return function

    monkeypatch.setattr(compiling, "compiled_form", form)
    monkeypatch.setattr(compiling, "_numba", lambda: object())
    monkeypatch.setattr(compiling, "_loaded", set())
    with np.errstate(over="ignore"):  # of hashes, which compiled code lets pass
        assert warm_up()
    assert asked == {
        *("_count", "exchange_between_ranks"),
        *("_exchange_within_ranks", "_fill", "fill_common_levels", "fill_levels", "_fill_micro_batches"),
        *("_permute_in_blocks", "_place_least_loaded", "_scan_bins", "_search", "_sort"),
        *("assign_runs", "place_decreasing"),
        *("_find_by_merging", "_find_trunks", "_count_copies", "fill_trees"),
    }
    assert {function.__name__ for function in compiling._loaded} == asked

"""Schedules: the tail over many epochs, and packs exchanged for equal cost."""

import math
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful import plan_packs
from brimful.errors import SettingsError
from brimful.plan.schedule import Barrier, Tail, imbalance
from brimful.plan.schedule.schedule import Shape, resized_schedule
from tests.plan.frozen import digest_of
from tests.plan.schedule.instances import cases, schedule


def served(array):
    return [index for index in array.reshape(-1).tolist() if index >= 0]


# --- the tail -------------------------------------------------------------------------------------------------------


def test_oracle_15_ten_samples_of_forty_in_packs_of_eighty_on_four_ranks():
    """Five packs: drop leaves four, repeat fills up to eight with packs 0, 1 and 2, pad with none."""
    plan = plan_packs([40] * 10, capacity=80)
    assert plan.num_packs == 5
    rows = {tail: schedule(5, world=4, seed=None, tail=tail).reshape(-1).tolist() for tail in Tail}
    assert rows == {
        Tail.DROP: [0, 1, 2, 3],
        Tail.REPEAT: [0, 1, 2, 3, 4, 0, 1, 2],
        Tail.PAD: [0, 1, 2, 3, 4, -1, -1, -1],
    }


@pytest.mark.parametrize("costs", [None, np.array([2.5])])
def test_oracle_16_one_pack_on_four_ranks(costs):
    """An existing system raises an index error. The first place is never the empty one: a loader shows it to the others."""
    assert schedule(1, world=4, tail=Tail.PAD, costs=costs).reshape(-1).tolist() == [0, -1, -1, -1]
    assert schedule(1, world=4, tail=Tail.REPEAT, costs=costs).reshape(-1).tolist() == [0, 0, 0, 0]
    assert schedule(1, world=4, tail=Tail.DROP, costs=costs).shape == (0, 4, 1, 1)


@pytest.mark.parametrize("seed", [None, 0, 1])
@pytest.mark.parametrize("costs", [None, np.arange(11.0)])
def test_oracle_17_eleven_packs_on_four_ranks_all_seen(seed, costs):
    """An existing sampler never serves packs 8, 9 and 10. Here any two epochs in a row serve all, and eleven epochs
    drop each pack exactly three times."""
    epochs = [served(schedule(11, world=4, epoch=e, seed=seed, tail=Tail.DROP, costs=costs)) for e in range(11)]
    assert all(len(epoch) == len(set(epoch)) == 8 for epoch in epochs)
    assert all(set(one) | set(other) == set(range(11)) for one, other in pairwise(epochs))
    times = np.bincount(np.concatenate(epochs), minlength=11)
    assert times.tolist() == [8] * 11


@pytest.mark.parametrize("seed", [None, 0])
def test_what_is_repeated_goes_round(seed):
    """Five packs on two ranks repeat one an epoch: the same one would be trained on twice as often for ever."""
    repeated = []
    for epoch in range(10):
        times = np.bincount(served(schedule(5, world=2, epoch=epoch, seed=seed, tail=Tail.REPEAT)), minlength=5)
        assert sorted(times) == [1, 1, 1, 1, 2]
        repeated.append(int(np.argmax(times)))
    assert sorted(repeated) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


def test_an_unshuffled_epoch_begins_with_what_it_repeats():
    """The plan's order, going round: epoch 1 begins at pack 1."""
    rows = [schedule(5, world=2, epoch=e, seed=None, tail=Tail.REPEAT).reshape(-1, 2).tolist() for e in range(3)]
    assert rows == [[[0, 1], [2, 3], [4, 0]], [[1, 2], [3, 4], [0, 1]], [[2, 3], [4, 0], [1, 2]]]


@given(packs=st.integers(8, 60), world=st.integers(1, 8), seed=st.sampled_from([None, 0, 5]), epoch=st.integers(0, 9))
def test_a_pack_and_its_repeat_are_not_in_one_step(packs, world, seed, epoch):
    """Twice in one step, it would have twice the gradient."""
    array = schedule(packs, world=world, epoch=epoch, seed=seed, tail=Tail.REPEAT, costs=np.ones(packs))
    for step in array.reshape(len(array), -1).tolist():
        assert len(step) == len(set(step))


# --- balancing ------------------------------------------------------------------------------------------------------


@given(case=cases())
def test_balancing_exchanges_packs_and_nothing_else(case):
    """The same packs are served, in the same shape, with the last step empty in as many places."""
    plain = schedule(**{**case, "costs": None})
    balanced = schedule(**case)
    assert balanced.shape == plain.shape
    assert balanced.dtype == np.int64
    assert sorted(balanced.reshape(-1).tolist()) == sorted(plain.reshape(-1).tolist())
    assert (balanced[:-1] >= 0).all()
    if len(balanced):
        assert balanced[0, 0, 0, 0] >= 0  # what a loader shows to ranks without a pack


SHAPES = [(3, 1, 1), (2, 1, 1), (1, 2, 1), (1, 2, 2)]
"""Ranks, micro-batches and packs of one: two of them have the same number of packs in a step."""


@pytest.mark.parametrize(
    ("seed", "costs"),
    [(None, None), (1, None), (1, [9.0, 1, 8, 2, 9, 1, 8, 2, 7])],
    ids=["plain", "seeded", "balanced"],
)
@pytest.mark.parametrize("tail", Tail)
def test_an_epoch_whose_shape_changes_serves_each_pack(tail, seed, costs):
    """After some steps on other ranks, and again: no pack twice, none lost, and a step of the same size is the same step."""
    options = {"epoch": 1, "seed": seed, "tail": tail, "costs": costs, "window_steps": 5}
    for first, steps, second, more, third in product(SHAPES, (0, 1, 2), SHAPES, (0, 1), SHAPES[1:3]):
        shapes, before, planned = [], [], np.empty((0, 1, 1, 1), dtype=np.int64)
        for num_steps, shape in ((0, first), (steps, second), (more, third)):
            done = sum(len(steps) for steps in before)
            before.append(planned[:num_steps])
            rest = planned[num_steps:]
            shapes.append(Shape(done + len(before[-1]), *shape))
            planned = resized_schedule(9, shapes, **options)
            if len(shapes) > 1 and shapes[-1].step_size == shapes[-2].step_size:
                assert [sorted(served(step)) for step in planned] == [sorted(served(step)) for step in rest]
            else:
                num_left = 9 - len({pack for array in before for pack in served(array)})
                num_full, num_tail = divmod(num_left, shapes[-1].step_size)
                assert len(planned) == num_full + (num_tail > 0 and tail is not Tail.DROP)
            empty = np.flatnonzero((planned < 0).any(axis=(1, 2, 3))).tolist()
            assert empty in ([], [len(planned) - 1] * (tail is Tail.PAD))
        times = np.bincount([pack for array in (*before, planned) for pack in served(array)], minlength=9)
        if tail is Tail.PAD:
            assert times.tolist() == [1] * 9
        elif tail is Tail.REPEAT:
            assert times.min() == 1
        else:
            assert times.max() <= 1
            assert np.count_nonzero(times == 0) < shapes[-1].step_size


@given(case=cases())
def test_a_pack_moves_by_less_than_the_window(case):
    """The bound on what training sees differently: step by step, against the same order without costs."""
    plain, balanced = schedule(**{**case, "costs": None}), schedule(**case)

    def steps_of(array):
        places = {}
        for step, packs in enumerate(array.reshape(len(array), math.prod(array.shape[1:])).tolist()):
            for pack in packs:
                places.setdefault(pack, []).append(step)
        return places

    before, after = steps_of(plain), steps_of(balanced)
    for pack in set(before) - {-1}:
        assert len(before[pack]) == len(after[pack])
        for one, other in zip(before[pack], after[pack], strict=True):
            assert abs(one - other) < case["window_steps"]


@given(case=cases())
def test_the_same_arguments_give_the_same_array_whatever_the_unit(case):
    """Ranks compute it apart; a factor of two is exact in floating point, so nothing may change."""
    first = schedule(**case)
    assert np.array_equal(first, schedule(**case))
    assert np.array_equal(first, schedule(**{**case, "costs": case["costs"] * 2.0**40}))
    assert np.array_equal(first, schedule(**{**case, "costs": case["costs"].astype(np.int32)}))


@pytest.mark.parametrize(
    ("window", "steps"),
    [
        (4, [{0, 4}, {2, 6}, {3, 7}, {1, 5}]),
        (2, [{0, 2}, {1, 3}, {4, 6}, {5, 7}]),
        (1, [{0, 1}, {2, 3}, {4, 5}, {6, 7}]),
    ],
)
def test_the_drawing_of_schedule_packs(window, steps):
    """Costs 9 1 8 2 9 1 8 2 on two ranks: equals meet as far as the window lets them."""
    costs = np.array([9.0, 1.0, 8.0, 2.0] * 2)
    array = schedule(8, world=2, seed=None, costs=costs, window_steps=window).reshape(-1, 2).tolist()
    assert sorted(map(sorted, array)) == sorted(map(sorted, steps))
    if window == 2:  # two windows: each stays where it was
        assert {pack for step in array[:2] for pack in step} == {0, 1, 2, 3}


def test_epochs_and_seeds_differ():
    """The same companions every epoch would be a smaller data set."""
    costs = np.random.default_rng(0).permutation(64).astype(np.float64)
    arrays = [schedule(64, world=4, epoch=e, seed=s, costs=costs, window_steps=4) for e, s in ((0, 0), (1, 0), (0, 1))]
    assert len({array.tobytes() for array in arrays}) == 3


def _random_schedule(chance):
    num_packs, parts, shapes = chance.number(1, 40), chance.of(0, 1, 1, 2, 3), []
    costs = chance.numbers(0, chance.of(4, 100), (num_packs, parts)) if parts else None
    for _ in range(chance.of(1, 1, 2, 3)):
        first = shapes[-1].first_step + chance.number(3) if shapes else 0
        shapes.append(Shape(first, chance.number(1, 5), chance.number(1, 4), chance.number(1, 4)))
    options = {"epoch": chance.number(5), "seed": chance.of(None, 0, 1), "window_steps": chance.of(1, 2, 3, 80)}
    array = resized_schedule(num_packs, shapes, tail=chance.of(*Tail), costs=costs, **options)
    waits = [] if costs is None else [imbalance(array, costs, barrier=barrier).round(9).tolist() for barrier in Barrier]
    return [array.tolist(), waits]


def test_a_schedule_never_changes():
    """Ranks of different machines must agree, and a resumed run with the one before an upgrade: of any shape and cost."""
    assert digest_of(_random_schedule, 1000) == "ef3bdf04c93d38e6"


# --- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"world": 0}, "dp_world_size must be at least 1 and is 0"),
        ({"micro": 0}, "micro_batches must be at least 1 and is 0"),
        ({"each": -1}, "packs_per_micro_batch must be at least 1 and is -1"),
        ({"epoch": -1}, "epoch must be at least 0 and is -1"),
        ({"num_packs": -1}, "num_packs must be at least 0 and is -1"),
        ({"window_steps": 0}, "window_steps must be at least 1 and is 0"),
        ({"costs": np.ones(3)}, r"costs must be for each of the 2 packs and have shape \(3,\)"),
        ({"costs": np.ones((2, 1, 1))}, r"costs must be numbers, .* shape \(2, 1, 1\)"),
        ({"costs": np.ones((2, 0))}, r"costs must be numbers, .* shape \(2, 0\)"),
        ({"costs": np.ones((1, 2))}, r"costs must be for each of the 2 packs and have shape \(1, 2\)"),
        ({"costs": np.array([[1.0, 2.0], [3.0, np.nan]])}, r"costs\[1, 1\] is nan"),
        ({"costs": np.array([1.0, -2.0])}, r"costs\[1\] is -2.0"),
        ({"costs": np.array([np.nan, 1.0])}, r"costs\[0\] is nan"),
        ({"costs": np.array([1.0, np.inf])}, r"costs\[1\] is inf"),
        ({"costs": np.array(["a", "b"])}, "costs must be numbers"),
    ],
)
def test_impossible_arguments_are_named(wrong, message):
    with pytest.raises(SettingsError, match=message):
        schedule(**({"num_packs": 2} | wrong))


def test_no_packs_no_steps():
    """An empty plan cannot be made, but a schedule of nothing is nothing."""
    for tail in Tail:
        assert schedule(0, world=2, tail=tail).shape == (0, 2, 1, 1)
        assert schedule(0, world=2, tail=tail, costs=np.ones(0)).shape == (0, 2, 1, 1)


def test_costs_that_are_all_nothing_or_very_large():
    """No division by zero, no overflow in sums."""
    for value in (0.0, 1e308, 5e-324):
        array = schedule(24, world=2, micro=3, each=2, costs=np.full(24, value))
        assert sorted(array.reshape(-1).tolist()) == list(range(24))

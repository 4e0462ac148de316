"""Schedules: the tail over many epochs, and packs exchanged for equal cost."""

import math
from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful import plan_packs
from brimful.errors import SettingsError
from brimful.plan.schedule import Barrier, CostModel, Tail, imbalance, pack_costs, quantise, schedule_packs


def schedule(num_packs, *, world=1, micro=1, each=1, epoch=0, seed=0, tail=Tail.PAD, **more):
    return schedule_packs(
        num_packs,
        dp_world_size=world,
        micro_batches=micro,
        packs_per_micro_batch=each,
        epoch=epoch,
        seed=seed,
        tail=tail,
        **more,
    )


def served(array):
    return [index for index in array.reshape(-1).tolist() if index >= 0]


def barrier_seconds(array, costs):
    """Sum over all micro-batches of the slowest rank: the time of an epoch."""
    with_none = np.append(costs, 0)
    return int(with_none[array].sum(axis=3).max(axis=1).sum())


@st.composite
def cases(draw, *, most_packs=3):
    """Shapes of steps, costs with many equal ones, windows from one step to more than there are."""
    costs = draw(st.lists(st.integers(0, 9) | st.sampled_from([1, 100]), min_size=1, max_size=60))
    return {
        "num_packs": len(costs),
        "world": draw(st.integers(1, 5)),
        "micro": draw(st.integers(1, 3)),
        "each": draw(st.integers(1, most_packs)),
        "epoch": draw(st.integers(0, 3)),
        "seed": draw(st.sampled_from([None, 0, 1])),
        "tail": draw(st.sampled_from(list(Tail))),
        "costs": np.array(costs, dtype=np.float64),
        "window_steps": draw(st.sampled_from([1, 2, 3, 1000])),
    }


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


# --- balancing: laws ------------------------------------------------------------------------------------------------


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


@given(case=cases(most_packs=1))
def test_an_epoch_never_takes_longer_than_unbalanced(case):
    """Neighbours in cost at one barrier give the least sum of maxima, whatever the costs."""
    weights = quantise(case["costs"], case["num_packs"])
    balanced = barrier_seconds(schedule(**case), weights)
    assert balanced <= barrier_seconds(schedule(**{**case, "costs": None}), weights)


@pytest.mark.parametrize("costs", list(permutations([9.0, 7.0, 7.0, 3.0, 2.0, 1.0]))[::97])
def test_one_window_has_the_least_time_of_all_divisions(costs):
    """Six packs on two ranks: every division into three pairs, tried out."""
    costs = np.array(costs)
    best = min(sum(max(order[i], order[i + 1]) for i in (0, 2, 4)) for order in permutations(costs.tolist()))
    assert barrier_seconds(schedule(6, world=2, costs=costs), costs) == best == 9 + 7 + 2


@given(case=cases())
def test_imbalance_by_its_definition(case):
    """Against a plain loop, at both barriers; waiting once is never longer than waiting at every micro-batch."""
    array, costs = schedule(**case), case["costs"]
    often, once = imbalance(array, costs), imbalance(array, costs, barrier=Barrier.STEP)
    for number, step in enumerate(array):
        parts = [[sum(costs[pack] for pack in packs if pack >= 0) for packs in rank] for rank in step]
        total = sum(map(sum, parts))
        if total == 0:
            assert often[number] == once[number] == 1
            continue
        mean = total / len(parts)
        assert often[number] == pytest.approx(sum(map(max, zip(*parts, strict=True))) / mean)
        assert once[number] == pytest.approx(max(map(sum, parts)) / mean)
    assert (once <= often + 1e-12).all()
    assert (once >= 1).all()


# --- balancing: examples --------------------------------------------------------------------------------------------


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


def test_the_drawing_of_the_balance_module():
    """One window, two micro-batches: each step a heavy and a light slice, the ranks as equal as the slices allow."""
    costs = np.array([9.0, 2.0, 7.0, 1.0, 8.0, 3.0, 6.0, 2.0])
    array = schedule(8, world=2, micro=2, seed=None, costs=costs, window_steps=2)
    slices = sorted(sorted(costs[step[:, k].reshape(-1)].tolist()) for step in array for k in range(2))
    assert slices == [[1, 2], [2, 3], [6, 7], [8, 9]]
    for step in array:
        assert sorted(costs[step].sum(axis=(0, 2)) > 10) == [False, True]  # one heavy and one light micro-batch
        one, other = costs[step].sum(axis=(1, 2)).tolist()
        assert one == other  # 9+1 and 8+2 or 9+2 and 8+3: the heavier of one slice with the lighter of the other


def test_high_and_low_share_a_micro_batch():
    """Two packs on a rank: the heaviest with the lightest, so that both ranks have ten."""
    array = schedule(4, world=2, each=2, seed=None, costs=np.array([9.0, 8.0, 2.0, 1.0]))
    assert sorted(map(sorted, array[0, :, 0].tolist())) == [[0, 3], [1, 2]]
    assert imbalance(array, np.array([9.0, 8.0, 2.0, 1.0])).tolist() == [1.0]


def test_a_partial_step_gives_every_micro_batch_one_pack_before_any_gets_two():
    """Four packs for eight places: a micro-batch without any pack would cost a forward for nothing."""
    array = schedule(4, world=2, micro=2, each=2, tail=Tail.PAD, costs=np.array([4.0, 3.0, 2.0, 1.0]))
    assert (array[..., 0] >= 0).all()
    assert (array[..., 1] == -1).all()
    drawn = schedule(5, world=2, each=4, tail=Tail.PAD, costs=np.array([1.0, 4.0, 5.0, 6.0, 9.0]))
    assert drawn.reshape(2, 4).tolist() == [[4, 1, -1, -1], [3, 2, 0, -1]]


def test_windows_are_as_equal_as_can_be():
    """33 steps in windows of at most 32 are 17 and 16: a window of one step could balance nothing."""
    costs = np.random.default_rng(0).permutation(66).astype(np.float64)
    array = schedule(66, world=2, seed=None, costs=costs, window_steps=32).reshape(33, 2)
    assert set(array[:17].reshape(-1).tolist()) == set(range(34))
    assert imbalance(array[:, :, None, None], costs).mean() < 1.1


def test_cost_is_no_curriculum():
    """Sorted by cost inside a window, training would see long documents first, and rank 0 always the longest."""
    costs = np.random.default_rng(0).lognormal(size=16 * 200)
    array = schedule(len(costs), world=8, micro=2, costs=costs, window_steps=200)
    per_micro_batch = costs[array].sum(axis=(1, 3))
    assert abs(np.corrcoef(np.arange(200), per_micro_batch.sum(axis=1))[0, 1]) < 0.25
    assert 0.35 < (per_micro_batch[:, 0] > per_micro_batch[:, 1]).mean() < 0.65
    heaviest = np.bincount(costs[array].sum(axis=(2, 3)).argmax(axis=1), minlength=8)
    assert heaviest.min() > 0.3 * 200 / 8


def test_micro_batches_mix_heavy_and_light_packs():
    """With several packs on a rank, steps stay alike: the most costly holds little more than the mean."""
    costs = np.random.default_rng(0).permutation(np.linspace(1, 10, 8 * 4 * 100))
    array = schedule(len(costs), world=8, micro=4, costs=costs, window_steps=100)
    steps = costs[array].sum(axis=(1, 2, 3))
    assert steps.max() / steps.mean() < 1.2
    alone = schedule(len(costs), world=8, micro=1, costs=costs, window_steps=100)
    assert costs[alone].sum(axis=(1, 2, 3)).max() / costs[alone].sum(axis=(1, 2, 3)).mean() > 1.7


def test_epochs_and_seeds_differ():
    """The same companions every epoch would be a smaller data set."""
    costs = np.random.default_rng(0).permutation(64).astype(np.float64)
    arrays = [schedule(64, world=4, epoch=e, seed=s, costs=costs, window_steps=4) for e, s in ((0, 0), (1, 0), (0, 1))]
    assert len({array.tobytes() for array in arrays}) == 3


def test_a_balanced_schedule_of_a_known_seed_never_changes():
    """Ranks of different machines must agree, and a resumed run with the one before an upgrade."""
    costs = np.array([5.0, 1.0, 4.0, 2.0, 3.0, 6.0, 8.0, 7.0, 9.0])
    array = schedule(9, world=2, micro=2, seed=3, costs=costs, window_steps=2)
    assert array.reshape(3, 2, 2).tolist() == [[[8, 1], [6, 3]], [[2, 0], [4, 5]], [[7, -1], [-1, -1]]]


@pytest.mark.parametrize(("hidden", "layers", "heads", "width"), [(4096, 36, 32, 12288), (1024, 28, 16, 3072)])
@pytest.mark.parametrize("capacity", [32_768, 131_072])
def test_sixty_four_ranks_are_within_two_per_cent(hidden, layers, heads, width, capacity):
    """Chats and documents with a heavy tail, the costs of an 8B and a 0.6B model, one pack on a rank.

    Shuffled only, the slowest of 64 ranks takes 1.3 to 3 times the mean.
    """
    model = CostModel.from_config(
        hidden_size=hidden,
        num_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=8,
        head_dim=128,
        intermediate_size=width,
        vocab_size=151936,
    )
    random = np.random.default_rng(0)
    number = 64 * 200 * capacity // 4_000  # samples, for some 200 steps
    chats, documents = random.normal(np.log(400), 1.0, number), random.normal(np.log(4000), 1.4, number)
    lengths = np.clip(np.exp(np.where(random.random(number) < 0.5, chats, documents)), 8, capacity).astype(np.int32)
    plan = plan_packs(lengths, capacity=capacity, seed=0)
    costs = pack_costs(plan.offsets, plan.lengths, model)
    options = {"world": 64, "tail": Tail.DROP}
    plain = imbalance(schedule(len(costs), **options), costs)
    balanced = imbalance(schedule(len(costs), **options, costs=costs), costs)
    assert len(balanced) > 150
    assert balanced.mean() <= 1.02
    assert plain.mean() > 1.2


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
        ({"costs": np.ones(3)}, r"costs must be one number for each of the 2 packs and have shape \(3,\)"),
        ({"costs": np.ones((2, 1))}, r"costs must be one number .* shape \(2, 1\)"),
        ({"costs": np.array([1.0, -2.0])}, r"costs\[1\] is -2.0"),
        ({"costs": np.array([np.nan, 1.0])}, r"costs\[0\] is nan"),
        ({"costs": np.array([1.0, np.inf])}, r"costs\[1\] is inf"),
        ({"costs": np.array(["a", "b"])}, "costs must be numbers"),
    ],
)
def test_impossible_arguments_are_named(wrong, message):
    with pytest.raises(SettingsError, match=message):
        schedule(**({"num_packs": 2} | wrong))


def test_imbalance_refuses_what_is_no_schedule():
    """Costs of another plan would give ratios of nothing."""
    with pytest.raises(SettingsError, match="names pack 3 and costs has 3 entries"):
        imbalance(schedule(4), np.ones(3))
    with pytest.raises(SettingsError, match=r"schedule must be .* has 2 axes"):
        imbalance(np.zeros((2, 2), dtype=np.int64), np.ones(3))
    with pytest.raises(SettingsError, match="barrier 'never' is unknown: use one of micro_batch, step"):
        imbalance(schedule(4), np.ones(4), barrier="never")


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

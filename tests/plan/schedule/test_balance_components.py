"""Packs exchanged so that towers and language model wait little: laws, the drawing, and real pictures."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful import LengthTable, plan_packs
from brimful.plan.schedule import Barrier, CostModel, Tail, imbalance, quantize
from brimful.plan.schedule.balance_components import _Barriers, _time
from tests.plan.schedule.instances import cases, schedule

DRAWN = np.array([[9.0, 2.0], [1.0, 8.0], [9.0, 8.0], [1.0, 2.0]])


def epoch_time(array, costs):
    """Slowest rank of every part at every micro-batch, summed."""
    with_none = np.append(costs, np.zeros((1, costs.shape[1]), dtype=costs.dtype), axis=0)
    return with_none[array].sum(axis=3).max(axis=1).sum()


@st.composite
def parts(draw, *, most_packs=3):
    """A case of schedules whose costs are of two or three parts."""
    case = draw(cases(most_packs=most_packs))
    shape = (case["num_packs"], draw(st.integers(2, 3)))
    row = st.lists(st.integers(0, 9), min_size=shape[0] * shape[1], max_size=shape[0] * shape[1])
    return {**case, "costs": np.array(draw(row), dtype=np.float64).reshape(shape)}


def test_the_drawing():
    """Balanced by the sum it would take 34, by the language model 28; by the tower 26, which is the least."""
    array = schedule(4, world=2, costs=DRAWN, window_steps=2)
    pairs = {frozenset(step) for step in array.reshape(2, 2).tolist()}
    assert pairs == {frozenset({0, 2}), frozenset({1, 3})}
    assert epoch_time(array, DRAWN) == 26
    times = [
        epoch_time(np.reshape([*p, *({0, 1, 2, 3} - set(p))], (2, 2, 1, 1)), DRAWN) for p in combinations(range(4), 2)
    ]
    assert min(times) == 26


@given(case=parts())
def test_every_pack_once_and_in_its_window(case):
    """Laws of every schedule: another cost only changes which samples are neighbors."""
    plain = schedule(**{**case, "costs": None})
    balanced = schedule(**case)
    assert balanced.shape == plain.shape
    assert sorted(balanced.reshape(-1)) == sorted(plain.reshape(-1))
    if case["window_steps"] == 1:
        for before, after in zip(plain, balanced, strict=True):
            assert sorted(before.reshape(-1)) == sorted(after.reshape(-1))
    np.testing.assert_array_equal(balanced, schedule(**case))


@given(case=parts(most_packs=1))
def test_an_epoch_never_takes_longer_than_unbalanced(case):
    """Whatever the costs: balancing that made ranks wait longer would be worse than none."""
    weights = quantize(case["costs"], case["num_packs"])
    balanced = epoch_time(schedule(**case), weights)
    assert balanced <= epoch_time(schedule(**{**case, "costs": None}), weights)


@given(
    ranks=st.integers(1, 3),
    rows=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=12),
    data=st.data(),
)
def test_an_exchange_is_the_one_that_saves_most(ranks, rows, data):
    """Without it balancing would stop before its time, or exchange bundles that wait for each other anyway."""
    loads = np.array(rows * ranks, dtype=np.int64)
    barriers = _Barriers(loads, np.arange(len(loads)).reshape(-1, ranks))
    for _ in range(3):
        barrier = data.draw(st.integers(0, len(rows) - 1))
        part = data.draw(st.integers(0, 1))
        slowest, times = int(barriers.slowest[barrier, part]), []
        for place in range(len(loads)):
            places = barriers.bundles.copy()
            places[[slowest, place]] = places[[place, slowest]]
            times.append(_time(loads, places.reshape(-1, ranks)))
        barriers.exchange_slowest(barrier, part)
        assert barriers.time == _time(loads, barriers.bundles.reshape(-1, ranks)) == min(times)


@given(case=cases(), column=st.integers(0, 2))
def test_parts_without_any_work_change_nothing(case, column):
    """Texts planned for a model with towers are served as without them, bit for bit."""
    costs = np.zeros((case["num_packs"], 3))
    costs[:, column] = case["costs"]
    np.testing.assert_array_equal(schedule(**{**case, "costs": costs}), schedule(**case))


def test_slowest_ranks_of_parts_add_up():
    """Rank 0 is the slowest in the tower, rank 1 in the language model: both are waited for, once a micro-batch."""
    array = np.array([[[[0]], [[1]]]])
    costs = np.array([[4.0, 1.0], [2.0, 3.0]])
    assert imbalance(array, costs).tolist() == [(4 + 3) / (3 + 2)]
    assert imbalance(array, costs, barrier=Barrier.STEP).tolist() == [1.0]


@pytest.mark.long
def test_towers_wait_little_over_64_ranks_on_real_pictures(data_dir):
    """MathVision, COCO and chats of text: in shuffled order ranks wait for a fifth of the tower's time and more."""
    folder = data_dir / "lengths"
    mixed = [
        np.load(folder / f"{name}_text_and_image_tokens__qwen2vl.npy").astype(np.int64)
        for name in ("mathvision", "coco_val2017_5captions")
    ]
    text = np.load(folder / "sgd_train_text_only__qwen25_chat.npy").astype(np.int64)
    columns = np.concatenate([*mixed, np.stack([text, 0 * text], axis=1)] * 3)
    tokens, patches = columns.sum(axis=1), 4 * columns[:, 1]
    kept = (tokens <= 8192) & (patches <= 12_603)
    table = LengthTable.from_lengths(tokens[kept], patches=patches[kept], patch_blocks=-(-(patches[kept] ** 2) // 4096))
    plan = plan_packs(table, capacity=8192, budgets={"patches": 12_603})
    assert plan.num_packs <= 1.01 * plan.bound
    model = CostModel(linear=15.2e9, quadratic=2e5, encoder_linear=1.3e9, encoder_quadratic=2e4)
    costs = plan.costs(model, table)
    waits = {}
    for balanced in (False, True):
        array = schedule(plan.num_packs, world=64, tail=Tail.DROP, costs=costs if balanced else None)
        work = costs[array].sum(axis=(2, 3))  # [steps, ranks, parts]
        waits[balanced] = work.max(axis=1).sum(axis=0) / work.mean(axis=1).sum(axis=0) - 1
    assert waits[False][1] > 0.15
    assert waits[True].max() < 0.05


@pytest.mark.parametrize("budget", ["patch_blocks", "sounds"])
def test_a_table_without_what_a_tower_costs_is_refused(budget):
    """A table of before has patches and no squares: pictures would cost less than they do, silently."""
    from brimful.errors import SettingsError

    column = {"patch_blocks": "patches", "sounds": "audio_frames"}[budget]
    table = LengthTable.from_lengths([3, 5], **{column: [16, 0]})
    plan = plan_packs(table, capacity=8)
    model = CostModel(linear=1, quadratic=0, encoder_quadratic=1, audio_constant=1)
    with pytest.raises(SettingsError, match=f"the length table has no {budget}"):
        plan.costs(model, table)
    assert plan.costs(model).tolist() == [8.0]

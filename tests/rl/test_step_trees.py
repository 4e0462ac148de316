"""Steps whose samples share prefixes: every law of a step, counted on the distinct prefixes of each micro-batch."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful import CostModel, LengthTable
from brimful.base.compiling import compiled_forms
from brimful.errors import InvalidLengthsError, SettingsError
from brimful.rl import find_step_prefixes, pack_step, plan_step
from brimful.rl.step_items import prepare_step_items
from brimful.rl.step_trees import NO_LIMIT, StepForest
from brimful.trees.plan.bound import bound_of_trees
from brimful.trees.prefixes import Prefixes, prefixes_of
from tests.rl.step_forests import COST, UNIT, counted, forest_of_samples, rollouts


def planned(ids, **settings):
    prefixes = find_step_prefixes(ids, least=1)
    return plan_step([len(row) for row in ids], cost=COST, prefixes=prefixes, **settings)


@given(seed=st.integers(0, 10_000), ranks=st.integers(1, 4), room=st.integers(0, 30), step=st.booleans())
def test_micro_batches_hold_their_distinct_prefixes(seed, ranks, room, step):
    """Nothing over the capacity, nothing lost, nothing empty; tokens and costs are the ones that brute force counts."""
    ids = forest_of_samples(seed)
    capacity = max(map(len, ids)) + room * UNIT // 3
    settings: dict[str, Any] = {
        "capacity": capacity,
        "dp_world_size": ranks,
        "barrier": "step" if step else "micro_batch",
    }
    if len(ids) < ranks:
        with pytest.raises(InvalidLengthsError, match=f"{len(ids)} sample"):
            planned(ids, **settings)
        return
    try:
        plan = planned(ids, **settings)
    except InvalidLengthsError:  # micro-batches that none of so few samples can be in
        assert len(ids) < 4 * ranks
        return
    places = []
    for rank in range(ranks):
        for number, rows in enumerate(plan.micro_batches(rank)):
            tokens, forks, cost = counted(ids, rows.tolist())
            assert tokens + forks <= capacity
            assert plan.tokens[rank, number] == tokens
            assert plan.costs[rank, number] == pytest.approx(cost, rel=1e-6)
            assert len(rows) > 0
            places += rows.tolist()
    assert sorted(places) == list(range(len(ids)))
    assert plan.order[plan.restore].tolist() == list(range(len(ids)))
    # The most costly micro-batch of a rank comes first.
    assert (np.diff(plan.costs, axis=1) <= plan.costs.max() * 1e-6).all() or step


@given(seed=st.integers(0, 10_000), ranks=st.integers(1, 3))
def test_packs_are_the_samples_of_the_plan(seed, ranks):
    """A pack of trees, taken apart, is its samples; and it has the tokens of the plan."""
    ids = forest_of_samples(seed, samples=12)
    plan = planned(ids, capacity=10 * UNIT, dp_world_size=ranks)
    for rank in range(ranks):
        packs = pack_step(plan, ids, dp_rank=rank)
        for (pack, _), rows, tokens in zip(packs, plan.micro_batches(rank), plan.tokens[rank].tolist(), strict=True):
            flat = pack.flat()
            assert len(pack) == tokens
            assert flat.sample_ids.tolist() == rows.tolist()
            assert all((flat.segment(place) == ids[row]).all() for place, row in enumerate(rows.tolist()))


@given(seed=st.integers(0, 10_000))
def test_both_forms_give_one_plan(seed):
    ids = forest_of_samples(seed, samples=40)
    with compiled_forms(True):
        compiled = planned(ids, capacity=12 * UNIT, dp_world_size=2)
    with compiled_forms(False):
        plain = planned(ids, capacity=12 * UNIT, dp_world_size=2)
    assert compiled.fingerprint == plain.fingerprint


@pytest.mark.parametrize(
    ("prompts", "answers", "prompt", "answer", "ranks", "most"),
    [(128, 16, 4000, 1500, 8, 1.02), (128, 8, 500, 2500, 8, 1.02), (8, 256, 4000, 1500, 8, 1.03)],
    ids=["long prompts", "short prompts", "few prompts"],
)
def test_positions_are_near_the_bound_and_ranks_are_equal(prompts, answers, prompt, answer, ranks, most):
    lengths, prefixes = rollouts(prompts, answers, prompt=prompt, answer=answer, seed=0)
    step = plan_step(lengths, capacity=32_768, dp_world_size=ranks, cost=COST, prefixes=prefixes)
    items = prepare_step_items(lengths, capacity=32_768, cost=COST, groups=None, budgets=None)
    forest = StepForest.of(items, prefixes, COST)
    bound = bound_of_trees(forest.forest, np.array([32_768, NO_LIMIT]))
    assert step.num_micro_batches <= -(-forest.bound // ranks) + 1
    assert step.tokens.sum() / bound.tokens <= most
    assert step.imbalance() <= 1.05


def test_trees_stay_whole_if_they_divide_evenly():
    """Eight equal trees in eight micro-batches: none is cut, in whatever order its samples come."""
    lengths, groups = np.full(64, 300), np.random.default_rng(0).permutation(np.arange(64) % 8)
    order = np.argsort(groups, kind="stable")
    prefixes = Prefixes(order, np.where(np.arange(64) % 8, 200, 0).astype(np.int32))
    step = plan_step(lengths, capacity=1100, dp_world_size=4, min_micro_batches=2, prefixes=prefixes)
    assert step.tokens.tolist() == [[1000, 1000]] * 4
    assert all(len(set(groups[rows].tolist())) == 1 for rank in range(4) for rows in step.micro_batches(rank))


def test_a_group_is_cut_where_ranks_would_wait():
    """One tree for four ranks: each repeats its trunk, and none is idle."""
    prefixes = Prefixes(np.arange(16), np.where(np.arange(16), 50, 0).astype(np.int32))
    step = plan_step(np.full(16, 100), capacity=2000, dp_world_size=4, prefixes=prefixes)
    assert step.tokens.tolist() == [[250]] * 4


def test_long_samples_meet_in_one_slice():
    """Samples above the mean cost are on all ranks at the same time; the other slice is lower."""
    lengths = np.array([400, 400, *[100] * 8])
    prefixes = Prefixes(np.arange(10), np.array([0, 0, 0, *[50] * 7], dtype=np.int32))
    step = plan_step(lengths, capacity=400, dp_world_size=2, cost=COST, prefixes=prefixes)
    assert step.tokens[:, 0].tolist() == [400, 400]
    assert step.imbalance() <= 1.05


def test_targets_are_not_shared():
    """A budget of targets counts each sample's, though its tokens are shared."""
    ids = [np.repeat([1, tail], UNIT) for tail in (2, 3, 4, 5)]
    lengths, targets = [2 * UNIT] * 4, [UNIT] * 4
    settings: dict[str, Any] = {
        "capacity": 110,
        "dp_world_size": 1,
        "prefixes": find_step_prefixes(ids),
        "loss_tokens": targets,
    }
    assert plan_step(lengths, **settings).num_micro_batches == 2
    settings["prefixes"] = find_step_prefixes(ids, least=1)
    assert plan_step(lengths, **settings).num_micro_batches == 1
    assert plan_step(lengths, **settings, budgets={"loss_tokens": 2 * UNIT}).num_micro_batches == 2
    assert plan_step(lengths, **settings, budgets={"samples": 2}).num_micro_batches == 2
    assert plan_step(lengths, **settings).weights("token-mean").tolist() == [1 / (4 * UNIT)] * 4


def test_a_shared_amount_is_counted_once():
    """Patches of a picture in the trunk, as a table's prefixes have them."""
    prefixes = Prefixes(
        np.arange(4), np.array([0, 80, 80, 80], np.int32), 1, {"patches": np.array([0, 64, 64, 64], np.int32)}
    )
    table = LengthTable({"tokens": np.full(4, 100), "patches": np.full(4, 64)}, sharing=prefixes)
    settings: dict[str, Any] = {"capacity": 1000, "dp_world_size": 1, "budgets": {"patches": 64}}
    assert plan_step(table, **settings, prefixes=prefixes_of(table)).num_micro_batches == 1
    assert plan_step(table, **settings).num_micro_batches == 4
    cost = CostModel(linear=1, quadratic=0, encoder_linear=10)
    step = plan_step(table, capacity=1000, dp_world_size=1, cost=cost, prefixes=prefixes_of(table))
    assert step.costs.tolist() == [[100 + 3 * 20 + 640]]


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"prefixes": Prefixes(np.arange(2), np.zeros(2, np.int32))}, InvalidLengthsError, "of 2 samples"),
        ({"prefixes": Prefixes(np.arange(3), np.array([0, 9, 0], np.int32))}, InvalidLengthsError, "sample 1 has 5"),
        ({"groups": [0, 0, 1]}, SettingsError, "leave groups out"),
        ({"cost": [1.0, 2.0, 3.0]}, SettingsError, "CostModel"),
        ({"dp_world_size": 4}, InvalidLengthsError, "3 samples cannot fill 4 ranks"),
    ],
    ids=["other samples", "too long", "groups", "cost", "ranks"],
)
def test_refusals_name_the_way_out(change, error, words):
    settings: dict[str, Any] = {
        "capacity": 10,
        "dp_world_size": 1,
        "prefixes": Prefixes(np.arange(3), np.array([0, 4, 4], np.int32)),
    }
    with pytest.raises(error, match=words):
        plan_step([5, 5, 5], **settings | change)

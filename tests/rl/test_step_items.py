"""Samples of a step as items: sizes, weights, groups, and what is refused of them by name."""

import numpy as np
import pytest

from brimful import CostModel, LengthTable
from brimful.errors import InvalidLengthsError, OversizedSampleError
from brimful.plan.schedule.balance import quantize
from brimful.plan.schedule.pack_costs import pack_costs
from brimful.rl import plan_step
from brimful.rl.step_items import prepare_step_items, samples_of


def items_of(lengths, *, capacity=8, cost=None, groups=None, budgets=None):
    return prepare_step_items(lengths, capacity=capacity, cost=cost, groups=groups, budgets=budgets)


@pytest.mark.parametrize(("count", "shift"), [(100, 0), (32_767, 0), (32_768, 1), (65_536, 3)])
def test_sums_of_weights_stay_in_64_bits(count, shift):
    """Two bits less each time that the number of samples doubles: sums are multiplied by the number of micro-batches."""
    lengths = np.full(count, 4)
    lengths[0] = 1
    costs = lengths.astype(np.float64)
    costs[1] = 0.0
    weights = items_of(lengths, cost=costs).weights
    assert weights.tolist() == np.maximum(quantize(costs, count)[:, 0] >> shift, 1).tolist()
    assert int(weights.min()) == 1
    assert int(weights.sum()) * count < 2**62


def test_costs_are_those_of_the_model():
    """Of media too, where the model weighs them and the table has them; or one for each sample."""
    table = LengthTable.from_lengths([4, 6], patches=[0, 8])
    with_towers = CostModel(linear=2, quadratic=1, tile=1, encoder_linear=3)
    expected = pack_costs(np.arange(3), np.array([4, 6]), with_towers, patches=np.array([0, 8]))
    assert items_of(table, cost=with_towers).costs.tolist() == expected.tolist()
    assert items_of([4, 6], cost=with_towers).costs.tolist() == [24.0, 48.0]
    assert items_of(table, cost=CostModel(linear=2, quadratic=1, tile=1)).costs.tolist() == [24.0, 48.0]
    assert items_of([4, 6]).costs.tolist() == [4.0, 6.0]
    assert [items_of([4, 6], cost=cost).has_own_costs for cost in (None, with_towers, [1, 2])] == [False, False, True]


def test_samples_have_the_bins_of_their_groups():
    items = items_of([4, 2, 3, 1], groups=[7, -1, 7, 2])
    assert items.groups is not None
    assert items.group_sums(np.array([4, 2, 3, 1])).tolist() == items.groups.sizes[:, 0].tolist()
    bins = np.array([{-1: 10, 2: 11, 7: 12}[name] for name in items.groups.names.tolist()])
    assert samples_of(items.groups, bins).tolist() == [12, 10, 12, 11]


@pytest.mark.parametrize(
    ("lengths", "groups", "budgets", "message"),
    [
        (
            [5, 4, 3], [3, 3, -1], None,
            'group 3, samples 0 (5), 1 (4), takes 9 tokens and exceeds the capacity of 8. Choose groups_share="rank", or '
            "capacity=9",
        ),
        (
            [5, 4, 3, 6], [3, 3, 4, 4], None,
            'group 3, samples 0 (5), 1 (4), takes 9 tokens and exceeds the capacity of 8; so do 1 more. Choose '
            'groups_share="rank", or capacity=9',
        ),
        (
            [1, 1, 1], [3, 3, 3], {"samples": 2},
            'group 3, samples 0 (1), 1 (1), 2 (1), takes 3 samples and exceeds the capacity of 2. Choose '
            'groups_share="rank", or budgets={"samples": 3}',
        ),
    ],
)  # fmt: skip
def test_a_group_that_no_micro_batch_holds(lengths, groups, budgets, message):
    with pytest.raises(OversizedSampleError) as refused:
        plan_step(lengths, capacity=8, dp_world_size=1, groups=groups, groups_share="micro_batch", budgets=budgets)
    assert str(refused.value) == message


def test_groups_that_fit_pass():
    step = plan_step([5, 3, 8], capacity=8, dp_world_size=1, groups=[0, 0, 1], groups_share="micro_batch")
    assert [rows.tolist() for rows in step.micro_batches(0)] == [[0, 1], [2]]


@pytest.mark.parametrize(
    ("lengths", "budgets", "message"),
    [
        (
            [9, 8, 12], None,
            "2 of 3 samples are longer than the capacity of 8 tokens: sample 0 (9), 2 (12). Cut or leave them out before, or "
            "capacity=12",
        ),
        (
            [3, 2], {"squares": 5},
            "1 of 2 samples exceed the capacity of 5 squares: sample 0 (9). Cut or leave them out before, or "
            'budgets={"squares": 9}',
        ),
    ],
)  # fmt: skip
def test_samples_that_no_micro_batch_holds(lengths, budgets, message):
    with pytest.raises(OversizedSampleError) as refused:
        items_of(lengths, budgets=budgets)
    assert str(refused.value) == message


def test_a_sample_without_a_token():
    with pytest.raises(InvalidLengthsError, match=r"^sample 1 has length 0; every sample needs at least 1 token$"):
        items_of([3, 0, -1])

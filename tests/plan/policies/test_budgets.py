"""Budgets of plans: columns of the table, and budgets that follow from the tokens."""

import pytest

from brimful import LengthTable, plan_packs
from brimful.errors import OversizedSampleError, SettingsError
from tests.plan.contents import ids_of


def test_no_budget_is_ever_exceeded():
    """Samples 0 and 1 fit together by tokens, and by patches they do not."""
    table = LengthTable.from_lengths([4, 4, 4, 4], patches=[6, 6, 0, 1])
    plan = plan_packs(table, capacity=8, budgets={"patches": 8}, seed=None)
    plan.validate(table)
    assert plan.num_packs == 2
    assert all(sum(table.budgets["patches"][ids]) <= 8 for ids in ids_of(plan))
    assert plan.settings.budgets == {"patches": 8}


def test_a_limit_on_samples_and_on_squares():
    """Both follow from the tokens and need no column."""
    plan = plan_packs([1] * 9, capacity=100, budgets={"samples": 4}, seed=None)
    assert sorted(len(pack) for pack in plan) == [1, 4, 4]
    plan = plan_packs([6, 6, 2, 2], capacity=12, budgets={"squares": 40}, seed=None)
    assert sorted(sorted(segment.length for segment in pack) for pack in plan) == [[2, 6], [2, 6]]


def test_budgets_that_nobody_measured_are_refused_by_name():
    """Otherwise the limit would silently not hold."""
    with pytest.raises(
        SettingsError, match=r"budgets\['frames'\] is unknown: these lengths have patches, samples, squares"
    ):
        plan_packs(LengthTable.from_lengths([1], patches=[1]), capacity=8, budgets={"frames": 8})
    with pytest.raises(OversizedSampleError, match=r"9.*patches|patches.*9"):
        plan_packs(LengthTable.from_lengths([1], patches=[9]), capacity=8, budgets={"patches": 8})

"""A plan held against lengths, budgets and groups: planted faults are found."""

import numpy as np
import pytest

from brimful import LengthTable, plan_packs
from brimful.errors import PlanMismatchError
from tests.plan.frozen import digest_of


def test_a_plan_is_held_against_its_budgets():
    """A plan opened with other numbers must not pass."""
    table = LengthTable.from_lengths([4, 4], patches=[6, 2])
    plan = plan_packs(table, capacity=8, budgets={"patches": 8}, seed=None)
    with pytest.raises(PlanMismatchError, match="pack 0 holds 12 patches of 8"):
        plan.validate(LengthTable.from_lengths([4, 4], patches=[6, 6]))
    plan.validate([4, 4])  # numbers know nothing of patches, but of what follows from tokens
    plan.settings.budgets["samples"] = 1
    with pytest.raises(PlanMismatchError, match="pack 0 holds 2 samples of 1"):
        plan.validate([4, 4])


def test_a_plan_is_held_against_its_groups():
    """A plan file says which groups it was made with, and a planted fault in them is found."""
    groups = np.array([0, 1, 0, 1, -1])
    plan = plan_packs([3, 3, 4, 4, 1], capacity=8, groups=groups, seed=None)
    plan.validate(np.array([3, 3, 4, 4, 1]), groups=groups)
    assert len(plan.outcome.groups or "") == 32
    apart = plan_packs([3, 3, 4, 4, 1], capacity=8, seed=None)
    with pytest.raises(PlanMismatchError, match="is not side by side in one pack"):
        apart.validate(np.array([3, 3, 4, 4, 1]), groups=np.array([0, -1, 0, -1, -1]))


@pytest.mark.parametrize("count", [1, 3])
def test_a_plan_is_of_its_samples(count):
    """Lengths of more or fewer samples are of other data, whatever their beginning."""
    plan, table = plan_packs([3, 3], capacity=8), LengthTable.from_lengths([3] * count, patches=[1] * count)
    with pytest.raises(PlanMismatchError, match=f"2 samples, not {count}"):
        plan.validate(table)
    with pytest.raises(PlanMismatchError, match=f"2 samples and the length table has {count}"):
        plan.sums_by_pack(table, "patches")


def damaged(change):
    plan = plan_packs([3, 3, 5, 6, 1, 1], capacity=7, seed=None)
    for name in ("sample_ids", "starts", "lengths"):
        setattr(plan, name, np.array(getattr(plan, name)))  # writable copies
    change(plan)
    return plan


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p.sample_ids.__setitem__(0, 4), "overlap|in no pack|ends at"),
        (lambda p: p.lengths.__setitem__(0, 7), "pack 0 holds 8 tokens of 7"),
        (lambda p: p.lengths.__setitem__(2, 4), "do not add up"),
        (lambda p: p.starts.__setitem__(2, 3), "ends at 8, and the sample has 5"),
        (lambda p: p.sample_ids.__setitem__(0, 99), "outside 0 … 5"),
    ],
)
def test_validate_finds_a_planted_fault(change, message):
    """Validation that cannot fail proves nothing."""
    plan_packs([3, 3, 5, 6, 1, 1], capacity=7, seed=None).validate([3, 3, 5, 6, 1, 1])
    with pytest.raises(PlanMismatchError, match=message):
        damaged(change).validate([3, 3, 5, 6, 1, 1])


def _random_fault(chance):
    """What is said of a plan with one number more or less in an array, if anything is wrong."""
    count, capacity = chance.number(4, 12), chance.number(4, 12)
    table = LengthTable.from_lengths(chance.numbers(1, 2 * capacity, count), patches=chance.numbers(0, 9, count))
    groups = chance.of(None, None, np.sort(chance.numbers(-1, 4, count)))
    overflow = chance.of("drop", "split", "truncate") if groups is None else "drop"
    budgets = chance.of(None, {"samples": 3}, {"patches": 20}) if overflow == "drop" else None
    options = {"algorithm": "best_fit_decreasing" if budgets is None else "auto", "budgets": budgets, "groups": groups}
    plan = plan_packs(table, capacity=capacity, overflow=overflow, **options)
    plan.validate(table, groups=groups)
    names = ("sample_ids", "starts", "lengths", "offsets", "dropped_ids")
    for name in chance.of(*((name,) for name in names), ("starts", "lengths")):
        array = np.array(getattr(plan, name))
        if len(array) > 2:
            array[chance.number(1, len(array) - 1)] += chance.of(-1, 1) if name != "dropped_ids" else -1
        setattr(plan, name, array)
    plan.validate(chance.of(table, table.tokens) if budgets is None else table, groups=groups)
    return "nothing is wrong"


def test_random_faults_are_named_as_they_were():
    """A pack one token over, a sample twice or not at all, half a group: each check alone sees some of them."""
    assert digest_of(_random_fault, 600, most_refused=0.9) == "807fb244c8b069b0"

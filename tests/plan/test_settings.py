"""Budgets, alignment, groups, mixing and epochs, all through plan_packs."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful import LengthTable, Plan, plan_packs
from brimful.errors import OversizedSampleError, PlanMismatchError, SettingsError
from brimful.plan import Alignment


def ids_of(plan):
    return [[segment.sample_id for segment in pack] for pack in plan]


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


def test_a_plan_is_held_against_its_budgets():
    """A plan opened beside other numbers must not pass."""
    table = LengthTable.from_lengths([4, 4], patches=[6, 2])
    plan = plan_packs(table, capacity=8, budgets={"patches": 8}, seed=None)
    with pytest.raises(PlanMismatchError, match="pack 0 holds 12 patches of 8"):
        plan.validate(LengthTable.from_lengths([4, 4], patches=[6, 6]))


def test_budgets_that_nobody_measured_are_refused_by_name():
    """Else the limit would silently not hold."""
    with pytest.raises(
        SettingsError, match=r"budgets\['frames'\] is unknown: these lengths have patches, samples, squares"
    ):
        plan_packs(LengthTable.from_lengths([1], patches=[1]), capacity=8, budgets={"frames": 8})
    with pytest.raises(OversizedSampleError, match=r"9.*patches|patches.*9"):
        plan_packs(LengthTable.from_lengths([1], patches=[9]), capacity=8, budgets={"patches": 8})


@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=40),
    segment=st.sampled_from([1, 2, 4, 12]),
    times=st.integers(1, 4),
    capacity=st.integers(64, 200),
    algorithm=st.sampled_from(["auto", "first_fit", "next_fit", "best_fit_decreasing"]),
)
def test_padded_rows_never_exceed_the_capacity(lengths, segment, times, capacity, algorithm):
    """Padding that was not planned for makes rows longer than the model's: an out-of-memory error at step 3,000."""
    alignment = Alignment(segment=segment, total=segment * times)
    plan = plan_packs(lengths, capacity=capacity, alignment=alignment, algorithm=algorithm, overflow="drop")
    plan.validate(np.array(lengths))
    assert plan.alignment == alignment
    for pack in plan:
        padded = sum(-(-part.length // segment) * segment for part in pack)
        assert -(-padded // alignment.total) * alignment.total <= capacity


def test_alignment_is_part_of_the_plan_file(tmp_path):
    """The collator asks the plan what to pad to."""
    plan = plan_packs([5, 9], capacity=32, alignment=Alignment.of_parallelism(cp=2), overflow="drop")
    plan.save(tmp_path / "plan.arrow")
    assert Plan.open(tmp_path / "plan.arrow").alignment == Alignment(segment=4, total=4)
    assert plan_packs([5], capacity=8, alignment=4).alignment == Alignment(segment=4)


def test_truncated_samples_end_where_alignment_lets_them():
    """Capacity 10 in multiples of 4 holds 8: a sample cut at 10 would be padded to 12."""
    plan = plan_packs([11], capacity=10, alignment=4, overflow="truncate")
    assert [tuple(segment) for segment in plan.pack(0)] == [(0, 0, 8)]
    assert plan.ledger.tokens_truncated == 3
    assert plan.ledger.samples_truncated == 1
    assert plan.sample_lengths.tolist() == [11]


def test_groups_stay_together_and_in_order():
    """A preference pair in two packs has no loss; two pairs interleaved have a wrong one."""
    plan = plan_packs([3, 3, 4, 4, 1], capacity=8, groups=[0, 1, 0, 1, -1], seed=None)
    packs = ids_of(plan)
    assert [0, 2] in packs or any(pack[:2] == [0, 2] for pack in packs)
    for pair in ([0, 2], [1, 3]):
        home = next(pack for pack in packs if pair[0] in pack)
        at = home.index(pair[0])
        assert home[at : at + 2] == pair
    with pytest.raises(OversizedSampleError, match="group 7, samples 0"):
        plan_packs([5, 5], capacity=8, groups=[7, 7])
    dropped = plan_packs([5, 5, 2], capacity=8, groups=[7, 7, -1], overflow="drop")
    assert dropped.dropped_ids.tolist() == [0, 1]
    assert dropped.ledger.samples_dropped == 2


def test_a_plan_is_held_against_its_groups():
    """A plan file says which groups it was made with, and a planted fault in them is found."""
    groups = np.array([0, 1, 0, 1, -1])
    plan = plan_packs([3, 3, 4, 4, 1], capacity=8, groups=groups, seed=None)
    plan.validate(np.array([3, 3, 4, 4, 1]), groups=groups)
    assert len(plan.outcome.groups or "") == 32
    apart = plan_packs([3, 3, 4, 4, 1], capacity=8, seed=None)
    with pytest.raises(PlanMismatchError, match="is not side by side in one pack"):
        apart.validate(np.array([3, 3, 4, 4, 1]), groups=np.array([0, -1, 0, -1, -1]))


def test_mix_keeps_the_number_of_packs_and_every_sample():
    """Variety at the cost of fill is not what was asked for."""
    lengths = np.random.default_rng(0).lognormal(5, 1, 3000).clip(1, 2048).astype(np.int32)
    plain, mixed = (plan_packs(lengths, capacity=2048, mix=mix) for mix in (False, True))
    mixed.validate(lengths)
    assert mixed.num_packs == plain.num_packs
    assert mixed.fingerprint != plain.fingerprint
    assert mixed.settings.mix is True


def test_membership_changes_with_the_epoch_only_where_it_is_given():
    """Resuming an epoch must find the same packs; another epoch may ask for new companions at the same fill."""
    lengths = np.random.default_rng(0).integers(1, 40, 2000)
    first, again, later = (plan_packs(lengths, capacity=128, seed=1, epoch=epoch) for epoch in (0, 0, 1))
    assert first.fingerprint == again.fingerprint == plan_packs(lengths, capacity=128, seed=1).fingerprint
    assert later.fingerprint != first.fingerprint
    assert later.num_packs == first.num_packs
    members = lambda plan: {frozenset(ids) for ids in ids_of(plan)}  # noqa: E731
    assert len(members(first) & members(later)) < 0.01 * first.num_packs


def test_the_way_out_of_an_oversized_sample_is_one():
    """With an alignment of 8 the length itself would be refused again."""
    with pytest.raises(OversizedSampleError, match=r"capacity of 16 tokens, in multiples of 8.*capacity=24"):
        plan_packs([20], capacity=20, alignment=8)
    assert plan_packs([20], capacity=24, alignment=8).num_packs == 1


def test_numbers_of_numpy_are_numbers(tmp_path):
    """Settings come from configurations and arrays; a plan made with them must be saved all the same."""
    plan = plan_packs([3, 4], capacity=np.int64(5), seed=np.int64(2), epoch=np.int32(3), min_fill=np.float32(0.5))  # type: ignore[arg-type]
    plan.save(tmp_path / "plan.arrow")
    opened = Plan.open(tmp_path / "plan.arrow")
    assert (opened.settings, opened.outcome, opened.record) == (plan.settings, plan.outcome, plan.record)


def test_a_pack_exactly_at_the_least_fill_is_full_enough():
    """0.55 times 100 is a little above 55 in floating point."""
    plan = plan_packs([55] * 4 + [100], capacity=100, algorithm="best_fit", min_fill=0.55)
    assert plan.outcome.packs_below_min_fill in (None, (0, 0))


def test_packs_below_the_least_fill_come_last_and_nothing_is_dropped():
    """An existing packer drops them: 20 of 25 samples in silence."""
    lengths = [6, 9, 5, 3, 1, 8]
    plan = plan_packs(lengths, capacity=10, algorithm="first_fit", min_fill=0.7, seed=None)
    plan.validate(np.array(lengths))
    assert ids_of(plan) == [[0, 3, 4], [1], [5], [2]]
    assert plan.outcome.packs_below_min_fill == (1, 1)


@given(
    lengths=st.lists(st.integers(1, 50), min_size=1, max_size=40),
    min_fill=st.floats(0, 1),
    algorithm=st.sampled_from(["auto", "first_fit", "worst_fit", "phased"]),
    samples=st.sampled_from([None, 3]),
)
def test_postponing_never_costs_packs_or_samples(lengths, min_fill, algorithm, samples):
    """Full packs first, then the others; as many as without it, or fewer."""
    options = (
        {"capacity": 60, "algorithm": algorithm} if samples is None else {"capacity": 60, "budgets": {"samples": 3}}
    )
    plan = plan_packs(lengths, min_fill=min_fill, **options)
    plan.validate(np.array(lengths))
    assert plan.num_packs <= plan_packs(lengths, **options).num_packs
    full = [
        sum(part.length for part in pack) >= min_fill * 60 or (samples is not None and len(pack) >= min_fill * 3)
        for pack in plan
    ]
    assert full == sorted(full, reverse=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budgets": {"samples": 2}, "algorithm": "next_fit"}, 'algorithm="next_fit" knows tokens alone'),
        ({"budgets": {"tokens": 2}}, "the capacity in tokens is capacity"),
        ({"budgets": {"samples": 0}}, "budgets['samples'] must be from 1"),
        ({"mix": True, "seed": None}, "mix=True exchanges segments at random and needs a seed"),
        ({"mix": True, "budgets": {"samples": 2}}, "would exceed budgets"),
        ({"mix": True, "algorithm": "next_fit"}, 'would break the order that algorithm="next_fit" keeps'),
        ({"algorithm": "concat_split", "alignment": 4}, "leaves no room"),
        ({"algorithm": "concat_split", "groups": [0, 0]}, "groups stay whole"),
        ({"phases": "finish"}, 'phases is for algorithm="phased", and the algorithm is auto'),
        ({"algorithm": "phased", "phases": "begin"}, "begin"),
        ({"alignment": 16}, "no row fits"),
        ({"alignment": 0}, "must be a whole number of at least 1"),
        ({"min_fill": 1.5}, "min_fill is a share"),
        ({"min_fill": 0.5, "algorithm": "next_fit"}, "would break the order"),
        ({"min_fill": "half"}, "min_fill must be a number and is 'half'"),
        ({"epoch": -1}, "epoch must be at least 0"),
        ({"groups": [0]}, "one id for each of 2 samples"),
        ({"groups": [0, 0], "overflow": "split"}, "groups stay whole"),
    ],
)
def test_options_that_contradict_each_other_name_both(options, message):
    """One line that says which two, and what to do."""
    with pytest.raises(ValueError, match=re.escape(message)):
        plan_packs([3, 4], capacity=8, **options)

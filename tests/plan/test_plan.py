"""A plan as it is kept: saved, opened, read like a list; and what it knows of whole samples, so that none is cut after it grew."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful import Plan, plan_packs
from brimful.base.tables import open_table
from brimful.errors import (
    CorruptFileError,
    LengthChangedError,
)
from brimful.testing.strategies import capacities_and_lengths

POLICIES = ["drop", "truncate", "truncate_left", "split"]


def saved(plan, directory):
    plan.save(directory / "plan.arrow")
    return Plan.open(directory / "plan.arrow")


@given(
    case=capacities_and_lengths(oversized=True, max_samples=30),
    policy=st.sampled_from(POLICIES),
    algorithm=st.sampled_from(["best_fit_decreasing", "next_fit", "concat_split"]),
)
def test_every_segment_knows_the_length_of_its_sample(case, policy, algorithm, tmp_path_factory):
    """In memory and from the file: from the segments if they hold all of a sample, otherwise from what was truncated."""
    capacity, lengths = case
    plan = plan_packs(lengths, capacity=capacity, overflow=policy, algorithm=algorithm)
    opened = saved(plan, tmp_path_factory.mktemp("plan"))
    opened.check_fingerprint()
    for each in (plan, opened):
        assert each.sample_lengths.tolist() == [lengths[sample] for sample in plan.sample_ids.tolist()]


def test_samples_that_a_plan_truncated_are_in_its_file(tmp_path):
    """One row after the dropped; without it 9 tokens that became 12 would be cut to 7 as if planned so."""
    plan = plan_packs([3, 9, 4, 7], capacity=7, overflow="truncate", seed=None)
    opened = saved(plan, tmp_path)
    assert (opened.truncated.sample_ids.tolist(), opened.truncated.lengths.tolist()) == ([1], [9])
    table = open_table(tmp_path / "plan.arrow")
    assert (table.description["version"], table.flat("kind").tolist()) == (2, [0, 0, 0, 2])
    with pytest.raises(
        LengthChangedError, match=r"a\.txt:2 \(sample 1\) encodes to 12 tokens and was planned with 9: "
    ):
        opened.check_sample_lengths(slice(0, 1), np.array([12]), lambda sample: f"a.txt:{sample + 1}")


@pytest.mark.parametrize("policy", POLICIES)
def test_plans_that_truncate_nothing_stay_what_they_were(policy, tmp_path):
    """The version that every brimful reads; ``drop`` has its row."""
    plan = plan_packs([3, 9, 4, 7], capacity=7 if policy != "truncate" else 9, overflow=policy)
    assert saved(plan, tmp_path).truncated.sample_ids.tolist() == []
    assert open_table(tmp_path / "plan.arrow").description["version"] == 1


def test_damaged_lengths_of_truncated_samples_are_found(tmp_path):
    """They are in no pack, so the fingerprint of the packs does not hold them."""
    saved(plan_packs([3, 9001, 4, 7], capacity=7, overflow="truncate"), tmp_path)
    path = tmp_path / "plan.arrow"
    data, number = path.read_bytes(), np.int32(9001).tobytes()
    assert data.count(number) == 1
    path.write_bytes(data.replace(number, np.int32(9002).tobytes()))
    with pytest.raises(CorruptFileError, match=r"plan\.arrow: the plan is damaged"):
        Plan.open(path).check_fingerprint()


POLICIES = ["drop", "truncate", "truncate_left", "split"]


@given(case=capacities_and_lengths(oversized=True), policy=st.sampled_from(POLICIES))
def test_a_saved_plan_opens_as_it_was(case, policy, tmp_path_factory):
    """The file is what every rank opens; all arrays and the account survive, memory-mapped."""
    capacity, lengths = case
    plan = plan_packs(lengths, capacity=capacity, overflow=policy)
    path = tmp_path_factory.mktemp("plan") / "plan.arrow"
    plan.save(path)
    opened = Plan.open(path)
    for name in ("offsets", "sample_ids", "starts", "lengths", "dropped_ids"):
        assert getattr(opened, name).tolist() == getattr(plan, name).tolist()
    assert (opened.fingerprint, opened.ledger, opened.record, opened.bound, repr(opened)) == (
        plan.fingerprint,
        plan.ledger,
        plan.record,
        plan.bound,
        repr(plan),
    )
    assert not opened.sample_ids.flags.writeable


def test_a_truncated_plan_is_refused(tmp_path):
    """Half a plan must not open as a shorter one."""
    path = tmp_path / "plan.arrow"
    plan_packs([3, 3, 5], capacity=7).save(path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(CorruptFileError, match=r"plan\.arrow cannot be read"):
        Plan.open(path)


def test_a_plan_is_a_sequence_of_packs():
    """``plan[0]`` was a TypeError, and a slice needed a loop."""
    plan = plan_packs([3, 3, 5, 6, 1, 1], capacity=7, seed=None)
    assert plan[0] == plan.pack(0) == next(iter(plan))
    assert plan[-1] == [(0, 0, 3), (1, 0, 3), (5, 0, 1)]
    assert plan[1:] == [plan.pack(1), plan.pack(2)]
    assert plan[5:] == []
    with pytest.raises(IndexError, match="pack 3 is not in 0 … 2"):
        plan[3]

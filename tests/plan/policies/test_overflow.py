"""Samples longer than a pack, and samples without a target: an error, cut, left out, or packed."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.base.ragged import offsets_of
from brimful.base.tables import Ragged
from brimful.errors import NoTargetError, OversizedSampleError
from brimful.lengths.targets import Targets, runs_of_masks
from brimful.measure import LengthTable
from brimful.plan import Plan, plan_packs
from tests.plan.contents import segments_of


def test_the_way_out_of_an_oversized_sample_is_one():
    """With an alignment of 8 the length itself would be refused again."""
    with pytest.raises(OversizedSampleError, match=r"capacity of 16 tokens, in multiples of 8.*capacity=24"):
        plan_packs([20], capacity=20, alignment=8)
    assert plan_packs([20], capacity=24, alignment=8).num_packs == 1


@pytest.mark.parametrize(
    ("policy", "segments"),
    [
        ("drop", [(0, 0, 3)]),
        ("truncate", [(0, 0, 3), (1, 0, 4)]),
        ("truncate_left", [(0, 0, 3), (1, 6, 4)]),
        ("split", [(0, 0, 3), (1, 0, 4), (1, 4, 4), (1, 8, 2)]),
    ],
)
def test_each_overflow_policy_on_one_long_sample(policy, segments):
    """The policies differ in which tokens survive; a wrong start would train on the wrong end."""
    assert segments_of(plan_packs([3, 10], capacity=4, overflow=policy)) == segments


def test_oversized_error_names_samples_lengths_and_ways_out():
    """The message is the interface: ids, lengths, limit, flags."""
    with pytest.raises(
        OversizedSampleError, match=r"1 of 2 samples .* capacity of 4 tokens: sample 1 \(10\)"
    ) as caught:
        plan_packs([3, 10], capacity=4)
    assert 'overflow="drop", truncate, truncate_left or split, or capacity=10' in str(caught.value)


# Four samples: answers at the end, at the beginning, none, everywhere.
MASKS = ["0011", "0110000", "000", "01111"]


def table_of(masks: list[str]) -> LengthTable:
    values = np.array([letter == "1" for letter in "".join(masks)])
    lengths = np.array([len(mask) for mask in masks], dtype=np.int32)
    return LengthTable({"tokens": lengths}, targets=Targets.of_runs(runs_of_masks(Ragged(values, offsets_of(lengths)))))


def test_by_default_they_are_an_error_that_names_them():
    """Without it a data set whose answers were not understood is packed and teaches nothing."""
    with pytest.raises(NoTargetError) as caught:
        plan_packs(table_of(MASKS), capacity=8)
    assert str(caught.value) == (
        '1 of 4 samples have no target of the loss: sample 2. Choose no_target="drop" to leave them out, or '
        'no_target="keep"'
    )
    assert pickle.loads(pickle.dumps(caught.value)).sample_id == 2
    assert str(caught.value.located("a.jsonl:3")).endswith('no_target="keep"; the first is a.jsonl:3')


@pytest.mark.parametrize(
    ("overflow", "left_out"),
    [("error", [2]), ("truncate", [0, 2]), ("truncate_left", [1, 2]), ("split", [2]), ("drop", [2])],
)
def test_truncation_may_take_all_targets(overflow, left_out):
    """Without it long prompts are packed without the answers that were cut off."""
    capacity = 8 if overflow in ("error", "drop") else 2 if overflow == "truncate" else 4
    table = table_of(MASKS if overflow != "truncate" else ["0011", "0110000", "000", "01"])
    plan = plan_packs(table, capacity=capacity, overflow=overflow, no_target="drop")
    assert plan.dropped_ids.tolist() == left_out
    plan.validate(table)
    assert plan.outcome.dropped_by["no_target"] == len(left_out)


def test_kept_samples_are_counted():
    """Without it users do not see how much of the packs teaches nothing."""
    ledger = plan_packs(table_of(MASKS), capacity=8, no_target="keep").ledger
    assert (ledger.samples_without_target, ledger.samples_packed) == (1, 4)
    assert (ledger.targets_in, ledger.targets_packed, ledger.targets_dropped, ledger.targets_cut) == (8, 8, 0, 0)


@pytest.mark.parametrize("policy", ["error", "drop", "keep"])
def test_packs_that_teach_nothing_are_an_error_whatever_the_policy(policy):
    """Without it a store is written of which no token is ever learnt."""
    with pytest.raises(NoTargetError, match=r"none of 2 samples has a target of the loss.*would teach nothing"):
        plan_packs(table_of(["000", "1"]), capacity=8, no_target=policy)


def test_packs_of_which_all_targets_were_lost_are_an_error():
    """Without it the samples that teach are dropped for their length, and samples that teach nothing are packed."""
    with pytest.raises(
        NoTargetError, match=r"of 7 targets of the loss none is in a pack: 7 were dropped and 0 cut off"
    ):
        plan_packs(table_of(["01111111", "00"]), capacity=4, overflow="drop", no_target="keep")


def test_a_group_stays_as_long_as_one_of_it_teaches():
    """Without it half of an episode would be left out."""
    masks = ["00", "01", "00", "00", "01"]
    plan = plan_packs(table_of(masks), capacity=8, groups=[1, 1, 2, 2, -1], no_target="drop")
    assert plan.dropped_ids.tolist() == [2, 3]


def test_lengths_without_targets_are_planned_as_before():
    """Without it plans of plain numbers would need a policy for the unknown."""
    plan = plan_packs([3, 3], capacity=8)
    assert (plan.ledger.targets_in, "targets_in" in plan.ledger.as_dict()) == (None, False)
    known = table_of(["011", "011"])
    assert plan_packs(known, capacity=8).fingerprint == plan.fingerprint
    assert plan_packs(known, capacity=8).record == plan.record


def test_the_account_is_kept_with_the_plan(tmp_path):
    """Without it a report of a saved plan would not know its targets."""
    plan = plan_packs(table_of(MASKS), capacity=4, overflow="split", no_target="drop")
    plan.save(tmp_path / "plan.arrow")
    assert Plan.open(tmp_path / "plan.arrow").ledger == plan.ledger


@given(
    st.lists(st.text("01", min_size=1, max_size=9), min_size=1, max_size=8),
    st.integers(2, 9),
    st.sampled_from(["drop", "truncate", "truncate_left", "split"]),
    st.sampled_from(["drop", "keep"]),
    st.sampled_from(["auto", "next_fit", "concat_split"]),
)
def test_targets_in_are_targets_packed_dropped_and_cut(masks, capacity, overflow, policy, algorithm):
    """The law of targets, by token and by sample, against the masks themselves."""
    table = table_of(masks)
    try:
        plan = plan_packs(table, capacity=capacity, overflow=overflow, no_target=policy, algorithm=algorithm)
    except NoTargetError:
        lengths = [len(mask) for mask in masks]
        plan = plan_packs(lengths, capacity=capacity, overflow=overflow, algorithm=algorithm)
        cut = [masks[s.sample_id][s.start + 1 : s.start + s.length] for pack in plan for s in pack]
        assert not any("1" in mask for mask in cut)
        return
    packed, taught = 0, set()
    for pack in plan:
        for segment in pack:
            inside = masks[segment.sample_id][segment.start + 1 : segment.start + segment.length].count("1")
            packed += inside
            if inside:
                taught.add(segment.sample_id)
    ledger = plan.ledger
    dropped = sum(masks[sample_id][1:].count("1") for sample_id in plan.dropped_ids.tolist())
    everything = sum(mask[1:].count("1") for mask in masks)
    assert (ledger.targets_in, ledger.targets_packed, ledger.targets_dropped) == (everything, packed, dropped)
    assert ledger.targets_cut == everything - packed - dropped
    in_packs = {segment.sample_id for pack in plan for segment in pack}
    assert ledger.samples_without_target == len(in_packs - taught)
    if policy == "drop" and algorithm != "concat_split" and overflow != "split":
        assert in_packs == taught

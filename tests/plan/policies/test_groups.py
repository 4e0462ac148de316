"""Pairs, episodes and turns of one tree stay together, or fail clearly."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful import LengthTable, plan_packs
from brimful.errors import InvalidLengthsError, OversizedSampleError, SettingsError
from brimful.plan.items import prepare_items
from brimful.plan.packing import Packing
from brimful.plan.plan_settings import PlanSettings
from brimful.plan.policies.budgets import Alignment
from brimful.plan.policies.groups import ALONE, as_groups, group_items
from brimful.plan.policies.overflow import Overflow
from brimful.planners.vector.pack_vectors import pack_vectors
from tests.plan.contents import ids_of

NONE = Alignment()


def column(lengths):
    return np.array(lengths, dtype=np.int64).reshape(-1, 1)


def items_and_packs(tokens, groups, capacity, policy=Overflow.ERROR, alignment=NONE, **others):
    table = LengthTable({"tokens": np.array(tokens, dtype=np.int32)})
    settings = PlanSettings(capacity=capacity, budgets=others, overflow=policy, alignment=alignment)
    items = prepare_items(table, settings, groups=groups)
    sizes = items.sizes if items.sizes.ndim > 1 else items.sizes[:, None]
    packing = items.groups.to_samples(pack_vectors(sizes, capacities=items.capacities).packs)
    return items, [[int(items.segments.sample_ids[row]) for row in pack] for pack in packing.as_lists()]


def test_five_samples_become_three_items():
    """The drawing of the docstring, and the way back."""
    groups = group_items(column([5, 2, 4, 1, 1]), np.array([7, -1, 3, 7, 3]))
    assert groups.sizes.tolist() == [[6], [2], [5]]
    assert groups.names.tolist() == [7, ALONE, 3]
    assert groups.members.tolist() == [0, 3, 1, 2, 4]
    packed = groups.to_samples(Packing(np.array([0, 1, 3]), np.array([2, 1, 0])))
    assert packed.as_lists() == [[2, 4], [1, 0, 3]]


def test_pairs_share_a_pack():
    """Chosen and rejected answers: 5 + 4 and 3 + 2 are items; taken singly, 5 + 3 + 2 would share a pack of 10."""
    _, packs = items_and_packs([5, 3, 4, 2, 1], [0, 1, 0, 1, ALONE], 10)
    assert sorted(sorted(pack) for pack in packs) == [[0, 2, 4], [1, 3]]


@given(
    tokens=st.lists(st.integers(1, 12), min_size=1, max_size=40),
    data=st.data(),
    segment=st.sampled_from([1, 4]),
)
def test_groups_are_whole_or_absent(tokens, data, segment):
    """The law, with alignment, dropping and a limit on samples: together, in order, side by side, within capacity."""
    groups = data.draw(st.lists(st.integers(-1, 8), min_size=len(tokens), max_size=len(tokens)))
    items, packs = items_and_packs(tokens, groups, 32, Overflow.DROP, Alignment(segment=segment), samples=4)
    seen = [sample for pack in packs for sample in pack]
    assert sorted([*seen, *items.segments.dropped_ids.tolist()]) == list(range(len(tokens)))
    assert sum(items.dropped_by.values()) == len(items.segments.dropped_ids)
    for pack in packs:
        assert len(pack) <= 4
        assert sum(-(-tokens[sample] // segment) * segment for sample in pack) <= 32
    for group in set(groups) - {ALONE}:
        members = [sample for sample, its in enumerate(groups) if its == group]
        homes = [pack for pack in packs if set(pack) & set(members)]
        if homes:
            assert len(homes) == 1
            at = homes[0].index(members[0])
            assert homes[0][at : at + len(members)] == members
        else:
            size = sum(-(-tokens[sample] // segment) * segment for sample in members)
            assert size > 32 or len(members) > 4, "a group that fits was dropped"


def test_a_group_too_large_is_an_error_with_its_samples():
    """Name, samples, lengths, sum, capacity, way out."""
    with pytest.raises(OversizedSampleError) as caught:
        items_and_packs([6, 1, 7, 2], [5, ALONE, 5, ALONE], 10)
    assert str(caught.value) == (
        "group 5, samples 0 (6), 2 (7), takes 13 tokens and exceeds the capacity of 10. "
        'Choose overflow="drop", which leaves out whole groups, or capacity=13'
    )
    with pytest.raises(OversizedSampleError, match="sample 1 \\(11\\), takes 11 tokens"):
        items_and_packs([6, 11], [ALONE, ALONE], 10)


def test_rows_of_preferences_are_named_as_rows():
    """Without it their user, who has rows, is told of groups and samples, and not that sides can be cut."""
    table = LengthTable({"tokens": np.array([1, 2, 6, 7, 8, 9], np.int32)}, provenance={"group_size": 2})
    with pytest.raises(OversizedSampleError) as caught:
        prepare_items(table, PlanSettings(capacity=10))
    assert str(caught.value) == (
        "row 1 (number 2 of the data), 6 + 7 tokens, takes 13 tokens and exceeds the capacity of 10; so do 1 more. "
        'Choose overflow="drop", which leaves out whole rows, overflow="truncate", which cuts each sample to half a pack, '
        "or capacity=17"
    )


def test_dropping_takes_the_whole_group():
    """All samples of it are counted, by the budget that was exceeded."""
    items, packs = items_and_packs([6, 1, 7, 2, 1, 1, 1], [5, ALONE, 5, ALONE, 9, 9, 9], 10, Overflow.DROP, samples=2)
    assert items.segments.dropped_ids.tolist() == [0, 2, 4, 5, 6]
    assert items.dropped_by == {"tokens": 2, "samples": 3}
    assert packs == [[1, 3]] or packs == [[3, 1]]


def test_a_rejected_member_takes_its_group_along():
    """Half a pair is not a pair; the half that was readable counts as dropped, the other was rejected before."""
    items, packs = items_and_packs([5, -1, 4], [3, 3, ALONE], 10)
    assert (packs, items.segments.dropped_ids.tolist(), items.dropped_by) == ([[2]], [0], {"group_mate_rejected": 1})


@pytest.mark.parametrize("policy", [Overflow.TRUNCATE, Overflow.TRUNCATE_LEFT, Overflow.SPLIT])
def test_policies_that_cut_are_refused(policy):
    """A cut pair is not that pair."""
    with pytest.raises(SettingsError, match=f'overflow="{policy.value}" cuts samples, and groups stay whole'):
        as_groups([0, 0], num_samples=2, policy=policy)


@pytest.mark.parametrize(
    ("groups", "message"),
    [([0, 1, 2], "one id for each of 2"), ([[0, 1]], "one id"), ([0, -2], "group -2"), ([0.5, 1], "whole")],
)
def test_impossible_groups(groups, message):
    """Wrong number, wrong id, no whole numbers."""
    with pytest.raises(InvalidLengthsError, match=message):
        as_groups(groups, num_samples=2, policy=Overflow.ERROR)


def test_a_million_pairs_expand():
    """Vectorised: in Python loops this alone would take seconds."""
    number = 1_000_000
    groups = group_items(column(np.ones(2 * number)), np.arange(2 * number) % number)
    packing = groups.to_samples(Packing(np.arange(0, number + 1, 4), np.arange(number)[::-1].copy()))
    assert packing.items[:4].tolist() == [number - 1, 2 * number - 1, number - 2, 2 * number - 2]
    assert np.array_equal(np.sort(packing.items), np.arange(2 * number))
    assert set(np.diff(packing.offsets).tolist()) == {8}


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

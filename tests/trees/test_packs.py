"""A store of trees whose segments, samples or targets contradict each other is refused, and the fault is named."""

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful import open_packs
from brimful.errors import CorruptFileError
from brimful.report.store_check import check_store
from brimful.store.shards import ShardReader
from brimful.testing.toys import toy_tree
from brimful.trees.pack_tree import tree_of
from brimful.trees.packs import fault as tree_fault
from tests.trees.plans import written_trees

SAMPLES = [[1, 2, 3, 4], [1, 2, 3, 5, 6], [1, 2, 3, 5, 7], [1, 2, 3], [1, 2, 3], [9]]


def pack():
    """Segments: 0 the trunk 1 2 3 of samples 3 and 4, 1 empty, 2: 4, 3: 5 with 4: 6 and 5: 7, 6: 9."""
    return toy_tree(SAMPLES)


def changed(column, place, value):
    """The pack with another number in one of its columns."""
    whole = pack()
    holder = tree_of(whole) if column in ("parents", "spans", "span_sizes") else whole
    values = getattr(holder, column).copy()
    values[place] = value
    if holder is whole:
        return replace(whole, **{column: values})
    return replace(whole, sharing=replace(tree_of(whole), **{column: values}))


def test_the_pack_is_as_the_faults_expect():
    assert tree_of(pack()).parents.tolist() == [-1, 0, 0, 0, 3, 3, -1]
    assert pack().starts.tolist() == [0, 3, 3, 3, 4, 4, 0]
    assert np.diff(pack().cu_seqlens).tolist() == [3, 0, 1, 1, 1, 1, 1]
    assert tree_fault(pack()) == ""


@pytest.mark.parametrize(
    ("column", "place", "value", "fault"),
    [
        ("parents", 2, 4, "segment 2 continues segment 4, which is not before it"),
        ("parents", 2, 2, "segment 2 continues segment 2, which is not before it"),
        ("parents", 6, -2, "segment 6 continues segment -2, which is not before it"),
        (
            "parents",
            5,
            2,
            "segment 5 continues segment 2, whose subtree has ended: segments are not in depth-first order",
        ),
        ("parents", 6, 5, "segment 6 begins at depth 0 instead of 5"),
        ("parents", 1, -1, "segment 1 begins at depth 3 instead of 0"),
        ("parents", 2, 1, "segment 2 continues segment 1, which is empty"),
        ("starts", 4, 0, "segment 4 begins at depth 0 instead of 4"),
        ("cu_seqlens", 3, 3, "segment 4 begins at depth 4 instead of 5"),
        ("cu_seqlens", 6, 6, "segment 5 is empty, and stands at a root or after a branch"),
        ("cu_seqlens", 7, 7, "segment 6 is empty, and stands at a root or after a branch"),
        ("sample_ids", 5, 1, "sample 1 ends twice"),
        ("spans", 0, 0, r"sample 3 has 3 tokens, and its targets are \[0, 3\]"),
        ("spans", 1, 4, r"sample 3 has 3 tokens, and its targets are \[1, 4\]"),
        ("spans", 0, 2, ""),
        ("spans", 0, 3, r"sample 3 has 3 tokens, and its targets are \[3, 3\]"),
        ("spans", 0, 4, r"sample 3 has 3 tokens, and its targets are \[4, 3\]"),
        ("span_sizes", 0, 0, "it has targets of 6 samples and holds 6"),
        ("span_sizes", 0, 2, "it has targets of 6 samples and holds 6"),
        ("loss_mask", 0, True, "token 0 is a target of the loss mask, and not of a sample"),
        ("loss_mask", 4, False, "token 4 is a target of a sample, and not of the loss mask"),
        ("loss_mask", [3, 4], False, "token 3 is a target of a sample, and not of the loss mask"),
    ],
)
def test_a_fault_is_named(column, place, value, fault):
    """One number is changed in each case. The target that one of two samples loses is still the other's."""
    found = tree_fault(changed(column, place, value))
    assert re.match(fault, found) if fault else not found, found


@pytest.mark.parametrize("change", [-1, 1])
def test_each_sample_has_a_number_of_spans(change):
    """Of one sample fewer or more, the targets of the others would still add up."""
    whole = toy_tree([[1, 2], [1, 3], [1, 4]], [[True] * 2, [True] * 2, [False] * 2])
    tree = tree_of(whole)
    sizes = np.resize(np.append(tree.span_sizes, 0), 3 + change).astype(np.int32)
    found = tree_fault(replace(whole, sharing=replace(tree, span_sizes=sizes)))
    assert found == f"it has targets of {3 + change} samples and holds 3"


def test_a_later_span_ends_with_its_sample():
    """The first of two spans is right, and the second goes on into the next sample."""
    whole = toy_tree([[1, 2, 3, 4], [9, 8]], [[False, True, False, True], [True] * 2])
    tree = tree_of(whole)
    assert tree.spans.tolist() == [1, 2, 3, 4, 1, 2]
    spans = np.array([1, 2, 3, 5, 1, 2], dtype=np.int32)
    found = tree_fault(replace(whole, sharing=replace(tree, spans=spans)))
    assert found == "sample 0 has 4 tokens, and its targets are [1, 2, 3, 5]"


def test_a_tree_that_has_ended_has_no_further_branch():
    """Not even the first tree of the pack, after the root of the second."""
    whole = toy_tree([[1, 2], [1, 3], [9, 4], [9, 5]])
    tree = tree_of(whole)
    parents = tree.parents.copy()
    assert parents.tolist() == [-1, 0, 0, -1, 3, 3]
    parents[5] = 0
    assert tree_fault(replace(whole, sharing=replace(tree, parents=parents))).startswith(
        "segment 5 continues segment 0, whose subtree has ended"
    )
    for count in (5, 7):
        other = replace(tree, parents=np.resize(tree.parents, count))
        assert tree_fault(replace(whole, sharing=other)) == f"it has {count} parents for 6 segments"


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=8), st.randoms())
def test_trees_of_any_samples_have_no_fault(samples, random):
    masks = [[random.random() < 0.5 for _ in sample] for sample in samples]
    assert tree_fault(toy_tree(samples, masks)) == ""


def test_the_row_of_a_store_is_named(tmp_path, monkeypatch):
    """As a writer with a fault of its own would leave it: every checksum is right."""
    plan = written_trees(tmp_path, ["aab", "aac", "bbd", "bbe"], [[0, 1], [2, 3]])
    assert check_store(tmp_path, plan=plan).samples == 4
    read = ShardReader.pack

    def with_fault(reader, row):
        made = read(reader, row)
        return replace(made, starts=made.starts * 0) if row == 1 else made

    monkeypatch.setattr(ShardReader, "pack", with_fault)
    with pytest.raises(CorruptFileError, match=r"row 1 holds no tree: segment 1 begins at depth 0 instead of 2"):
        check_store(tmp_path)


@pytest.mark.parametrize("twice", [1, 2])
def test_a_sample_in_two_trees_is_named(tmp_path, monkeypatch, twice):
    """A group that was split and joined again: its totals are right, and a sample trains twice. The last pack may be
    flat.
    """
    written_trees(tmp_path, ["aab", "aac", "bbd", "bbe", "ccf", "ccg"], [[0, 1], [2, 3], [4, 5]], packs_per_shard=3)
    read, others = ShardReader.pack, open_packs(tmp_path)[twice - 1].sample_ids

    def with_fault(reader, row):
        made = read(reader, row)
        if row == twice:
            return replace(made, sample_ids=others)
        return replace(made, sharing=None) if row == 2 else made

    monkeypatch.setattr(ShardReader, "pack", with_fault)
    with pytest.raises(CorruptFileError, match=f"holds sample {2 * twice - 2} in several trees"):
        check_store(tmp_path)

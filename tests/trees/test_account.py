"""What the samples of a plan share, counted by hand and against sets of prefixes."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful import LengthTable, plan_packs
from brimful.store.summary import describe_sizes, fill_of
from brimful.testing.toys import toy_tree
from brimful.trees.account import (
    SharedTokens,
    lengths_in_packs,
    sample_ends,
    tree_of_pack,
)
from brimful.trees.pack_tree import tree_of
from tests.trees.plans import plan_of_trees, table_with_prefixes

PACKS = st.lists(st.integers(0, 3), min_size=10, max_size=10)
"""The pack of each of up to ten samples; 3 for the ones that are dropped."""

SAMPLES = [[5, 6, 7, 8], [5, 6, 7, 9, 9], [5, 6, 7], [1, 2], [5, 6, 1, 1], [3]]


def samples_of(tokens):
    """Up to ten samples of tokens below a number, of which many share a beginning."""
    return st.lists(st.lists(st.integers(0, tokens - 1), min_size=1, max_size=6), min_size=1, max_size=10)


def groups_of(samples, packs):
    """Numbers of the samples of each pack that has any."""
    groups = [[n for n in range(len(samples)) if packs[n] == pack] for pack in range(3)]
    return [group for group in groups if group]


def test_a_plan_in_numbers():
    """Samples 0, 1 and 2 share 5 6 7; 4 shares 5 6 with them and is in another pack."""
    table = table_with_prefixes(SAMPLES, least=2)
    plan = plan_of_trees(SAMPLES, [[0, 1, 2], [3, 4, 5]], capacity=8)
    shared = SharedTokens.of(plan, table)
    assert shared is not None
    assert shared.not_shared is not None
    assert (shared.flat_tokens, shared.tree_tokens, shared.samples, shared.sharing, shared.trees) == (19, 13, 6, 3, 1)
    # 9 + (16 - 9) + (25 - 9) + 4 + 16 + 1 of 16 + 25 + 9 + 4 + 16 + 1
    assert (shared.flat_squares, shared.tree_squares, shared.fork_tokens) == (71, 53, 1)
    assert vars(shared.not_shared) == {"too_short": 1, "alone": 1, "apart": 1, "repeated_tokens": 2, "least": 2}
    assert shared.lines() == [
        "shared         19 tokens of samples are 13 in the packs, 1.46 times fewer; 3 of 6 samples share, in 1 tree",
        "not shared     1 sample shorter than 2 tokens, 1 sample whose beginning no other has, 1 sample in other packs "
        "than all that share with them, 2 tokens of trunks in further packs",
        "speed-up       1.46 times in layers by their tokens, 1.34 times in attention; head, loss and optimizer have no "
        "less work",
    ]
    assert fill_of(plan, shared) == "81.25 %, and 6.25 % are room for forks"
    assert plan.samples_of_packs.tolist() == [3, 3]


@given(samples_of(4), PACKS)
def test_what_lies_in_a_trunk_counts_once(samples, packs):
    """Token 3 stands for a picture."""
    groups = groups_of(samples, packs)
    if not groups:
        return
    plan, table = plan_of_trees(samples, groups), table_with_prefixes(samples, least=1)
    prefixes = table.sharing
    assert prefixes is not None
    shared = [samples[sample][:length].count(3) for sample, length in zip(prefixes.order, prefixes.shared, strict=True)]
    table.budgets["pictures"] = np.array([sample.count(3) for sample in samples], dtype=np.int32)
    with_amounts = replace(prefixes, amounts={"pictures": np.array(shared, dtype=np.int32)})
    table.sharing = with_amounts
    expected = [
        len({tuple(samples[n][: end + 1]) for n in group for end, token in enumerate(samples[n]) if token == 3})
        for group in groups
    ]
    assert plan.sums_by_pack(table, "pictures").tolist() == expected
    table.sharing = prefixes
    assert plan.sums_by_pack(table, "pictures").tolist() == [
        sum(samples[n].count(3) for n in group) for group in groups
    ]


def test_a_flat_plan_shares_nothing():
    plan = plan_packs([3, 3, 5], capacity=6)
    assert SharedTokens.of(plan) is None
    assert fill_of(plan, None) == "91.67 %"
    assert lengths_in_packs(plan).tolist() == plan.lengths.tolist()


def test_a_plan_of_trees_without_packs_shares_nothing():
    """Every sample is too long: nothing is left to divide by."""
    plan = plan_packs(table_with_prefixes(SAMPLES[:2]), capacity=2, share="prefixes", overflow="drop")
    assert plan.num_packs == 0
    assert plan.sharing is not None
    assert SharedTokens.of(plan) is None


@pytest.mark.parametrize("table", [None, LengthTable.from_lengths([2, 2])], ids=["without", "of lengths alone"])
def test_why_samples_do_not_share_is_said_where_it_is_known(table):
    """From the prefixes of all samples, and only if they have something to say."""
    samples = [[1, 2], [1, 3]]
    plan = plan_of_trees(samples, [[0, 1]])
    shared = SharedTokens.of(plan, table)
    assert shared is not None
    assert shared.not_shared is None
    told = SharedTokens.of(plan, table_with_prefixes(samples))
    assert told is not None
    assert told.not_shared is not None
    assert told.not_shared.phrases == ""
    assert [line.split()[0] for line in shared.lines()] == ["shared", "speed-up"]
    assert told.lines() == shared.lines()


@pytest.mark.parametrize(("ones", "median"), [(25, 2), (26, 1)])
def test_the_median_is_the_lower_of_two(ones, median):
    """Of 51 or 52 packs, each of one sample or of two."""
    plan = plan_packs([10] * ones + [5] * 52, capacity=10)
    assert f"median {median}, most 2" in describe_sizes(plan)


@given(samples_of(2), PACKS)
def test_counts_are_of_sets_of_prefixes(samples, packs):
    """What dropped samples share with others counts for nothing."""
    groups = groups_of(samples, packs)
    if not groups:
        return
    plan = plan_of_trees(samples, groups)
    shared = SharedTokens.of(plan, table_with_prefixes(samples, least=1))
    assert shared is not None
    assert shared.not_shared is not None

    def prefixes(members):
        return {tuple(samples[n][:end]) for n in members for end in range(1, len(samples[n]) + 1)}

    def sharing(members):
        """Samples with the first token of another member."""
        return [n for n in members if any(samples[m][0] == samples[n][0] for m in members if m != n)]

    packed = sorted(n for group in groups for n in group)
    assert [plan.sample_ids[end] for end in sample_ends(plan)] == [
        n for group in groups for n in sorted(group, key=lambda n: (samples[n], n))
    ]
    assert plan.samples_of_packs.tolist() == list(map(len, groups))
    assert lengths_in_packs(plan).tolist() == [len(samples[plan.sample_ids[end]]) for end in sample_ends(plan)]
    for index, group in enumerate(groups):
        made, tree = tree_of(toy_tree([samples[n] for n in group])), tree_of_pack(plan, index)
        assert replace(tree, ends=made.ends) == made.without_targets()
        assert tree.ends.tolist() == made.ends.tolist()
    assert shared.flat_tokens == sum(len(samples[n]) for n in packed)
    assert shared.flat_squares == sum(len(samples[n]) ** 2 for n in packed)
    assert shared.tree_tokens == sum(len(prefixes(group)) for group in groups)
    assert shared.tree_squares == sum(2 * len(prefix) - 1 for group in groups for prefix in prefixes(group))
    # Distinct tokens that come after each token of a tree, less the first of them.
    nexts = [
        {prefix[:-1]: {p[-1] for p in prefixes(group) if p[:-1] == prefix[:-1]} for prefix in prefixes(group)}
        for group in groups
    ]
    assert shared.fork_tokens == sum(len(after) - 1 for one in nexts for prefix, after in one.items() if prefix)
    assert shared.sharing == sum(len(sharing(group)) for group in groups)
    assert shared.not_shared.repeated_tokens == shared.tree_tokens - len(prefixes(packed))
    assert shared.not_shared.alone == len(packed) - len(sharing(packed))
    assert shared.not_shared.apart == len(sharing(packed)) - shared.sharing

"""Plans in which samples share their beginnings: each sample whole and once, nothing over a limit, few packs."""

import json
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful import LengthTable, Plan, plan_packs
from brimful.base.compiling import compiled_forms
from brimful.clusters.source_plans import PackMetadata
from brimful.errors import OversizedSampleError, PlanMismatchError, SettingsError
from brimful.mixtures import consumed_samples
from brimful.testing.toys import toy_tree
from brimful.trees.plan import forest as forest_module
from brimful.trees.plan import subtree_fit
from brimful.trees.plan.plan_trees import PlanTrees
from brimful.trees.prefixes import Prefixes
from tests.trees.plan.forests import (
    optimum_of,
    paths_of,
    size_of,
    stretched,
    table_of,
    wide_words,
    words,
)


def planned(samples, capacity, **options):
    return plan_packs(table_of(samples), capacity=capacity, share="prefixes", **options)


def forked_tokens(plan):
    """Tokens of each pack after each branch of a trunk but the first has repeated a token."""
    tokens = []
    for begin, end in zip(plan.offsets[:-1].tolist(), plan.offsets[1:].tolist(), strict=True):
        lengths, parents = plan.lengths[begin:end].tolist(), plan.sharing.parents[begin:end].tolist()
        trunks = [parent for parent, length in zip(parents, lengths, strict=True) if parent >= 0 and length]
        tokens.append(sum(lengths) + len(trunks) - len(set(trunks)))
    return tokens


@given(words | wide_words, st.integers(0, 60), st.integers(0, 3))
def test_every_sample_is_one_path_and_no_pack_is_too_long(letters, more, seed):
    """Tokens of a path are the ones of its sample; a pack has room for the form with forks, whether its pieces were
    placed one by one or, above a number of them, as samples are.
    """
    samples = stretched(letters)
    table, capacity = table_of(samples), max(map(len, samples)) + more
    with mock.patch.object(subtree_fit, "_FEW", 2):
        many = planned(samples, capacity, seed=seed)
    plan = planned(samples, capacity, seed=seed)
    for one in (many, plan):
        one.validate(table)
        fullest = max(forked_tokens(one))
        assert fullest <= capacity
        with pytest.raises(PlanMismatchError, match=f"holds {fullest:,} tokens of {fullest - 1:,}"):
            replace(one, capacity=fullest - 1).validate(table)
    seen = []
    for paths in paths_of(plan):
        seen += list(paths)
        for sample, path in paths.items():
            tokens = []
            for row in path:
                start, length = int(plan.starts[row]), int(plan.lengths[row])
                assert start == len(tokens)
                tokens += samples[int(plan.sample_ids[row])][start : start + length]
            assert tokens == samples[sample]
    assert sorted(seen) == list(range(len(samples)))
    assert plan.pack_tokens.max() <= capacity
    account = plan.ledger
    assert account.tokens_packed + account.tokens_shared == sum(map(len, samples)) == account.tokens_in


@given(words)
def test_segments_are_the_ones_of_the_slow_reference(letters):
    """The canonical form of packs, where no trunk is a crumb."""
    samples = stretched(letters, 16)
    plan = planned(samples, 1 << 20, seed=None)
    pack = toy_tree(samples)
    assert plan.num_packs == 1
    assert plan.sharing.parents.tolist() == pack.sharing.parents.tolist()
    assert plan.lengths.tolist() == np.diff(pack.cu_seqlens).tolist()
    assert plan.starts.tolist() == pack.starts.tolist()
    assert plan.sample_ids.tolist() == pack.sample_ids.tolist()
    assert (plan.ledger.tokens_packed, 0) == (len(pack), plan.ledger.samples_dropped)


def test_one_tree_in_numbers():
    """Two trunks, a sample that ends where its trunk ends, and its duplicate; capacity for one pack."""
    samples = stretched([[0, 0, 0], [0, 0, 0], [0, 0, 0, 1], [0, 0, 1], [1]], 20)
    plan = planned(samples, 200, seed=None)
    names = ("sample_ids", "starts", "lengths")
    assert {name: getattr(plan, name).tolist() for name in names} == {
        "sample_ids": [0, 0, 1, 2, 3, 4],
        "starts": [0, 40, 60, 60, 40, 0],
        "lengths": [40, 20, 0, 20, 20, 20],
    }
    assert plan.sharing.parents.tolist() == [-1, 0, 1, 1, 0, -1]
    assert plan.ends_sample.tolist() == [False, True, True, True, True, True]
    assert plan.sample_lengths.tolist() == [60, 60, 60, 80, 60, 20]
    assert (plan.ledger.tokens_packed, plan.ledger.tokens_shared, plan.ledger.segments) == (120, 160, 6)
    assert plan.fill_ratio == 0.6


def small_forest(seed):
    draw = np.random.default_rng(seed)
    letters = [draw.integers(0, 2, draw.integers(1, 7)).tolist() for _ in range(draw.integers(1, 8))]
    samples = stretched(letters, int(draw.integers(8, 24)))
    return samples, max(map(len, samples)) + int(draw.integers(0, 120))


@pytest.mark.parametrize(
    "seeds", [range(200), pytest.param(range(200, 5_200), marks=pytest.mark.long)], ids=["some", "all"]
)
def test_the_bound_is_never_above_the_optimum(seeds):
    """And plans are seldom above it: brute force on up to seven samples."""
    above = 0
    for seed in seeds:
        samples, capacity = small_forest(seed)
        plan = planned(samples, capacity, seed=seed)
        plan.validate(table_of(samples))
        optimum = optimum_of([tuple(sample) for sample in samples], capacity)
        assert plan.bound <= optimum <= plan.num_packs, seed
        for paths in paths_of(plan):
            # Crumbs are repeated, so that the union may be smaller than the pack.
            assert sum(size_of([tuple(samples[sample]) for sample in paths])) <= capacity
        above += plan.num_packs > optimum
    assert above <= 0.02 * len(seeds)


@given(words, st.integers(0, 100), st.booleans())
def test_compiled_code_changes_nothing(letters, more, has_budget):
    """Numba may be missing."""
    samples = stretched(letters)
    capacity = max(map(len, samples)) + more
    budgets = {"samples": 3} if has_budget else None
    plans = []
    for use in (False, True):
        with compiled_forms(use):
            plans.append(planned(samples, capacity, budgets=budgets))
    assert plans[0].fingerprint == plans[1].fingerprint


def test_a_forest_of_all_sizes_is_the_same_compiled():
    """Large trunks, deep chains, and trunks with more pieces than are placed one by one."""
    draw = np.random.default_rng(0)
    num_samples = 3_000
    shared = np.where(np.arange(num_samples) % 700, draw.integers(0, 40, num_samples) * 50, 0)
    lengths = np.maximum(shared, np.append(shared[1:], 0)) + draw.integers(1, 400, num_samples)
    table = LengthTable(
        {"tokens": lengths.astype(np.int32)}, sharing=Prefixes(np.arange(num_samples), shared.astype(np.int32))
    )
    plans = []
    for use in (False, True):
        with compiled_forms(use):
            plans.append(plan_packs(table, capacity=5_000, share="prefixes"))
    assert plans[0].fingerprint == plans[1].fingerprint
    plans[0].validate(table)
    assert plans[0].num_packs <= 1.2 * plans[0].bound


@given(words, st.integers(1, 6), st.integers(0, 200), st.integers(0, 30))
def test_no_budget_is_exceeded(letters, most_samples, more_squares, cut):
    """Samples, squares of paths, and what is measured: shared once if the table says so, otherwise for each sample; also of
    samples that were cut, which count as if they were whole.
    """
    samples = stretched(letters)
    longest = max(map(len, samples))
    table = table_of(samples, patches=3)
    budgets = {"samples": most_samples, "squares": longest**2 + more_squares**2, "patches": 3 * longest + more_squares}
    options = {"max_path": max(1, longest - cut), "overflow": "truncate"}
    plan = plan_packs(table, capacity=2 * longest, share="prefixes", budgets=budgets, **options)
    plan.validate(table)
    samples = [sample[: options["max_path"]] for sample in samples]
    for pack, paths in enumerate(paths_of(plan)):
        distinct = {tuple(samples[sample][:end]) for sample in paths for end in range(1, len(samples[sample]) + 1)}
        assert len(paths) <= most_samples
        assert 3 * len(distinct) <= plan.sums_by_pack(table, "patches")[pack] <= budgets["patches"]
        assert sum(2 * len(path) - 1 for path in distinct) <= budgets["squares"]


def test_patches_of_a_trunk_count_once_only_where_the_table_has_them():
    """Four captions of one picture: a table without amounts counts the picture four times."""
    shared = np.array([0, 100, 100, 100], dtype=np.int32)
    columns = {"tokens": np.full(4, 110, np.int32), "patches": np.full(4, 64, np.int32)}
    known = LengthTable(columns, sharing=Prefixes(np.arange(4), shared, 64, {"patches": 0 * shared + 64}))
    unknown = LengthTable(columns, sharing=Prefixes(np.arange(4), shared))
    plans = [plan_packs(table, capacity=200, budgets={"patches": 128}, share="prefixes") for table in (known, unknown)]
    assert plans[0].sums_by_pack(known, "patches").tolist() == [64]
    assert plans[1].sums_by_pack(unknown, "patches").tolist() == [128, 128]


def test_squares_of_a_trunk_count_once():
    """Four samples of 110 tokens share 100: 110² + 3 (110² - 100²), and a pack that may take one less holds three."""
    prefixes = Prefixes(np.arange(4), np.array([0, 100, 100, 100], np.int32))
    table = LengthTable({"tokens": np.full(4, 110, np.int32)}, sharing=prefixes)
    for squares, num_packs in ((18_400, 1), (18_399, 2)):
        assert plan_packs(table, capacity=200, budgets={"squares": squares}, share="prefixes").num_packs == num_packs


def test_the_outcome_says_how_many_trees_had_to_be_cut():
    """A tree in several packs repeats its trunk: two of three here, and a sample alone is not a tree."""
    trees = [stretched([[tree, 0], [tree, 1], [tree, 2]]) for tree in range(2)]
    samples = [*trees[0], *trees[1], *stretched([[2, 0], [2, 1], [3]])]
    plan = planned(samples, 37)
    assert plan.outcome.description == "2 of 3 trees in several packs"


def test_patches_of_a_beginning_that_was_cut_count_once():
    """Six captions of one picture, all of which are cut to the same tokens: one pack holds them."""
    shared = np.array([0, 150, 150, 120, 150, 150], dtype=np.int32)
    columns = {"tokens": np.full(6, 160, np.int32), "patches": np.full(6, 64, np.int32)}
    table = LengthTable(columns, sharing=Prefixes(np.arange(6), shared, 64, {"patches": 64 * (shared > 0)}))
    for max_path in (160, 130, 100):
        plan = plan_packs(
            table, capacity=400, max_path=max_path, overflow="truncate", budgets={"patches": 128}, share="prefixes"
        )
        plan.validate(table)
        assert plan.sums_by_pack(table, "patches").tolist() == [64]


def test_patches_of_a_beginning_that_was_cut_count_as_what_all_share():
    """Two samples with two pictures in common, and a third with one of them, cut to the same tokens: not one pack."""
    columns = {"tokens": np.full(3, 160, np.int32), "patches": np.full(3, 192, np.int32)}
    prefixes = Prefixes(np.arange(3), np.array([0, 150, 150], np.int32), 64, {"patches": np.array([0, 128, 64])})
    table = LengthTable(columns, sharing=prefixes)
    options: dict[str, Any] = {"max_path": 100, "overflow": "truncate", "share": "prefixes"}
    plan = plan_packs(table, capacity=400, budgets={"patches": 330}, **options)
    assert sorted(len(paths) for paths in paths_of(plan)) == [1, 2]


def test_a_tree_with_a_short_trunk_is_cut_where_that_saves_a_pack():
    """A trunk of 2 tokens costs little in two packs: its branches fill the packs of 140, which are 13 without."""
    samples = [[0, 0, *[branch] * 110] for branch in (1, 2)]
    samples += [[3 + other] * length for other, length in enumerate([140, 140, *[150] * 10])]
    plan = planned(samples, 256)
    plan.validate(table_of(samples))
    assert (plan.num_packs, plan.ledger.tokens_shared) == (12, 0)


def test_of_two_ways_with_equally_many_packs_the_one_with_fewer_tokens_is_taken():
    """Trees that stay whole are cut when their pack is emptied, and then repeat 50 tokens more than short trunks would."""
    shared = np.array([0, 1, 50, 0, 50, 2, 0, 2], np.int32)
    tokens = np.array([191, 230, 160, 60, 90, 172, 12, 152], np.int32)
    plan = plan_packs(
        LengthTable({"tokens": tokens}, sharing=Prefixes(np.arange(8), shared)), capacity=256, share="prefixes"
    )
    assert (plan.num_packs, plan.ledger.tokens_packed) == (5, 1_017)


@pytest.mark.parametrize(
    ("limit", "groups"),
    [({"capacity": 2}, None), ({"capacity": 2}, np.array([0, 0, -1])), ({"capacity": 64, "max_path": 2}, None)],
)
def test_a_plan_without_samples_has_no_packs(limit, groups):
    """Every sample is dropped: the same empty plan as without sharing."""
    table = table_of([[1, 2, 3], [1, 2, 4], [5, 6, 7]])
    for budgets in (None, {"squares": 4}):
        plan = plan_packs(table, share="prefixes", overflow="drop", groups=groups, budgets=budgets, **limit)
        plan.validate(table, groups=groups)
        assert (plan.num_packs, plan.dropped_ids.tolist(), plan.bound) == (0, [0, 1, 2], 0)


def test_costs_of_a_tree_are_what_its_segments_add():
    """Attention of a path is the square of its length; a trunk is counted once."""
    from brimful import CostModel

    samples = stretched([[0, 0, 0], [0, 0, 1], [0, 1]], 20)
    plan = planned(samples, 200)
    model = CostModel(linear=2, quadratic=1, tile=1)
    squares = 20**2 + (40**2 - 20**2) + 2 * (60**2 - 40**2) + (40**2 - 20**2)
    assert plan.costs(model).tolist() == [2 * 100 + squares]
    windowed = CostModel(linear=0, quadratic=1, tile=1, window=30)
    band = 20**2 + (40**2 - 20**2 - 10**2) + 2 * (60**2 - 40**2 - (30**2 - 10**2)) + (40**2 - 20**2 - 10**2)
    assert plan.costs(windowed).tolist() == [band]


def test_truncation_cuts_tails_and_never_what_is_shared():
    """Two samples that differ after the context are the same path; a third shares less than they do."""
    samples = stretched([[0, 0, 0, 0, 1], [0, 0, 0, 0, 0], [0, 1]], 20)
    plan = planned(samples, 400, max_path=60, overflow="truncate")
    plan.validate(table_of(samples))
    assert plan.starts.tolist() == [0, 20, 60, 20]
    assert plan.lengths.tolist() == [20, 40, 0, 20]
    assert plan.sample_lengths.tolist() == [100, 100, 100, 40]
    assert (plan.ledger.tokens_truncated, plan.ledger.samples_truncated) == (80, 2)
    dropped = planned(samples, 400, max_path=60, overflow="drop")
    assert (dropped.dropped_ids.tolist(), dropped.ledger.tokens_shared) == ([0, 1], 0)


def test_seed_and_epoch_choose_the_order_of_packs():
    """As for flat plans; the same arguments give the same plan."""
    draw = np.random.default_rng(0)
    samples = stretched([draw.integers(0, 2, 6).tolist() for _ in range(200)], 20)
    plan, again, seed, epoch = (planned(samples, 150, **options) for options in ({}, {}, {"seed": 1}, {"epoch": 1}))
    assert plan.fingerprint == again.fingerprint
    assert len({plan.fingerprint, seed.fingerprint, epoch.fingerprint}) == 3
    assert plan.num_packs == seed.num_packs == epoch.num_packs


def test_short_turns_share_nearly_everything():
    """Forty tokens between branches: crumbs of one letter of 12 are repeated only where a segment would cost more."""
    letters = [[1] * turn + [0] for turn in range(1, 20)]
    samples = stretched(letters, 35)
    distinct, _ = size_of([tuple(sample) for sample in samples])
    plan = planned(samples, 1 << 20)
    assert plan.ledger.tokens_packed == distinct
    crumbs = stretched([[0, 0, 0], [0, 0, 1], [0, 1]], 12)
    assert planned(crumbs, 1 << 10).ledger.tokens_packed == size_of([tuple(crumb) for crumb in crumbs])[0] + 12
    assert forest_module.CRUMB == 16


FAULTS = [
    (
        lambda p: p.sharing.parents.__setitem__(4, 2),
        "segment 4 of pack 0 continues segment 2, which is not on the path",
    ),
    (lambda p: p.sharing.parents.__setitem__(5, 0), "does not begin where the segment that it continues ends"),
    (lambda p: p.starts.__setitem__(3, 61), "does not begin where"),
    (lambda p: p.lengths.__setitem__(3, 19), "sample 2 has 80 tokens, and its path ends at 79"),
    (lambda p: p.lengths.__setitem__(5, 101), "pack 0 holds"),
    (lambda p: p.lengths.__setitem__(5, 0), "has no tokens"),
    (lambda p: p.sample_ids.__setitem__(3, 3), "sample 3 ends more than once"),
    (lambda p: p.sample_ids.__setitem__(0, 99), "outside 0 … 4"),
    (lambda p: p.sample_ids.__setitem__(0, 1), "sample 1 ends more than once|sample 1 has"),
    (lambda p: p.sample_ids.__setitem__(slice(4, 6), [4, 3]), "continues tokens with which its sample does not|has"),
]


class Counted(np.ndarray):
    """Parents that count the segments of which a list was made."""

    listed = 0

    def tolist(self):
        Counted.listed += self.size
        return super().tolist()


def test_validate_reads_each_segment_once():
    """Read again for each pack, a plan of a million packs would take days."""
    samples = stretched([[tree, branch] for tree in range(30) for branch in range(2)], 20)
    plan = planned(samples, 100, seed=None)
    plan.sharing = PlanTrees(plan.sharing.parents.view(Counted))
    plan.validate(table_of(samples))
    assert plan.num_packs > 10
    assert 0 < Counted.listed <= 2 * plan.num_segments


@pytest.mark.parametrize(("change", "message"), FAULTS)
def test_validate_finds_a_planted_fault(change, message):
    """Each array of a plan of trees, one number changed."""
    samples = stretched([[0, 0, 0], [0, 0, 0], [0, 0, 0, 1], [0, 0, 1], [1]], 20)
    planned(samples, 200, seed=None).validate(table_of(samples))
    plan = planned(samples, 200, seed=None)
    for name in ("sample_ids", "starts", "lengths"):
        setattr(plan, name, np.array(getattr(plan, name)))
    plan.sharing = PlanTrees(np.array(plan.sharing.parents))
    change(plan)
    with pytest.raises(PlanMismatchError, match=message):
        plan.validate(table_of(samples))


def test_validate_finds_that_two_samples_do_not_share_what_the_plan_says():
    """The lengths of two samples are right, and one of them begins otherwise."""
    samples = stretched([[0, 0], [0, 1]], 20)
    plan = planned(samples, 200)
    other = stretched([[0, 0], [1, 1]], 20)
    with pytest.raises(PlanMismatchError, match="segment 2 of pack 0, of sample 1, continues tokens"):
        plan.validate(table_of(other))
    with pytest.raises(PlanMismatchError, match='measured with share="prefixes"'):
        plan.validate([40, 40])


def test_a_file_of_trees_is_opened_as_it_was_saved(tmp_path):
    """With dropped and truncated samples; its version says that older readers cannot."""
    samples = stretched([[0, 0, 0], [0, 0, 1], [0, 1], [1, 1, 1, 1]], 20)
    for overflow in ("drop", "truncate"):
        plan = planned(samples, 100, max_path=60, overflow=overflow)
        plan.save(tmp_path / "plan.arrow")
        opened = Plan.open(tmp_path / "plan.arrow")
        opened.check_fingerprint()
        opened.validate(table_of(samples))
        assert opened.fingerprint == plan.fingerprint
        assert (opened.ledger, opened.settings, opened.record) == (plan.ledger, plan.settings, plan.record)
        assert [array.tolist() for array in opened.arrays] == [array.tolist() for array in plan.arrays]
        assert opened.sample_lengths.tolist() == plan.sample_lengths.tolist()


def test_flat_accounts_and_records_have_no_word_of_trees():
    """Files of flat plans stay as they were."""
    plan = plan_packs([3, 4], capacity=8)
    assert "share" not in json.dumps([plan.record, plan.ledger.as_dict()])
    assert plan.sharing is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"algorithm": "best_fit"}, 'share="prefixes" packs trees of samples, and algorithm="best_fit"'),
        ({"overflow": "split"}, 'shares beginnings, which overflow="split" cuts off: use drop or truncate'),
        ({"overflow": "truncate_left"}, 'overflow="truncate_left" cuts off'),
        ({"alignment": 4}, "an alignment of 4 tokens pads each of them: align only the total"),
        ({"min_fill": 0.5}, "leave min_fill out"),
        ({"share": "suffixes"}, "share 'suffixes' is unknown: use one of none, prefixes"),
        ({"max_path": 0}, "max_path must be at least 1"),
    ],
)
def test_what_has_no_meaning_with_trees_is_refused_by_name(options, message):
    """One line that says what to change."""
    with pytest.raises(SettingsError, match=message):
        plan_packs(table_of([[1, 2]]), capacity=8, **{"share": "prefixes", **options})


@pytest.mark.parametrize("limit", ["capacity", "max_path"])
def test_a_sample_that_is_too_long_is_offered_what_trees_can_do(limit):
    """A sample that lost its beginning shares nothing; and what the message offers is accepted."""
    table = table_of([[1] * 10, [1] * 3])
    limits: dict[str, Any] = {"capacity": 12, limit: 8}
    with pytest.raises(OversizedSampleError, match=rf'Choose overflow="drop" or truncate, or {limit}=10$'):
        plan_packs(table, share="prefixes", **limits)
    for way in ({"overflow": "drop"}, {"overflow": "truncate"}, {limit: 10}):
        assert plan_packs(table, share="prefixes", **{**limits, **way}).num_packs == 1


@given(words, st.integers(0, 60), st.data())
def test_members_of_a_group_share_and_stay_side_by_side(letters, more, data):
    """Preferences: the chosen and the rejected answer are in one pack, with one prompt."""
    samples = stretched(letters)
    groups = np.array(data.draw(st.lists(st.integers(-1, 3), min_size=len(samples), max_size=len(samples))))
    members = [[tuple(samples[place]) for place in np.flatnonzero(groups == name)] for name in range(4)]
    capacity = max(*map(len, samples), *(sum(size_of(group)) for group in members)) + more
    table = table_of(samples)
    plan = plan_packs(table, capacity=capacity, share="prefixes", groups=groups)
    plan.validate(table, groups=groups)
    flat = sum(map(len, samples))
    assert plan.ledger.tokens_shared <= flat - size_of([tuple(sample) for sample in samples])[0]


def test_a_pair_of_preferences_has_one_prompt():
    """A sample without a group, between them in the order of tokens, is elsewhere."""
    samples = stretched([[0, 0, 0], [0, 0, 1, 1], [0, 0, 1, 0]], 20)
    plan = plan_packs(table_of(samples), capacity=140, share="prefixes", groups=[7, 7, -1], seed=None)
    plan.validate(table_of(samples), groups=np.array([7, 7, -1]))
    assert sorted(sorted(paths) for paths in paths_of(plan)) == [[0, 1], [2]]
    assert plan.ledger.tokens_shared == 40
    with pytest.raises(OversizedSampleError, match="takes 101 tokens and exceeds the capacity of 100"):
        plan_packs(table_of(samples), capacity=100, share="prefixes", groups=[7, 7, -1])
    assert plan_packs(table_of(samples), capacity=101, share="prefixes", groups=[7, 7, -1]).num_packs == 2
    with pytest.raises(SettingsError, match="max_path limits single samples, and groups stay whole"):
        plan_packs(table_of(samples), capacity=140, share="prefixes", groups=[7, 7, -1], max_path=90)


def test_samples_of_a_tree_are_counted_once():
    """Trunks have the id of a sample below them: readers of ids must not count it again."""
    samples = stretched([[0, 0, 0], [0, 0, 0], [0, 0, 1], [0, 1], [1]], 20)
    plan = planned(samples, 200)
    metadata = PackMetadata(plan, np.zeros(1, np.int32), ("all",))
    assert sorted(metadata.indices.row(0).tolist()) == [0, 1, 2, 3, 4]
    assert consumed_samples(plan, [0]).tolist() == [1] * 5


def test_lengths_without_prefixes_are_refused_with_the_remedy():
    """Lengths alone do not say what samples share."""
    with pytest.raises(SettingsError, match='measure with share="prefixes"'):
        plan_packs([3, 4], capacity=8, share="prefixes")


def test_a_path_may_be_shorter_than_a_pack_in_flat_plans_too():
    """The context of the model, and packs of the memory."""
    plan = plan_packs([30, 8, 5], capacity=20, max_path=8, overflow="truncate", seed=None)
    plan.validate([30, 8, 5])
    assert sorted(plan.lengths.tolist()) == [5, 8, 8]
    assert plan.ledger.tokens_truncated == 22
    with pytest.raises(OversizedSampleError, match=r"longer than the max path of 8 tokens: .* or max_path=30"):
        plan_packs([30, 8], capacity=20, max_path=8)
    with pytest.raises(SettingsError, match="max_path"):
        plan_packs([3], capacity=8, max_path=4, algorithm="concat_split")

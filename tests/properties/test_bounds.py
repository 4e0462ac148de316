"""Bounds from both sides: never beyond the optimum, found by trying all, and not so weak that 0 would do.

Each bound is compared with the exhaustive optimum, with the amount ÷ capacity that it must reach, and with cases where it
equals the optimum.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful import LengthTable, PackLoader, plan_packs
from brimful.errors import InvalidLengthsError
from brimful.plan import ALGORITHMS, Alignment
from brimful.plan.counts.histogram import Histogram, lower_bound
from brimful.plan.fit.any_fit import first_fit, next_fit, next_fit_upper_bound
from brimful.plan.fit.best_fit import best_fit
from brimful.planners.vector.pack_vectors import bound_of_budgets
from brimful.report.analysis.facts import measure_budget_fill
from brimful.rl import plan_step
from brimful.rl.item_search import ItemSearch
from brimful.stream.assignment import Assignment, StreamOrder
from brimful.testing.strategies import capacities_and_lengths
from brimful.testing.toys import toy_packs, toy_records
from brimful.trees.plan.bound import bound_of_trees
from brimful.trees.plan.forest import Forest
from brimful.trees.prefixes import Prefixes
from tests.planners.optimal.instances import fewest_packs
from tests.planners.vector.instances import vectors
from tests.planners.vector.test_pack_vectors import fewest_packs as fewest_under_budgets
from tests.trees.plan.forests import optimum_of, size_of, table_of

SMALL = capacities_and_lengths(max_capacity=20, max_samples=8)


@given(case=SMALL)
def test_the_bound_of_lengths(case):
    """L2 of Martello and Toth is at least two thirds of the optimum, and at least tokens ÷ capacity."""
    capacity, lengths = case
    bound = lower_bound(Histogram.of(np.array(lengths)), capacity=capacity)
    fewest = fewest_packs(tuple(lengths), capacity)
    assert max(-(-sum(lengths) // capacity), -(-2 * fewest // 3)) <= bound <= fewest


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name != "optimal"])
@given(case=SMALL, alignment=st.sampled_from([1, 2]))
@settings(max_examples=15)
def test_the_bound_of_every_algorithm(algorithm, case, alignment):
    """A plan tells the bound of what it packs: of padded lengths, or of all tokens where they are cut anywhere."""
    capacity, lengths = case
    options = {"alignment": alignment} if "alignment" not in ALGORITHMS[algorithm].contradicts and capacity > 1 else {}
    plan = plan_packs(lengths, capacity=capacity, algorithm=algorithm, overflow="truncate", **options)
    unit = options.get("alignment", 1)
    usable = capacity // unit * unit
    sizes = np.array([-(-min(length, usable) // unit) * unit for length in lengths])
    if algorithm == "concat_split":
        assert plan.bound == plan.num_packs == -(-sum(lengths) // capacity)
    else:
        assert lower_bound(Histogram.of(sizes), capacity=usable) <= plan.bound <= fewest_packs(tuple(sizes), usable)
        assert plan.bound <= plan.num_packs


@given(case=SMALL)
@settings(max_examples=40)
def test_the_bound_of_plans_with_a_solver(case):
    """Its proof is exact on sets this small, and its packs are as few."""
    pytest.importorskip("highspy")
    capacity, lengths = case
    plan = plan_packs(lengths, capacity=capacity, algorithm="optimal")
    assert plan.bound == plan.num_packs == fewest_packs(tuple(lengths), capacity)


@given(case=vectors(max_items=6, max_budgets=3))
def test_the_bound_of_budgets(case):
    """The largest of single budgets: each at least what it takes in all ÷ its capacity."""
    sizes, capacities = case
    bound = bound_of_budgets(sizes, capacities=capacities)
    singles = [
        fewest_packs(tuple(column[column > 0].tolist()), int(capacity))
        for column, capacity in zip(sizes.T, capacities, strict=True)
    ]
    assert int((-(-sizes.sum(axis=0) // capacities)).max()) <= bound <= max(1, *singles)
    assert bound <= fewest_under_budgets(sizes, capacities)
    # The items above half of a budget are alone.
    assert bound >= int((2 * sizes > capacities).sum(axis=0).max())


words = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=6), min_size=1, max_size=6)


@given(words, st.integers(0, 30), st.integers(1, 8))
def test_the_bound_of_trees(letters, more, stretch):
    """At least what is there once ÷ capacity; at most what the best plan takes."""
    samples = [[letter for letter in word for _ in range(stretch)] for word in letters]
    capacity = max(map(len, samples)) + more
    table = table_of(samples)
    plan = plan_packs(table, capacity=capacity, share="prefixes")
    fewest = optimum_of([tuple(sample) for sample in samples], capacity)
    union, _ = size_of(samples)
    assert -(-union // capacity) <= plan.bound <= fewest <= plan.num_packs


@given(
    trunk=st.integers(0, 30),
    branches=st.lists(st.integers(1, 12), min_size=1, max_size=7),
    more=st.integers(0, 40),
)
def test_the_bound_of_one_trunk_is_its_formula(trunk, branches, more):
    """Each pack that has a branch has the trunk: room for branches is what it leaves."""
    capacity = trunk + max(branches) + more
    lengths = np.array([[trunk + branch] for branch in branches])
    shared = np.array([[0]] + [[trunk]] * (len(branches) - 1))
    bound = bound_of_trees(Forest.of(lengths, shared), np.array([capacity]))
    assert bound.packs <= fewest_packs(tuple(branches), capacity - trunk)
    num_trunks = 1
    if trunk and trunk + sum(branches) > capacity:
        num_trunks = -(-sum(branches) // (capacity - trunk))
    if trunk and len(branches) > 1:
        tokens = trunk * num_trunks + sum(branches)
        assert bound == (max(num_trunks, -(-tokens // capacity)), tokens)


def test_bounds_that_are_the_optimum():
    """Named cases: a bound that lost one of its ideas would be lower in one of them."""
    for capacity, lengths, bound in (
        (8, [5, 5, 5], 3),  # alone
        (8, [6, 6, 3, 3, 3], 4),  # the room left is too small
        (10, [4, 4, 3, 3, 3, 3], 2),  # tokens
        (10, [10, 10], 2),
        (1, [1, 1, 1], 3),
    ):
        assert plan_packs(lengths, capacity=capacity).bound == bound == fewest_packs(tuple(lengths), capacity)
        table = LengthTable.from_lengths([1] * len(lengths), patches=lengths)
        assert plan_packs(table, capacity=100, budgets={"patches": capacity}).bound == bound
    assert plan_packs([1] * 7, capacity=100, budgets={"samples": 3}).bound == 3
    assert plan_packs([3] * 7, capacity=100, budgets={"squares": 18}).bound == 4
    assert plan_packs([5, 5, 5], capacity=16, alignment=Alignment(segment=8)).bound == 2
    prefixes = Prefixes(np.arange(3), np.array([0, 50, 50], dtype=np.int32))
    table = LengthTable({"tokens": np.array([80, 80, 80], dtype=np.int32)}, sharing=prefixes)
    assert plan_packs(table, capacity=110, share="prefixes").bound == 2
    assert plan_packs(table, capacity=140, share="prefixes").bound == 1


@pytest.mark.parametrize("algorithm", [next_fit, first_fit, best_fit], ids=lambda function: function.__name__)
@given(case=SMALL)
def test_the_upper_bound_of_next_fit(algorithm, case):
    """No algorithm of the kind opens more packs, and it is at most twice the optimum and one."""
    capacity, lengths = case
    items = np.array(lengths)
    most = next_fit_upper_bound(items, capacity=capacity)
    assert (
        len(algorithm(items, capacity=capacity))
        <= most
        <= min(len(lengths), 2 * fewest_packs(tuple(lengths), capacity) + 1)
    )


def test_an_upper_bound_that_is_reached():
    """Halves and crumbs: each second pack is nearly empty."""
    items = np.array([1, 7, 1, 7, 1])
    assert len(next_fit(items, capacity=7)) == next_fit_upper_bound(items, capacity=7) == 5


@given(
    lengths=st.lists(st.integers(1, 12), min_size=3, max_size=8), capacity=st.integers(12, 24), ranks=st.integers(1, 3)
)
def test_micro_batches_are_as_few_as_the_bound_allows(lengths, capacity, ranks):
    """A step begins with the bound on its micro-batches: too low costs a search, too high a slower step."""
    fewest = -(-fewest_packs(tuple(lengths), capacity) // ranks)
    try:
        step = plan_step(lengths, capacity=capacity, dp_world_size=ranks)
    except InvalidLengthsError:
        assert len(lengths) < (fewest + 1) * ranks
        return
    assert fewest <= step.num_micro_batches <= fewest + 1
    assert step.num_micro_batches * ranks * capacity >= sum(lengths)
    assert step.fill_ratio == pytest.approx(sum(lengths) / (step.num_micro_batches * ranks * capacity))


@pytest.mark.parametrize(
    ("lengths", "ranks", "options", "least"),
    [
        ([5] * 8, 1, {}, 4),
        ([6] * 5, 1, {}, 5),
        ([5] * 8, 3, {}, 2),
        ([5] * 8 + [1] * 4, 2, {"groups": [0] * 8 + [1] * 4, "groups_share": "rank"}, 4),
        ([1] * 8, 1, {"budgets": {"samples": 3}}, 3),
        ([2] * 8, 2, {"budgets": {"squares": 8}}, 2),
    ],
    ids=["tokens", "above half", "ranks", "a group on one rank", "samples", "squares"],
)
def test_the_bound_on_micro_batches(lengths, ranks, options, least, monkeypatch):
    """Each reason binds in one case, and the step has as many."""
    seen = []

    def look(search, count=ItemSearch.least_micro_batches):
        seen.append(count(search))
        return seen[-1]

    monkeypatch.setattr(ItemSearch, "least_micro_batches", look)
    step = plan_step(lengths, capacity=10, dp_world_size=ranks, **options)
    assert (seen[0], step.num_micro_batches) == (least, least)


@given(
    case=capacities_and_lengths(max_capacity=20, max_samples=12, oversized=True),
    overflow=st.sampled_from(["drop", "truncate"]),
)
def test_the_fill_of_a_plan_is_what_is_in_its_packs(case, overflow):
    """From the packs themselves, and not from the account."""
    capacity, lengths = case
    patches = [length % 4 for length in lengths]
    table = LengthTable.from_lengths(lengths, patches=patches)
    plan = plan_packs(table, capacity=capacity, overflow=overflow, no_target="keep", budgets={"patches": 6})
    tokens = [sum(segment.length for segment in pack) for pack in plan]
    held = [sum(patches[segment.sample_id] for segment in pack) for pack in plan]
    assert plan.fill_ratio == (pytest.approx(sum(tokens) / (capacity * len(tokens))) if tokens else 1.0)
    if not tokens:
        return
    by_name = {fill.name: fill for fill in measure_budget_fill(plan, table)}
    for name, content, most in (("tokens", tokens, capacity), ("patches", held, 6)):
        fill = by_name[name]
        assert (fill.least, fill.most, fill.total, fill.capacity) == (min(content), max(content), sum(content), most)
        assert fill.fill_ratio == pytest.approx(sum(content) / len(content) / most)


@given(
    packs=st.lists(st.integers(0, 4), max_size=7),
    lanes=st.integers(1, 3),
    assignment=st.sampled_from(list(Assignment)),
)
def test_steps_of_a_stream_are_counted_as_they_are_found(packs, lanes, assignment):
    """Full steps have a pack at each place, the others at one: by looking at each place."""
    order = StreamOrder(assignment, toy_records(packs), lanes)
    places = range(lanes * (sum(packs) + 1))
    found = [order.find(place) is not None for place in places]
    steps = [found[begin : begin + lanes] for begin in range(0, len(found), lanes)]
    assert order.num_steps(is_full=True) == sum(map(all, steps))
    assert order.num_steps(is_full=False) == sum(map(any, steps))
    assert sum(found) == sum(packs)


@given(
    count=st.integers(1, 13),
    ranks=st.integers(1, 3),
    micro=st.integers(1, 2),
    size=st.integers(1, 2),
    tail=st.sampled_from(["pad", "drop", "repeat"]),
)
def test_steps_of_an_epoch_are_counted_as_they_are_served(count, ranks, micro, size, tail):
    """``len`` and ``steps_per_epoch`` are exact, from the packs on all ranks."""
    if tail == "drop" and count < ranks * micro * size:
        return
    loaders = [
        PackLoader(
            toy_packs(count),
            dp_rank=rank,
            dp_world_size=ranks,
            micro_batches=micro,
            packs_per_micro_batch=size,
            tail=tail,
        )
        for rank in range(ranks)
    ]
    counted = {(len(loader), loader.steps_per_epoch) for loader in loaders}
    served = [len(list(loader)) for loader in loaders]
    steps = count // (ranks * micro * size) if tail == "drop" else -(-count // (ranks * micro * size))
    assert counted == {(steps * micro, steps)}
    assert served == [steps * micro] * ranks

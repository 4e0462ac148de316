"""Every algorithm does what its textbook name says."""

import numpy as np
import pytest
from hypothesis import given

from brimful import plan_packs
from brimful.plan.best_fit_decreasing import best_fit_decreasing
from brimful.plan.bound import lower_bound
from brimful.plan.counts.patterns import patterns_of, remaining
from brimful.plan.histogram import Histogram
from brimful.testing import reference
from brimful.testing.strategies import capacities_and_lengths

TELL_TALE = [3, 3, 5, 6, 1, 1]


def packs_of(plan):
    return [[segment.sample_id for segment in pack] for pack in plan]


@pytest.mark.parametrize(
    ("algorithm", "packs"),
    [
        ("next_fit", [[0, 1], [2], [3, 4], [5]]),
        ("first_fit", [[0, 1, 4], [2, 5], [3]]),
        ("best_fit", [[0, 1, 4], [2], [3, 5]]),
        ("worst_fit", [[0, 1, 5], [2, 4], [3]]),
        ("first_fit_decreasing", [[3, 4], [2, 5], [0, 1]]),
        ("best_fit_decreasing", [[3, 4], [2], [0, 1, 5]]),
    ],
)
def test_the_six_lengths_that_tell_the_algorithms_apart(algorithm, packs):
    """A name is a promise: swapping one rule for another would pass every other test of fill."""
    assert packs_of(plan_packs(TELL_TALE, capacity=7, algorithm=algorithm, seed=None)) == packs


@pytest.mark.parametrize(
    "algorithm", ["best_fit_decreasing", "first_fit_decreasing", "next_fit", "first_fit", "best_fit", "worst_fit"]
)
@given(case=capacities_and_lengths())
def test_same_packs_as_the_slow_reference(algorithm, case):
    """The histogram form must be the item form, sample by sample, not merely as tight."""
    capacity, lengths = case
    plan = plan_packs(lengths, capacity=capacity, algorithm=algorithm, seed=None)
    assert packs_of(plan) == getattr(reference, algorithm)(lengths, capacity)


def test_a_million_equal_lengths_are_one_run():
    """Multiplicities, not items: this would take minutes item by item."""
    plan = plan_packs(np.full(1_000_000, 3, dtype=np.int32), capacity=10, seed=None)
    assert plan.num_packs == 333_334
    assert packs_of(plan)[:1] == [[0, 1, 2]]
    assert plan.pack(333_333)[0].sample_id == 999_999


def test_ten_million_lengths_of_one():
    """The corner where every pack is the same and the item count dwarfs everything."""
    plan = plan_packs(np.ones(10_000_000, dtype=np.int32), capacity=4096)
    assert (plan.num_packs, plan.bound) == (2442, 2442)
    assert plan.ledger.tokens_packed == 10_000_000


def test_capacity_over_sixty_four_thousand_takes_two_radix_passes():
    """Lengths of more than 16 bits go through the other sort."""
    lengths = [70_000, 131_072, 5, 61_072, 1]
    plan = plan_packs(lengths, capacity=131_072, seed=None)
    assert packs_of(plan) == [[1], [0, 3], [2, 4]]


def test_forks_worked_example_needs_two_packs():
    """70 30 30 30 20 at 100 by first fit decreasing, from an existing packer's own test."""
    assert plan_packs([70, 30, 30, 30, 20], capacity=100, algorithm="first_fit_decreasing").num_packs == 2


def test_sequential_worked_example():
    """Next fit on a known trace; the sample of 120 is reported, never packed over-full."""
    lengths = [60, 50, 40, 100, 30, 30, 30, 30, 120, 10]
    plan = plan_packs(lengths, capacity=100, algorithm="next_fit", overflow="drop")
    assert packs_of(plan) == [[0], [1, 2], [3], [4, 5, 6], [7, 9]]
    assert plan.dropped_ids.tolist() == [8]


def test_a_billion_samples_by_the_counts_of_many_machines():
    """No machine has all lengths: each sends its counts, the sum is planned, and each names its own samples later."""
    rng = np.random.default_rng(0)
    parts = []
    for _ in range(64):
        lengths, counts = np.unique(np.clip(rng.lognormal(6, 1, 20_000), 1, 8192).astype(np.int64), return_counts=True)
        parts.append(Histogram(lengths, counts * 800))
    whole = sum(parts, start=Histogram(np.empty(0, np.int64), np.empty(0, np.int64)))
    assert whole.num_items == 64 * 20_000 * 800 > 1_000_000_000
    placements = best_fit_decreasing(whole, capacity=8192)
    assert not len(remaining(whole, patterns_of(placements).items()).lengths)
    for pattern in patterns_of(placements):
        assert sum(length * copies for length, copies in pattern) <= 8192
    bound = lower_bound(whole, capacity=8192)
    assert bound <= placements.num_packs <= bound * 1.001
    # In whichever order the counts arrive:
    again = best_fit_decreasing(sum(reversed(parts), start=parts[0].of(np.empty(0, np.int64))), capacity=8192)
    assert [run.tolist() for run in (again.length, again.packs, again.copies)] == [
        run.tolist() for run in (placements.length, placements.packs, placements.copies)
    ]


@pytest.mark.parametrize(
    ("alias", "algorithm"),
    [
        ("bfd", "best_fit_decreasing"),
        ("ffd", "first_fit_decreasing"),
        ("sequential", "next_fit"),
        ("wrapped", "concat_split"),
    ],
)
def test_names_that_other_projects_use_are_understood(alias, algorithm):
    """And the plan carries the textbook's name, so that two plans can be compared."""
    plan = plan_packs(TELL_TALE, capacity=7, algorithm=alias, seed=None)
    assert plan.settings["algorithm"] == algorithm
    assert plan.fingerprint == plan_packs(TELL_TALE, capacity=7, algorithm=algorithm, seed=None).fingerprint


def test_concat_split_fills_every_pack_and_keeps_every_token():
    """What others call wrapped. An existing one lost 6,000 of 10,000 tokens with the row count unchanged."""
    plan = plan_packs([5, 2, 1, 6], capacity=4, algorithm="concat_split", overflow="split")
    assert [[tuple(segment) for segment in pack] for pack in plan] == [
        [(0, 0, 4)],
        [(0, 4, 1), (1, 0, 2), (2, 0, 1)],
        [(3, 0, 4)],
        [(3, 4, 2)],
    ]
    plan.validate(np.array([5, 2, 1, 6]))

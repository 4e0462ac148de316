"""Spread: exactly the packs asked for, as even as their items allow, and never above the capacity."""

import hashlib
import re
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful import plan_packs
from brimful.errors import InvalidLengthsError, SettingsError
from brimful.plan.counts.counting_sort import decreasing_order
from brimful.plan.counts.histogram import Histogram, lower_bound
from brimful.plan.fit.spread import occupy_empty_bins, spread
from brimful.testing.strategies import capacities_and_lengths
from tests.plan.forms import use


def packs_of(lengths, capacity, num_packs):
    items = Histogram.of(np.array(lengths))
    bound = lower_bound(items, capacity=capacity)
    runs = spread(items, capacity=capacity, num_packs=num_packs, bound=bound)
    return runs.assign(decreasing_order(np.array(lengths))).as_lists()


@pytest.mark.parametrize(
    ("num_packs", "packs"),
    [
        (None, [[3, 5], [2, 4], [0, 1]]),
        (3, [[3, 5], [2, 4], [0, 1]]),
        (4, [[3], [2], [0, 4], [1, 5]]),
        (6, [[3], [2], [0], [1], [4], [5]]),
    ],
)
def test_six_lengths(form, num_packs, packs):
    assert packs_of([3, 3, 5, 6, 1, 1], 7, num_packs) == packs


def test_where_the_emptiest_has_no_room(form):
    """6 5 5 4 3 3 into three packs of 9: least load first ends at 9 8 6 with a 3 to go; best fit decreasing packs them."""
    packs = packs_of([6, 5, 4, 4, 5, 3], 9, 3)
    assert sorted(sum([6, 5, 4, 4, 5, 3][item] for item in pack) for pack in packs) == [9, 9, 9]


def test_the_least_capacity_is_found_where_it_is_the_mean(form):
    """57 tokens in three packs of 20: best fit decreasing at 19, the mean, fills each to 19, and at 20 to 20, 19 and 18."""
    lengths = [4, 10, 13, 11, 6, 9, 4]
    assert [sorted(lengths[item] for item in pack) for pack in packs_of(lengths, 20, 3)] == [
        [6, 13],
        [4, 4, 11],
        [9, 10],
    ]


@pytest.mark.parametrize("form", ["compiled", "plain"])
@given(case=capacities_and_lengths(), data=st.data())
def test_laws(form, case, data):
    """Exactly the number asked for, none empty, none above, every item once; or one line that says how many it takes."""
    capacity, lengths = case
    if not lengths:
        return
    num_packs = data.draw(st.integers(1, len(lengths) + 1))
    with pytest.MonkeyPatch.context() as monkeypatch:
        use(form, monkeypatch)
        try:
            packs = packs_of(lengths, capacity, num_packs)
        except InvalidLengthsError as error:
            refusal = str(error)
            packs = None
    if packs is None:
        assert f"num_packs={num_packs}" in refusal
        return
    assert len(packs) == num_packs
    assert all(0 < sum(lengths[item] for item in pack) <= capacity for pack in packs)
    assert sorted(item for pack in packs for item in pack) == list(range(len(lengths)))


def test_a_pack_more_than_best_fit_decreasing_takes_at_any_capacity(form):
    """Least load first finds no room in 11 packs, and best fit decreasing takes 10 at capacity 12 and 12 at 11: one is taken apart."""
    lengths = [6, 3, 7, 3, 7, 5, 6, 4, 4, 7, 5, 4, 7, 5, 3, 7, 3, 5, 5, 5, 4, 4, 3, 7]
    assert packs_of(lengths, 12, 11) == [
        *([2, 5], [4, 10], [9, 13], [12, 17], [15, 18], [23, 19], [0, 6], [7, 8, 11], [20, 21, 1]),
        *([3, 14, 16], [22]),
    ]
    assert (len(packs_of(lengths, 12, None)), len(packs_of(lengths, 11, None))) == (10, 12)
    runs = spread(Histogram.of(np.array(lengths)), capacity=12, num_packs=11, bound=10)
    assert runs.length.tolist() == sorted(lengths, reverse=True)


def test_random_packs_are_what_they_were(form):
    """Ties, exact fits and the search for a capacity, on few items; of a refusal its numbers count."""
    digest = hashlib.sha256()
    for seed in range(400):
        generator = np.random.default_rng([21, seed])
        capacity, num_items = int(generator.integers(5, 60)), int(generator.integers(1, 25))
        shortest = 1 + int(capacity * generator.choice([0, 0.2, 0.4]))
        lengths = generator.integers(shortest, capacity + 1, num_items)
        bound = lower_bound(Histogram.of(lengths), capacity=capacity)
        num_packs = int(np.clip(bound + generator.integers(-1, 3), 1, num_items + 1))
        try:
            outcome = packs_of(lengths.tolist(), capacity, num_packs)
        except InvalidLengthsError as error:
            outcome = re.findall(r"\d+", str(error))
        digest.update(repr(outcome).encode())
    assert digest.hexdigest()[:16] == "5f1d5d52a77b96e4"


def test_even_packs(form):
    """Least load first: packs differ by the shortest items, a few tokens of three thousand."""
    lengths = np.random.default_rng(0).integers(1, 500, 3000)
    plan = plan_packs(lengths, capacity=4096, algorithm="spread", num_packs=256)
    loads = np.add.reduceat(np.asarray(plan.lengths), plan.offsets[:-1])
    assert plan.num_packs == 256
    assert int(loads.max()) - int(loads.min()) <= 12


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        (
            {"num_packs": 2},
            InvalidLengthsError,
            "num_packs=2 is below the bound: 19 tokens in packs of 7 need at least 3",
        ),
        ({"num_packs": 7}, InvalidLengthsError, "more than the 6 samples"),
        ({"num_packs": 0}, SettingsError, "num_packs must be at least 1"),
        ({"num_packs": 3, "algorithm": "bfd"}, SettingsError, 'is for algorithm="spread"'),
        ({"num_packs": 3, "min_fill": 0.5}, SettingsError, "leave one out"),
    ],
)
def test_what_cannot_be_is_refused(settings, error, words):
    with pytest.raises(error, match=words):
        plan_packs([3, 3, 5, 6, 1, 1], **{"capacity": 7, "algorithm": "spread", **settings})


def test_a_number_that_only_a_search_would_find():
    """Between the bound and what best fit decreasing takes the message names both ways out."""
    lengths = [44, 43, 42, 41, 40, 30, 29, 28, 27, 26, 16, 15, 14, 13, 12, 20, 20, 20, 20, 20]
    items = Histogram.of(np.array(lengths))
    bound = lower_bound(items, capacity=100)
    taken = spread(items, capacity=100, num_packs=None, bound=bound).num_packs
    assert taken >= bound


def test_the_number_is_part_of_the_plan(tmp_path):
    plan = plan_packs([3, 3, 5, 6, 1, 1], capacity=7, algorithm="spread", num_packs=4)
    plan.save(tmp_path / "plan.arrow")
    assert type(plan).open(tmp_path / "plan.arrow").settings == plan.settings


def test_no_bin_stays_empty_or_becomes_so():
    """A bin that gave all its items away would be an empty pack, or a rank without a micro-batch."""
    for num_items in range(1, 6):
        for bins in product(range(num_items), repeat=num_items):
            bin_of = np.array(bins)
            occupy_empty_bins(bin_of, num_items)
            assert sorted(bin_of.tolist()) == list(range(num_items)), bins
            few = np.minimum(bins, num_items // 2)
            bin_of = few.copy()
            occupy_empty_bins(bin_of, num_items // 2 + 1)
            num_empty = num_items // 2 + 1 - len(set(few.tolist()))
            assert set(bin_of.tolist()) == set(range(num_items // 2 + 1)), bins
            assert (bin_of != few).sum() == num_empty, bins

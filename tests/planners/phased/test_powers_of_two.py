"""Full packs of the capacity halved, by hand and against slow code that works item by item."""

from collections import Counter
from functools import cache
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful import plan_packs
from brimful.plan.counts.histogram import Histogram
from brimful.planners.phased import (
    PowersOfTwo,
)
from brimful.planners.phased.powers_of_two import halvings
from tests.plan.contents import lengths_of
from tests.planners.phased.instances import counts_of, held_and_left, histogram, one_by_one


def test_powers_of_two_lose_and_repeat_nothing():
    """LLaVA-OneVision's hash buckets: {64: 5, 4: 5} at 64 gave a "full" box of 4 tokens."""
    plan = plan_packs([64] * 5 + [4] * 5, capacity=64, algorithm="phased", seed=None)
    plan.validate(np.array([64] * 5 + [4] * 5))
    assert sorted(lengths_of(plan)) == [[4] * 5, *([[64]] * 5)]
    assert plan.outcome.phase_reports[0].startswith("powers_of_two: 5 packs of 5 items, fill 100.00 %")


@pytest.mark.parametrize(
    ("counts", "capacity", "packs", "left"),
    [
        ({64: 5, 4: 5}, 64, [(64,)] * 5, {4: 5}),
        ({8: 1, 4: 3, 2: 2, 1: 5}, 8, [(4, 2, 1, 1)] * 2 + [(8,)], {4: 1, 1: 1}),
        ({2: 3, 1: 1}, 4, [(2, 2)], {2: 1, 1: 1}),
        ({12: 1, 6: 3, 3: 4, 2: 9}, 12, [(6, 3, 3)] * 2 + [(12,)], {6: 1, 2: 9}),
        ({7: 2, 3: 1}, 7, [(7,)] * 2, {3: 1}),
        ({32: 1, 16: 1}, 64, [], {32: 1, 16: 1}),
    ],
)
def test_powers_of_two_by_hand(counts, capacity, packs, left):
    """Full packs alone; the first case is the one that another packer turns into packs with items twice."""
    placed = PowersOfTwo().place(histogram(counts), capacity=capacity)
    assert one_by_one(placed) == packs
    assert counts_of(placed.left) == left


def test_powers_of_two_greedily():
    """Without diversity, the longest that fit: other packs, as many of them."""
    placed = PowersOfTwo(diversity=False).place(histogram({8: 1, 4: 3, 2: 2, 1: 5}), capacity=8)
    assert one_by_one(placed) == [(8,), (4, 4), (4, 2, 2)]
    assert counts_of(placed.left) == {1: 5}


def test_powers_of_two_leaves_short_items_to_later_phases():
    """min_length keeps captions of a few tokens out of these packs."""
    placed = PowersOfTwo(min_length=2).place(histogram({8: 1, 4: 3, 2: 2, 1: 5}), capacity=8)
    assert one_by_one(placed) == [(4, 2, 2), (4, 4), (8,)]
    assert counts_of(placed.left) == {1: 5}


def test_powers_of_two_of_a_billion_items_are_a_few_patterns():
    """Multiplicities inside a pack and of packs: going round the lengths item by item would take hours."""
    items = Histogram(2 ** np.arange(31), np.full(31, 10**9))
    placed = PowersOfTwo().place(items, capacity=2**30)
    assert sum(times for _, times in placed.packs) == items.total // 2**30
    assert len(placed.packs) < 31 * 30
    ones = Histogram(np.array([1]), np.array([3 * 2**30 + 5]))
    assert PowersOfTwo().place(ones, capacity=2**30).packs == [(((1, 2**30),), 3)]


def slow_rounds(lengths, capacity):
    """Packs of the capacity halved, one item at a time, looking ahead by trying all subsets."""
    keys = halvings(capacity)
    items = sorted(length for length in lengths if length in keys)

    def sums(rest):
        reached = {0}
        for length in rest:
            reached |= {total + length for total in reached if total + length <= capacity}
        return reached

    packs = []
    while capacity in sums(items):
        pack, room, rest = [], capacity, list(items)
        queue = sorted(set(items))
        while room:
            key = queue.pop(0)
            if key not in rest:
                continue
            fewer = list(rest)
            fewer.remove(key)
            if room - key in sums(fewer):
                pack.append(key)
                room -= key
                rest = fewer
                queue.append(key)
        packs.append(tuple(sorted(pack, reverse=True)))
        items = rest
    return packs


@st.composite
def halved(draw, *, max_items=24):
    capacity = draw(st.sampled_from([1, 6, 8, 12, 16, 20, 24, 32]))
    keys = halvings(capacity)
    return capacity, draw(
        st.lists(st.sampled_from([*keys, *keys, 5]).filter(lambda n: n <= capacity), max_size=max_items)
    )


@given(halved())
def test_powers_of_two_are_the_packs_of_the_rounds_item_by_item(case):
    """Taking a pattern for many packs must be what making the packs one by one gives."""
    capacity, lengths = case
    items = Histogram.of(np.array(lengths, dtype=np.int64))
    placed = PowersOfTwo().place(items, capacity=capacity)
    assert one_by_one(placed) == slow_rounds(lengths, capacity)
    assert held_and_left(placed) == Counter(lengths)


@given(halved(max_items=9), st.booleans())
def test_powers_of_two_make_as_many_full_packs_as_there_can_be(case, diversity):
    """By trying every choice of full packs; a recipe that runs into a dead end makes fewer."""
    capacity, lengths = case

    @cache
    def most(items):
        found = 0
        for number in range(1, len(items) + 1):
            for chosen in set(combinations(range(len(items)), number)):
                if sum(items[at] for at in chosen) == capacity:
                    rest = tuple(length for at, length in enumerate(items) if at not in chosen)
                    found = max(found, 1 + most(rest))
        return found

    eligible = tuple(sorted(length for length in lengths if length in halvings(capacity)))
    placed = PowersOfTwo(diversity=diversity).place(Histogram.of(np.array(lengths, dtype=np.int64)), capacity=capacity)
    packs = one_by_one(placed)
    assert len(packs) == most(eligible)
    assert all(sum(pack) == capacity for pack in packs)
    assert held_and_left(placed) == Counter(lengths)

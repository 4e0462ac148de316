"""Packs around seeds, by hand and against slow code that works item by item."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given

from brimful.plan.counts.histogram import Histogram
from brimful.planners.phased import (
    Finish,
    Half,
    Lengths,
    PowersOfTwo,
    Seeded,
    TopN,
)
from brimful.testing.strategies import capacities_and_lengths
from tests.planners.phased.instances import counts_of, held_and_left, histogram, one_by_one, seeded_phases


@pytest.mark.parametrize(
    ("phase", "counts", "packs", "left"),
    [
        # 7 1 1 is 9 and goes back; 6 1 1 takes the 2 as well
        (Seeded(Half(), min_items=3), {7: 2, 6: 1, 3: 2, 2: 1, 1: 2}, [(6, 2, 1, 1)], {7: 2, 3: 2}),
        # one item is enough, so the longest that fits comes at once
        (Seeded(Half()), {7: 2, 6: 1, 3: 2, 2: 1, 1: 2}, [(7, 3)] * 2 + [(6, 2, 1, 1)], {}),
        # five items: the shortest until four, then the 2 or the 3: of which there are more for their length
        (Seeded(TopN(1), min_items=5, min_fill=0.8), {4: 1, 3: 2, 2: 4, 1: 2}, [(4, 2, 2, 1, 1)], {3: 2, 2: 2}),
        (Seeded(TopN(1), min_items=5, min_fill=1), {4: 1, 3: 2, 2: 1, 1: 3}, [(4, 3, 1, 1, 1)], {3: 1, 2: 1}),
        (Seeded(Half(), max_items=2), {7: 1, 2: 1, 1: 1}, [], {7: 1, 2: 1, 1: 1}),
        (Seeded(Half(), max_items=3), {7: 1, 2: 1, 1: 1}, [(7, 2, 1)], {}),
    ],
)
def test_seeded_by_hand(phase, counts, packs, left):
    """Whole answers at capacity 10: what is kept, what goes back."""
    placed = phase.place(histogram(counts), capacity=10)
    assert one_by_one(placed) == packs
    assert counts_of(placed.left) == left


def test_a_pack_may_hold_more_than_eight_items():
    """min_items=1 asks for one item and forbids nothing."""
    placed = Seeded(Half()).place(histogram({50: 1, 1: 50}), capacity=100)
    assert placed.packs == [(((50, 1), (1, 50)), 1)]


@pytest.mark.parametrize(
    ("phase", "counts", "note"),
    [
        (Seeded(Half()), {3: 4}, "no seeds"),
        (Seeded(Half()), {7: 4}, "no fillers: all lengths are seeds"),
        (Seeded(Half()), {}, "nothing was left"),
        (Seeded(Half(), only_over=4), {7: 1, 3: 1}, "2 items are left, and it runs only above 4"),
        (Seeded(Half()), {7: 1, 1: 1}, "no seed led to min_items and min_fill"),
        (PowersOfTwo(), {7: 4}, "no item has the capacity or one of its halvings as length"),
        (PowersOfTwo(), {5: 1}, "the items of these lengths do not fill a pack"),
        (PowersOfTwo(), {}, "no item has the capacity or one of its halvings as length"),
        (Finish(min_fill=0.9), {}, "nothing was left"),
    ],
)
def test_a_phase_that_finds_nothing_says_so(phase, counts, note):
    """Empty pools are ordinary: another packer stops with an index error, or makes one over-full pack."""
    placed = phase.place(histogram(counts), capacity=10)
    assert (placed.packs, counts_of(placed.left), placed.note) == ([], counts, note)


def test_rounds_choose_their_seeds_anew():
    """Two rounds of the longest length: 9 8, each with a filler; a third finds nothing that is full enough."""
    items = histogram({9: 1, 8: 1, 2: 1, 1: 1})
    once = Seeded(TopN(1), min_fill=1)
    assert one_by_one(once.place(items, capacity=10)) == [(9, 1)]
    placed = Seeded(TopN(1), min_fill=1, rounds=5).place(items, capacity=10)
    assert one_by_one(placed) == [(9, 1), (8, 2)]
    placed = Seeded(TopN(1), min_fill=1, rounds=5, min_placed=2).place(items, capacity=10)
    assert one_by_one(placed) == [(9, 1), (8, 2)]
    placed = Seeded(TopN(1), min_fill=1, rounds=5, min_placed=3).place(items, capacity=10)
    assert one_by_one(placed) == [(9, 1)]
    assert placed.note == "round 1 placed 2 items: no further round"


def test_the_order_of_the_seeds_is_that_of_their_potential():
    """The 6 comes before the 7 although it is shorter: three fillers fit after it, two after the 7."""
    items = histogram({7: 1, 6: 1, 4: 1, 3: 1, 2: 1})
    assert one_by_one(Seeded(Half()).place(items, capacity=10)) == [(6, 4), (7, 3)]
    items = histogram({10: 2, 7: 1, 3: 1})
    assert one_by_one(Seeded(Half()).place(items, capacity=10)) == [
        (7, 3),
        (10,),
        (10,),
    ]  # no room: a full pack already


def test_a_pack_that_is_put_back_leaves_no_trace():
    """12 1 1 1 2 2 is 19 and goes back; then 11 1 1 1 chooses the 2 again, which is the most common for its length."""
    items = histogram({12: 1, 11: 1, 5: 4, 4: 1, 2: 2, 1: 3})
    placed = Seeded(Lengths((11, 12)), min_items=5, min_fill=1).place(items, capacity=20)
    assert one_by_one(placed) == [(11, 4, 2, 1, 1, 1)]


def slow_seeded(phase, lengths, capacity, *, runs):
    """The words of the phase, item by item on a list; ``runs`` makes a pattern again while its items last."""
    if not lengths:
        return []
    distinct = np.array(sorted(set(lengths)))
    chosen = distinct[phase.by.choose(distinct, capacity=capacity)].tolist()
    pool = [length for length in lengths if length not in chosen]
    if not chosen or not pool:
        return []
    fillers = sorted(set(pool))

    def potential(seed):
        room = capacity - seed
        if room == 0:
            return 0.0
        items = min(room // fillers[0], len(pool) // 2) + 1
        share = sum(filler <= room for filler in fillers) / len(fillers)
        return 0.5 * min(items / phase.min_items, 1.0) + 0.3 * (seed / capacity) + 0.2 * share

    score = {seed: potential(seed) for seed in chosen}
    seeds = sorted((length for length in lengths if length in chosen), key=lambda length: (-score[length], -length))
    seeds = [seed for seed in seeds if score[seed] > 0.2 or seed == capacity]  # others cannot succeed

    def attempt(seed):
        pack, rest = [seed], sorted(pool)
        while phase.max_items is None or len(pack) < phase.max_items:
            room = capacity - sum(pack)
            fits = [length for length in rest if length <= room]
            if not fits:
                break
            if 5 * len(pack) < 4 * phase.min_items:
                pick = min(fits)
            elif len(pack) < phase.min_items:
                pick = max(sorted(set(fits)), key=lambda length: rest.count(length) / length)
            else:
                pick = max(fits)
            pack.append(pick)
            rest.remove(pick)
        kept = len(pack) >= phase.min_items and sum(pack) >= round(phase.min_fill * 100) * capacity / 100
        return pack if kept else None

    packs = []
    while seeds:
        seed = seeds.pop(0)
        pack = attempt(seed)
        while pack is not None:
            packs.append(tuple(sorted(pack, reverse=True)))
            for length in pack[1:]:
                pool.remove(length)
            again = not Counter(pack[1:]) - Counter(pool)
            if not runs or not again or not seeds or seeds[0] != seed:
                break
            seeds.pop(0)
    return packs


@pytest.mark.parametrize(("most_items", "runs"), [(4, False), (12, True)])
def test_seeded_against_the_words_item_by_item(most_items, runs):
    """Up to four items no choice looks at counts, and then the runs of equal packs are exactly one pack at a time."""

    @given(capacities_and_lengths(max_samples=40), seeded_phases(most_items=most_items, most_rounds=1))
    def check(case, phase):
        capacity, lengths = case
        placed = phase.place(Histogram.of(np.array(lengths)), capacity=capacity)
        expected = slow_seeded(phase, lengths, capacity, runs=runs) if len(lengths) > phase.only_over else []
        assert one_by_one(placed) == expected

    check()


@given(capacities_and_lengths(), seeded_phases())
def test_what_a_seeded_phase_keeps_is_within_its_limits(case, phase):
    """Fewest items, least fill, most items, capacity; and what it does not keep still exists."""
    capacity, lengths = case
    placed = phase.place(Histogram.of(np.array(lengths)), capacity=capacity)
    for pack in one_by_one(placed):
        assert phase.min_items <= len(pack) <= (phase.max_items or len(pack))
        assert round(phase.min_fill * 100) * capacity <= 100 * sum(pack) <= 100 * capacity
    assert held_and_left(placed) == Counter(lengths)

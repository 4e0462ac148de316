"""The phased recipe: each phase by hand and against slow code that works item by item; nothing lost, ever."""

from collections import Counter
from functools import cache
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful.errors import SettingsError
from brimful.plan.counts.counting_sort import decreasing_order
from brimful.plan.counts.histogram import Histogram
from brimful.plan.counts.patterns import patterns_of
from brimful.plan.fit.best_fit_decreasing import best_fit_decreasing
from brimful.plan.phased import (
    CapacityRatio,
    Finish,
    Half,
    Lengths,
    PowersOfTwo,
    Recipe,
    Seeded,
    SizeRange,
    TopN,
)
from brimful.plan.phased.powers_of_two import halvings
from brimful.testing.strategies import capacities_and_lengths


def histogram(counts):
    return Histogram.of(np.repeat(list(counts), list(counts.values())))


def counts_of(items):
    return dict(zip(items.lengths.tolist(), items.counts.tolist(), strict=True))


def one_by_one(placed):
    """Packs as tuples of lengths, longest first, in the order in which they were made."""
    return [
        tuple(length for length, copies in pattern for _ in range(copies))
        for pattern, times in placed.packs
        for _ in range(times)
    ]


def held_and_left(placed):
    return Counter(length for pack in one_by_one(placed) for length in pack) + Counter(counts_of(placed.left))


# ------------------------------------------------------------------ powers of two


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


@settings(max_examples=60)
@given(halved())
def test_powers_of_two_are_the_packs_of_the_rounds_item_by_item(case):
    """Taking a pattern for many packs must be what making the packs one by one gives."""
    capacity, lengths = case
    items = Histogram.of(np.array(lengths, dtype=np.int64))
    placed = PowersOfTwo().place(items, capacity=capacity)
    assert one_by_one(placed) == slow_rounds(lengths, capacity)
    assert held_and_left(placed) == Counter(lengths)


@settings(max_examples=60)
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


# ------------------------------------------------------------------ seeds


@pytest.mark.parametrize(
    ("rule", "seeds"),
    [
        (Half(), [5, 6, 9]),
        (Half(6), [6, 9]),
        (Half("mean"), [5, 6, 9]),
        (TopN(2), [6, 9]),
        (TopN(9), [2, 3, 5, 6, 9]),
        (SizeRange(), [5, 6, 9]),
        (SizeRange(3, 5), [3, 5]),
        (CapacityRatio(), [3, 5, 6, 9]),
        (CapacityRatio(0.2, 0.5), [2, 3, 5]),
        (Lengths((3, 4, 9)), [3, 9]),
    ],
)
def test_which_lengths_are_seeds(rule, seeds):
    """Each rule on 2 3 5 6 9 at capacity 10: bounds are included, and decimals mean what they say."""
    lengths = np.array([2, 3, 5, 6, 9])
    assert lengths[rule.choose(lengths, capacity=10)].tolist() == seeds


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


def test_capacity_ratio_chooses_seeds_and_leaves_min_fill_alone():
    """5 + 3 is 80 %: kept from 0.8 on, not because the seeds may be 30 % long."""
    items = histogram({5: 1, 1: 3})
    assert Seeded(CapacityRatio(0.5, 0.6), min_fill=0.95).place(items, capacity=10).packs == []
    assert Seeded(CapacityRatio(0.5, 0.6), min_fill=0.8).place(items, capacity=10).packs == [(((5, 1), (1, 3)), 1)]


@pytest.mark.parametrize(
    ("phase", "counts", "note"),
    [
        (Seeded(Half()), {3: 4}, "no seeds"),
        (Seeded(Half()), {7: 4}, "no fillers: all lengths are seeds"),
        (Seeded(Half()), {}, "nothing was left"),
        (Seeded(Half(), only_over=4), {7: 1, 3: 1}, "2 items are left, and it runs only over 4"),
        (Seeded(Half()), {7: 1, 1: 1}, "no seed led to min_items and min_fill"),
        (PowersOfTwo(), {7: 4}, "no item has the capacity or what halving it gives"),
        (PowersOfTwo(), {5: 1}, "the items of these lengths do not fill a pack"),
        (PowersOfTwo(), {}, "no item has the capacity or what halving it gives"),
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
    """The 6 comes before the 7 although it is shorter: three fillers fit behind it, two behind the 7."""
    items = histogram({7: 1, 6: 1, 4: 1, 3: 1, 2: 1})
    assert one_by_one(Seeded(Half()).place(items, capacity=10)) == [(6, 4), (7, 3)]
    items = histogram({10: 2, 7: 1, 3: 1})
    assert one_by_one(Seeded(Half()).place(items, capacity=10)) == [
        (7, 3),
        (10,),
        (10,),
    ]  # no room: a full pack already


def test_a_pack_that_is_put_back_leaves_no_trace():
    """12 1 1 1 2 2 is 19 and goes back; then 11 1 1 1 chooses the 2 again, of which there are most for their length."""
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


@st.composite
def seed_rules(draw):
    whole, share = st.integers(1, 70), st.integers(0, 100).map(lambda percent: percent / 100)
    return draw(
        st.one_of(
            st.builds(Half, st.none() | st.just("mean") | whole),
            st.builds(TopN, st.integers(1, 6)),
            st.lists(whole, min_size=2, max_size=2).map(lambda pair: SizeRange(*sorted(pair))),
            st.builds(SizeRange, most=st.none() | whole),
            st.lists(share, min_size=2, max_size=2).map(lambda pair: CapacityRatio(*sorted(pair))),
            st.builds(Lengths, st.lists(whole, min_size=1, max_size=4).map(tuple)),
        )
    )


@st.composite
def seeded_phases(draw, *, most_items=12, most_rounds=3):
    min_items = draw(st.integers(1, most_items))
    return Seeded(
        draw(seed_rules()),
        min_items=min_items,
        min_fill=draw(st.integers(0, 100)) / 100,
        max_items=draw(st.none() | st.integers(min_items, 20)),
        rounds=draw(st.integers(1, most_rounds)),
        min_placed=draw(st.sampled_from([1, 1, 5])),
        only_over=draw(st.sampled_from([0, 0, 10])),
    )


@pytest.mark.parametrize(("most_items", "runs"), [(4, False), (12, True)])
def test_seeded_against_the_words_item_by_item(most_items, runs):
    """Up to four items no choice looks at counts, and then the runs of equal packs are exactly one pack at a time."""

    @settings(max_examples=100)
    @given(capacities_and_lengths(max_samples=40), seeded_phases(most_items=most_items, most_rounds=1))
    def check(case, phase):
        capacity, lengths = case
        placed = phase.place(Histogram.of(np.array(lengths)), capacity=capacity)
        expected = slow_seeded(phase, lengths, capacity, runs=runs) if len(lengths) > phase.only_over else []
        assert one_by_one(placed) == expected

    check()


@settings(max_examples=100)
@given(capacities_and_lengths(), seeded_phases())
def test_what_a_seeded_phase_keeps_is_within_its_limits(case, phase):
    """Fewest items, least fill, most items, capacity; and what it does not keep is still there."""
    capacity, lengths = case
    placed = phase.place(Histogram.of(np.array(lengths)), capacity=capacity)
    for pack in one_by_one(placed):
        assert phase.min_items <= len(pack) <= (phase.max_items or len(pack))
        assert round(phase.min_fill * 100) * capacity <= 100 * sum(pack) <= 100 * capacity
    assert held_and_left(placed) == Counter(lengths)


# ------------------------------------------------------------------ finish


def test_finish_by_hand():
    """Best fit decreasing; with min_fill, a seed of 2 finds the 6 and the other 2 before the 3 takes the 6."""
    items = histogram({6: 1, 3: 1, 2: 2})
    assert one_by_one(Finish().place(items, capacity=10)) == [(6, 3), (2, 2)]
    assert one_by_one(Finish(min_fill=1).place(items, capacity=10)) == [(6, 2, 2), (3,)]
    assert one_by_one(Finish(min_fill=1, every=2).place(items, capacity=10)) == [(6, 2, 2), (3,)]
    assert one_by_one(Finish(min_fill=1, every=2, last=1).place(items, capacity=10)) == [(6, 3), (2, 2)]


def test_finish_takes_so_many_seeds_of_a_length():
    """Two seeds of 2, each with a 6; a third would leave 3 3 3 alone."""
    items = histogram({6: 3, 3: 3, 2: 6})
    placed = Finish(min_fill=1, every=3, seeds_per_length=2).place(items, capacity=10)
    assert one_by_one(placed) == [(6, 2, 2)] * 2 + [(6, 3), (3, 3, 2, 2)]
    placed = Finish(min_fill=1, every=3, seeds_per_length=3).place(items, capacity=10)
    assert one_by_one(placed) == [(6, 2, 2)] * 3 + [(3, 3, 3)]


def test_finish_takes_the_longest_seeds_first():
    """The other way round, the 2 would take the 6 away from the 4."""
    assert one_by_one(Finish(min_fill=1).place(histogram({6: 1, 4: 1, 2: 2}), capacity=10)) == [(6, 4), (2, 2)]


@given(capacities_and_lengths())
def test_finish_is_best_fit_decreasing(case):
    """Without min_fill, the same packs."""
    capacity, lengths = case
    items = Histogram.of(np.array(lengths))
    expected = patterns_of(best_fit_decreasing(items, capacity=capacity))
    assert dict(Finish().place(items, capacity=capacity).packs) == expected


# ------------------------------------------------------------------ recipes


@st.composite
def recipes(draw):
    powers = st.builds(PowersOfTwo, diversity=st.booleans(), min_length=st.integers(1, 4))
    last = st.none() | st.integers(1, 5)
    finish = st.builds(
        Finish,
        min_fill=st.none() | st.integers(0, 100).map(lambda percent: percent / 100),
        every=st.integers(1, 5),
        last=last,
        seeds_per_length=st.integers(1, 12),
    )
    return Recipe([*draw(st.lists(powers | seeded_phases(), max_size=5)), draw(finish)])


def packs_of(phased, lengths):
    return phased.runs.assign(decreasing_order(lengths)).as_lists()


@settings(max_examples=80)
@given(capacities_and_lengths(), recipes())
def test_each_item_is_in_one_pack_and_no_pack_is_over_the_capacity(case, recipe):
    """Whatever the phases: nothing lost, nothing twice, and the reports add up to the whole."""
    capacity, lengths = case
    array = np.array(lengths)
    done = recipe.run(Histogram.of(array), capacity=capacity)
    packs = packs_of(done, array)
    assert sorted(item for pack in packs for item in pack) == list(range(len(lengths)))
    assert all(0 < sum(lengths[item] for item in pack) <= capacity for pack in packs)
    assert [report.phase for report in done.reports] == [str(phase) for phase in recipe.phases]
    assert sum(report.packs for report in done.reports) == len(packs)
    assert sum(report.items for report in done.reports) == len(lengths)
    assert sum(report.tokens for report in done.reports) == sum(lengths)
    assert (done.reports[-1].items_left, done.reports[-1].tokens_left) == (0, 0)
    first = 0
    for report in done.reports:
        totals = [sum(lengths[item] for item in pack) for pack in packs[first : first + report.packs]]
        assert sum(totals) == report.tokens
        if totals:
            assert report.least_fill == min(totals) / capacity
            assert report.mean_fill == sum(totals) / (len(totals) * capacity)
        first += report.packs


@settings(max_examples=50)
@given(capacities_and_lengths(), recipes(), st.data())
def test_parts_counted_apart_give_the_same_packs(case, recipe, data):
    """The packs are a function of the counts: no order, no chance, no place where the lengths were counted."""
    capacity, lengths = case
    whole = recipe.run(Histogram.of(np.array(lengths)), capacity=capacity)
    mixed = data.draw(st.permutations(lengths))
    cut = data.draw(st.integers(0, len(lengths)))
    parts = [Histogram.of(np.array(part, dtype=np.int64)) for part in (mixed[:cut], mixed[cut:])]
    again = recipe.run(parts[0] + parts[1], capacity=capacity)
    assert again.describe() == whole.describe()
    assert packs_of(again, np.array(lengths)) == packs_of(whole, np.array(lengths))


@settings(max_examples=60)
@given(recipes())
def test_a_recipe_written_and_read_is_the_same_recipe(recipe):
    """The text in a saved plan says how to make it again."""
    assert Recipe.parse(str(recipe)) == recipe
    assert str(Recipe.parse(str(recipe))) == str(recipe)


def test_the_reports_of_a_small_recipe():
    """Whole lines, as the command prints them."""
    items = histogram({8: 2, 4: 2, 7: 1, 6: 1, 5: 1, 3: 1, 2: 1})
    done = Recipe([PowersOfTwo(), Seeded(Half(), min_fill=0.9), Seeded(TopN(3)), Finish()]).run(items, capacity=8)
    assert done.describe() == [
        "powers_of_two: 3 packs of 4 items, fill 100.00 %, least 100.00 %; 5 items left",
        "half(min_fill=0.9): 2 packs of 4 items, fill 100.00 %, least 100.00 %; 1 items left",
        "top_n(n=3): no packs; 1 items left (no fillers: all lengths are seeds)",
        "finish: 1 packs of 1 items, fill 87.50 %, least 87.50 %; 0 items left",
    ]


def test_the_text_of_a_recipe():
    """Spaces and a semicolon at the end do not matter; what is at its default is not written."""
    text = " powers_of_two( ); half(threshold = mean, min_items=8,min_fill=0.90) ;lengths(lengths=500 300);finish; "
    recipe = Recipe.parse(text)
    assert recipe == Recipe(
        [PowersOfTwo(), Seeded(Half("mean"), min_items=8, min_fill=0.9), Seeded(Lengths((300, 500))), Finish()]
    )
    assert (
        str(recipe) == "powers_of_two; half(threshold=mean,min_items=8,min_fill=0.9); lengths(lengths=300 500); finish"
    )
    assert Recipe.parse("lengths(lengths=300); finish") == Recipe([Seeded(Lengths((300,))), Finish()])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "phases: '' is no phase: write name or name(setting=value, …)"),
        ("half;;finish", "phases: '' is no phase"),
        (
            "hlaf; finish",
            "phases: 'hlaf' is no phase: use some of powers_of_two, half, top_n, size_range, capacity_ratio, lengths, finish",
        ),
        ("half(; finish", "phases: 'half(' is no phase"),
        ("half(min_items); finish", "phases: 'min_items' in half(…) is no setting: write setting=value"),
        ("half(min_items=); finish", "phases: 'min_items=' in half(…) is no setting"),
        ("powers_of_two(n=3); finish", "phases: powers_of_two has no setting 'n': use some of diversity, min_length"),
        (
            "top_n(by=half); finish",
            "phases: top_n has no setting 'by': use some of n, min_items, min_fill, max_items, rounds, min_placed, only_over",
        ),
        ("top_n(n=3,n=4); finish", "phases: top_n has n twice: keep one"),
        ("top_n(n=0); finish", "phases top_n(n=…) must be a whole number of at least 1 and is 0"),
        ("top_n(n=2.5); finish", "phases top_n(n=…) must be a whole number of at least 1 and is 2.5"),
        ("half(threshold=median); finish", "phases half(threshold=…) must be a length or mean and is 'median'"),
        ("half(min_fill=96); finish", "phases half(min_fill=…) must be from 0 to 1 and is 96"),
        ("half(min_items=5,max_items=4); finish", "phases half(max_items=…) must be at least min_items=5 and is 4"),
        ("size_range(least=9,most=3); finish", "phases size_range(least=…) must be at most most=3 and is 9"),
        ("powers_of_two(diversity=1); finish", "phases powers_of_two(diversity=…) must be true or false and is 1"),
        ("lengths; finish", "phases: 'lengths' names no lengths: write lengths(lengths=300 400 500)"),
        ("lengths(lengths=a); finish", "phases lengths(lengths=…) must be lengths of at least 1"),
        ("lengths(lengths=0 4); finish", "phases lengths(lengths=…) must be lengths of at least 1"),
        ("half", "phases ends with half: add finish at the end, or items would be left without a pack"),
        ("finish; half; finish", "phases has finish before its end"),
    ],
)
def test_errors_name_the_word_and_the_choices(text, message):
    """One line, from text that a user typed."""
    with pytest.raises(SettingsError) as caught:
        Recipe.parse(text)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_errors_of_the_classes():
    """What text cannot get wrong, code can."""
    with pytest.raises(SettingsError, match="a recipe is made of phases"):
        Recipe([Half(), Finish()])  # type: ignore[list-item]
    with pytest.raises(SettingsError, match="phases is empty"):
        Recipe([])
    with pytest.raises(SettingsError, match="must be a rule"):
        Seeded(by="half")  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="is True"):
        TopN(n=True)


# ------------------------------------------------------------------ at scale


def test_lengths_over_sixty_four_thousand():
    """Another packer counts in 16 bits, where 66,000 is 464."""
    items = histogram({66_000: 3, 65_072: 3, 131_072: 1})
    done = Recipe.default().run(items, capacity=131_072)
    assert packs_of(done, np.repeat([66_000, 65_072, 131_072], [3, 3, 1])) == [[6], [0, 3], [1, 4], [2, 5]]


def test_few_leftovers_are_packed_too():
    """Another packer drops the last hundred."""
    done = Recipe.default().run(histogram({7000: 60, 6999: 40}), capacity=8192)
    assert (done.runs.num_packs, done.reports[-1].packs) == (100, 100)


@pytest.mark.parametrize("shape", ["lognormal", "uniform", "bimodal"])
def test_the_default_recipe_is_close_to_best_fit_decreasing(shape):
    """The recipe's own packer needs 0.4 % more packs than best fit decreasing; on counts it is closer."""
    draw = np.random.default_rng(0)
    number, capacity = 20_000, 8192
    lengths = {
        "lognormal": draw.lognormal(np.log(500), 1.0, number),
        "uniform": draw.integers(1, capacity + 1, number),
        "bimodal": np.where(draw.random(number) < 0.5, draw.normal(600, 150, number), draw.normal(5000, 900, number)),
    }[shape]
    items = Histogram.of(np.rint(lengths).clip(1, capacity).astype(np.int64))
    done = Recipe.default().run(items, capacity=capacity)
    assert done.runs.num_packs <= 1.004 * best_fit_decreasing(items, capacity=capacity).num_packs


def test_a_hundred_million_samples_are_as_quick_as_their_lengths_are_few():
    """Counts, not items: item by item this would take an hour."""
    items = Histogram(np.arange(1, 8193), np.arange(8192, 0, -1) * 3)
    done = Recipe.default().run(items, capacity=8192)
    assert sum(report.items for report in done.reports) == items.num_items > 100_000_000

"""Recipes: phases in a row, nothing lost, ever; and their texts."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.errors import SettingsError
from brimful.plan.counts.counting_sort import decreasing_order
from brimful.plan.counts.histogram import Histogram
from brimful.plan.fit.best_fit_decreasing import best_fit_decreasing
from brimful.planners.phased import (
    Finish,
    Half,
    Lengths,
    PowersOfTwo,
    Recipe,
    Seeded,
    TopN,
)
from brimful.testing.strategies import capacities_and_lengths
from tests.plan.frozen import digest_of
from tests.planners.phased.instances import histogram, seeded_phases


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


@given(capacities_and_lengths(), recipes())
def test_each_item_is_in_one_pack_and_no_pack_is_over_the_capacity(case, recipe):
    """Whatever the phases: nothing lost, nothing twice, and the reports add up to the whole."""
    capacity, lengths = case
    array = np.array(lengths)
    done = recipe.run(Histogram.of(array), capacity=capacity)
    packs = packs_of(done, array)
    assert sorted(item for pack in packs for item in pack) == list(range(len(lengths)))
    assert all(0 < sum(lengths[item] for item in pack) <= capacity for pack in packs)
    first, num_left = 0, len(lengths)
    for phase, report in zip(recipe.phases, done.reports, strict=True):
        counts = re.match(r": (\d+) packs? of (\d+) items?, ", report.removeprefix(str(phase)))
        number, num_items = map(int, counts.groups()) if counts else (0, 0)
        of_phase = packs[first : first + number]
        totals = [sum(lengths[item] for item in pack) for pack in of_phase]
        assert sum(map(len, of_phase)) == num_items
        num_left -= num_items
        assert report.startswith(f"{phase}: ")
        assert f"; {num_left} item{'' if num_left == 1 else 's'} left" in report
        if totals:
            mean, least = (100 * total / capacity for total in (sum(totals) / len(totals), min(totals)))
            assert f"fill {mean:.2f} %, least {least:.2f} %" in report
        first += number
    assert (first, num_left) == (len(packs), 0)


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


@given(recipes())
def test_a_recipe_written_and_read_is_the_same_recipe(recipe):
    """The text in a saved plan says how to make it again."""
    assert Recipe.parse(str(recipe)) == recipe
    assert str(Recipe.parse(str(recipe))) == str(recipe)


def _random_recipe(chance):
    """Packs and reports of a recipe that was written and read, perhaps with a setting that is refused."""
    capacity = chance.of(16, 24, 60, 61)
    share, length = chance.of(0, 0.3, 0.5, 0.75, 0.9, 1), chance.number(1, capacity + 1)
    rules = {
        "half": {"threshold": chance.of("mean", length)},
        "top_n": {"n": chance.number(1, 7)},
        "size_range": {"least": chance.number(1, 12), "most": chance.number(12, capacity + 1)},
        "capacity_ratio": {"least": chance.of(0, 0.1, 0.3), "most": chance.of(0.3, 0.55, 1)},
        "lengths": {"lengths": chance.of(length, f"{length} 7 9", f"5 {2 * capacity}")},
    }
    seeded = {"min_items": chance.number(1, 9), "min_fill": share, "max_items": chance.number(4, 13)}
    seeded |= {"rounds": chance.number(1, 4), "min_placed": chance.number(1, 6), "only_over": chance.number(12)}
    powers = {"diversity": chance.of("true", "false"), "min_length": chance.number(1, 4)}
    finish = {
        "min_fill": share,
        "every": chance.number(1, 4),
        "last": chance.number(1, 4),
        "seeds_per_length": chance.number(1, 4),
    }
    phases = []
    for name in (*chance.generator.choice(["powers_of_two", *rules], chance.number(4)), "finish"):
        options = {"powers_of_two": powers, "finish": finish}.get(name) or {**rules[name], **seeded}
        chosen = [key for key in options if key == "lengths" or chance.of(True, False)]
        phases.append(f"{name}({','.join(f'{key}={options[key]}' for key in chosen)})")
    items = Histogram.of(chance.numbers(1, chance.of(capacity // 3, capacity) + 1, chance.number(1, 80)))
    recipe = Recipe.parse("; ".join(phases))
    done = recipe.run(items, capacity=capacity)
    lengths = np.repeat(items.lengths, items.counts)
    return [str(recipe), done.describe(), packs_of(done, lengths)]


def test_random_recipes_give_what_they_gave():
    """A plan is made again from its file by the text of its recipe: whatever the phases, the same packs."""
    assert digest_of(_random_recipe, 600) == "a9273c7e00a85229"


def test_the_reports_of_a_small_recipe():
    """Whole lines, as the command prints them."""
    items = histogram({8: 2, 4: 2, 7: 1, 6: 1, 5: 1, 3: 1, 2: 1})
    done = Recipe([PowersOfTwo(), Seeded(Half(), min_fill=0.9), Seeded(TopN(3)), Finish()]).run(items, capacity=8)
    assert done.describe() == [
        "powers_of_two: 3 packs of 4 items, fill 100.00 %, least 100.00 %; 5 items left",
        "half(min_fill=0.9): 2 packs of 4 items, fill 100.00 %, least 100.00 %; 1 item left",
        "top_n(n=3): no packs; 1 item left (no fillers: all lengths are seeds)",
        "finish: 1 pack of 1 item, fill 87.50 %, least 87.50 %; 0 items left",
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


def test_errors_of_the_classes():
    """What text cannot get wrong, code can."""
    with pytest.raises(SettingsError, match="a recipe is made of phases"):
        Recipe([Half(), Finish()])  # type: ignore[list-item]
    with pytest.raises(SettingsError, match=r"phases must end with finish.* is empty"):
        Recipe([])
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
    assert done.runs.num_packs == 100
    assert done.reports[-1].startswith("finish(min_fill=0.95,every=5,last=20): 100 packs of 100 items")


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
    assert int(done.runs.pack_sizes().sum(dtype=np.int64)) == items.num_items > 100_000_000

"""Every algorithm does what its textbook name says: through ``plan_packs``, alone, compiled and not."""

import re
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given

from brimful import plan_packs
from brimful.errors import SettingsError
from brimful.plan import ALGORITHMS
from brimful.plan.counts.counting_sort import decreasing_order
from brimful.plan.counts.histogram import Histogram
from brimful.plan.fit import best_fit as best_fit_module
from brimful.plan.fit.any_fit import first_fit, next_fit, worst_fit
from brimful.plan.fit.best_fit import best_fit
from brimful.plan.fit.best_fit_decreasing import best_fit_decreasing
from brimful.plan.fit.first_fit_decreasing import first_fit_decreasing
from brimful.testing.strategies import capacities_and_lengths
from tests.plan import reference
from tests.plan.contents import ids_of
from tests.plan.forms import use

TELL_TALE = [3, 3, 5, 6, 1, 1]
LARGEST = 2**31 - 1


def by_counts(algorithm):
    def run(lengths, *, capacity):
        return algorithm(Histogram.of(lengths), capacity=capacity).assign(decreasing_order(lengths))

    run.__name__ = algorithm.__name__
    return run


IN_ORDER = [next_fit, first_fit, best_fit, worst_fit]
ALL = [*IN_ORDER, by_counts(first_fit_decreasing), by_counts(best_fit_decreasing)]


def name_of(value):
    return getattr(value, "__name__", "")


def both_ways(algorithm, lengths, capacity):
    """The packs of an algorithm alone, and of a plan that names it."""
    array = np.array(lengths)
    plan = plan_packs(array, capacity=capacity, algorithm=algorithm.__name__, seed=None)
    return [algorithm(array, capacity=capacity).as_lists(), ids_of(plan)]


@pytest.mark.parametrize(
    ("algorithm", "packs"),
    [
        (next_fit, [[0, 1], [2], [3, 4], [5]]),
        (first_fit, [[0, 1, 4], [2, 5], [3]]),
        (best_fit, [[0, 1, 4], [2], [3, 5]]),
        (worst_fit, [[0, 1, 5], [2, 4], [3]]),
        (by_counts(first_fit_decreasing), [[3, 4], [2, 5], [0, 1]]),
        (by_counts(best_fit_decreasing), [[3, 4], [2], [0, 1, 5]]),
    ],
    ids=name_of,
)
def test_the_six_lengths_that_tell_the_algorithms_apart(form, algorithm, packs):
    """A name is a promise: swapping one rule for another would pass every other test of fill."""
    assert both_ways(algorithm, TELL_TALE, 7) == [packs, packs]


@pytest.mark.parametrize("algorithm", ALL, ids=name_of)
@pytest.mark.parametrize("form", ["compiled", "plain"])
@given(case=capacities_and_lengths())
def test_same_packs_as_the_slow_reference(algorithm, form, case):
    """Sample by sample, not merely as tight: ties, exact fits and the order of opening are all that a histogram, a
    tree, a heap or sorted blocks could get wrong."""
    capacity, lengths = case
    with pytest.MonkeyPatch.context() as monkeypatch:
        use(form, monkeypatch)
        monkeypatch.setattr(best_fit_module, "_BLOCK_KEYS", 4)  # blocks that split, empty and are used again
        found = both_ways(algorithm, lengths, capacity)
    expected = getattr(reference, algorithm.__name__)(lengths, capacity)
    assert found == [expected, expected]


@pytest.mark.parametrize("algorithm", IN_ORDER, ids=name_of)
def test_both_forms_agree_on_many_items(algorithm):
    """More packs than the first allocation of any structure holds; lengths from 1 to half a million."""
    lengths = np.random.default_rng(0).integers(1, 1 << 19, 40_000)
    found = []
    for form in ("compiled", "plain"):
        with pytest.MonkeyPatch.context() as monkeypatch:
            use(form, monkeypatch)
            monkeypatch.setattr(best_fit_module, "_BLOCK_KEYS", 32)
            found.append(algorithm(lengths, capacity=1 << 20))
    assert found[0].offsets.tolist() == found[1].offsets.tolist()
    assert found[0].items.tolist() == found[1].items.tolist()


def test_equally_full_packs_in_many_blocks():
    """Keys of one room lie in several blocks: the pack that was opened first is in the first of them."""
    lengths = np.random.default_rng(0).integers(4, 12, 3_000)
    found = []
    for form in ("compiled", "plain"):
        with pytest.MonkeyPatch.context() as monkeypatch:
            use(form, monkeypatch)
            monkeypatch.setattr(best_fit_module, "_BLOCK_KEYS", 4)
            found.append(best_fit(lengths, capacity=20).as_lists())
    assert found[0] == found[1] == reference.best_fit(lengths.tolist(), 20)


@pytest.mark.parametrize("algorithm", IN_ORDER, ids=name_of)
def test_the_largest_capacity(form, algorithm):
    """Sums of two lengths leave 32 bits, and no table by capacity would fit any memory."""
    lengths = [LARGEST, LARGEST - 5, 5, 1, LARGEST - 1, LARGEST]
    assert algorithm(np.array(lengths), capacity=LARGEST).as_lists() == getattr(reference, algorithm.__name__)(
        lengths, LARGEST
    )


@pytest.mark.parametrize("algorithm", IN_ORDER, ids=name_of)
def test_nothing_and_one(form, algorithm):
    assert algorithm(np.array([], dtype=np.int32), capacity=7).as_lists() == []
    assert algorithm(np.array([7]), capacity=7).as_lists() == [[0]]


@given(case=capacities_and_lengths())
def test_decreasing_is_the_same_rule_on_sorted_items(case):
    """The forms on counts and the forms on items were written apart; each is held by the other."""
    capacity, lengths = case
    lengths = np.array(lengths)
    order = decreasing_order(lengths)
    for plain, on_counts in ((first_fit, first_fit_decreasing), (best_fit, best_fit_decreasing)):
        packs = [order[pack].tolist() for pack in plain(lengths[order], capacity=capacity).as_lists()]
        assert packs == by_counts(on_counts)(lengths, capacity=capacity).as_lists()


def test_names_that_other_packers_give_to_something_else(form):
    """4 4 6 6 at 10: first fit takes 3 packs and not the 2 of first fit decreasing. 7 6 3 1 at 10: worst fit is not best."""
    lengths = np.array([4, 4, 6, 6])
    assert first_fit(lengths, capacity=10).as_lists() == [[0, 1], [2], [3]]
    assert by_counts(first_fit_decreasing)(lengths, capacity=10).as_lists() == [[2, 0], [3, 1]]
    assert best_fit(np.array([7, 6, 3, 1]), capacity=10).as_lists() == [[0, 2], [1, 3]]
    assert worst_fit(np.array([7, 6, 3, 1]), capacity=10).as_lists() == [[0, 3], [1, 2]]


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
    assert plan.settings.algorithm == algorithm
    assert plan.fingerprint == plan_packs(TELL_TALE, capacity=7, algorithm=algorithm, seed=None).fingerprint


def test_the_docs_show_every_algorithm_on_the_six_lengths():
    """docs/choosing.md is where a name is chosen: one without a row, or with other packs, is an empty promise."""
    text = (Path(__file__).parents[2] / "docs" / "choosing.md").read_text()
    rows = re.findall(r"^\| `(\w+)`(?:, `(\w+)`)?.*\| `([\d·]+)` \|$", text, flags=re.MULTILINE)
    assert {(name, (alias,) if alias else ()) for name, alias, _ in rows} == {
        (each.name, each.aliases) for each in ALGORITHMS.values()
    }
    for name, _, packs in rows:
        if name == "optimal" and not find_spec("highspy"):
            continue
        plan = plan_packs(TELL_TALE, capacity=7, algorithm=name, seed=None)
        assert "·".join("".join(map(str, pack)) for pack in ids_of(plan)) == packs, name


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "auto"])
def test_an_algorithm_packs_several_budgets_itself_or_refuses_them(name):
    """Left out of ``contradicts``, budgets are packed by another algorithm under this one's name."""
    with pytest.raises(SettingsError, match="knows only tokens"):
        plan_packs(TELL_TALE, capacity=7, algorithm=name, budgets={"samples": 2}, seed=None)


def test_auto_searches_from_one_pack_in_a_thousand_on():
    """Best fit decreasing takes three packs of 4 4 3 3 3 3 at 10, and two are enough: worth no search among 1,000."""
    few = [4, 4, 3, 3, 3, 3]
    plan = plan_packs(few + [10] * 998, capacity=10)
    assert plan.outcome.description == "best_fit_decreasing, within 0.1 % of the bound"
    assert (plan.num_packs, plan.bound) == (1001, 1000)
    assert "within" not in plan_packs(few + [10] * 997, capacity=10).outcome.description
    assert plan_packs([10], capacity=10).outcome.description == "best_fit_decreasing meets the bound"


@pytest.mark.parametrize("form", ["compiled", "plain"])
@pytest.mark.parametrize("algorithm", IN_ORDER, ids=name_of)
def test_a_room_of_the_shortest_length_is_still_room(algorithm, form, monkeypatch):
    """The last item fits exactly where nothing shorter is to come: a pack that is closed too early costs one more."""
    use(form, monkeypatch)
    assert algorithm(np.array([5, 2, 5, 2]), capacity=7).as_lists() == [[0, 1], [2, 3]]

"""Minimum bin slack: every item once, and packs without waste where the search finds some."""

from hypothesis import given
from hypothesis import strategies as st

from brimful.base.compiling import compiled_forms
from brimful.plan.counts.histogram import lower_bound
from brimful.planners.optimal import minimum_bin_slack as slack_module
from brimful.planners.optimal.knapsack import SearchLimit
from brimful.planners.optimal.minimum_bin_slack import minimum_bin_slack, reachable_sums
from brimful.planners.patterns import load_of, remaining
from tests.plan.frozen import digest_of
from tests.planners.optimal.instances import histogram


def test_minimum_bin_slack_fills_exactly_where_it_can():
    """The drawing of the docstring: best fit decreasing would put the two 4s together."""
    items = histogram({4: 2, 3: 4})
    assert minimum_bin_slack(items, capacity=10, limit=SearchLimit()) == {((4, 1), (3, 2)): 2}


@given(counts=st.dictionaries(st.integers(1, 60), st.integers(1, 50), min_size=1, max_size=20))
def test_minimum_bin_slack_packs_every_item_once(counts):
    """Its search takes items and puts them back; none may be left out."""
    items = histogram(counts)
    packed = minimum_bin_slack(items, capacity=60, limit=SearchLimit())
    assert all(load_of(pattern) <= 60 for pattern in packed)
    assert not len(remaining(items, packed.items()).lengths)
    assert packed.total() >= lower_bound(items, capacity=60)


def test_minimum_bin_slack_stops_at_the_deadline():
    """No result rather than half a packing."""
    assert minimum_bin_slack(histogram({3: 5}), capacity=10, limit=SearchLimit(seconds=0)) == {}


@given(counts=st.dictionaries(st.integers(1, 40), st.integers(1, 9), max_size=8), capacity=st.integers(1, 80))
def test_reachable_sums_against_adding_items_one_by_one(counts, capacity):
    """Copies go in by powers of two; each number of copies must come out."""
    sums = {0}
    for length, count in counts.items():
        sums = {total + length * copies for total in sums for copies in range(count + 1)}
    items = histogram(counts)
    table = reachable_sums(items.lengths, items.counts, capacity=capacity)
    assert table.nonzero()[0].tolist() == sorted(total for total in sums if total <= capacity)


def _random_slack(chance):
    capacity = chance.of(chance.number(10, 90), 300)
    lengths = chance.numbers(1, chance.of(capacity // 4, capacity) + 2, chance.number(1, capacity // 3))
    counts = {int(length): chance.number(1, chance.of(3, 60)) for length in lengths if length <= capacity}
    if not counts:
        return []
    limit = SearchLimit(operations=1e9)
    packed = minimum_bin_slack(histogram(counts), capacity=capacity, limit=limit)
    return [list(packed.items()), 1e9 - limit.remaining_operations]


def test_random_packs_are_what_they_were(monkeypatch):
    """A dead end, an outdated sum, a sum that is given up: each is met here, and leads to the same packs on every machine."""
    for name, value in (
        ("_MAX_STEPS_PER_TARGET", 9),
        ("_MAX_TARGETS", 2),
        ("_MAX_TABLES", 4),
        ("_MAX_PATTERNS_PER_TABLE", 6),
    ):
        monkeypatch.setattr(slack_module, name, value)
    with compiled_forms(False):
        assert digest_of(_random_slack, 300) == "428b17334aec3bc4"

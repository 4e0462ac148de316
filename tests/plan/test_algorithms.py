"""Every algorithm does what its textbook name says: through ``plan_packs``, by itself, compiled and not."""

import re
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful import compiling, plan_packs
from brimful.errors import SettingsError
from brimful.plan import ALGORITHMS
from brimful.plan.counts.counting_sort import decreasing_order
from brimful.plan.counts.histogram import Histogram
from brimful.plan.counts.patterns import patterns_of, remaining
from brimful.plan.fit import best_fit as best_fit_module
from brimful.plan.fit import next_fit as next_fit_module
from brimful.plan.fit.best_fit import best_fit
from brimful.plan.fit.best_fit_decreasing import best_fit_decreasing
from brimful.plan.fit.concat_split import concat_split
from brimful.plan.fit.first_fit import first_fit
from brimful.plan.fit.first_fit_decreasing import first_fit_decreasing
from brimful.plan.fit.lower_bound import lower_bound
from brimful.plan.fit.next_fit import next_fit
from brimful.plan.fit.worst_fit import worst_fit
from brimful.plan.policies.concat import cut_stream
from brimful.plan.policies.overflow import Overflow
from brimful.testing import reference
from brimful.testing.strategies import capacities_and_lengths

TELL_TALE = [3, 3, 5, 6, 1, 1]
LARGEST = 2**31 - 1


def by_counts(algorithm):
    def run(lengths, *, capacity):
        return algorithm(Histogram.of(lengths), capacity=capacity).assign(decreasing_order(lengths))

    run.__name__ = algorithm.__name__
    return run


IN_ORDER = [next_fit, first_fit, best_fit, worst_fit]
ALL = [*IN_ORDER, by_counts(first_fit_decreasing), by_counts(best_fit_decreasing)]


def cut_and_pack(lengths, *, capacity):
    """Segments of the stream of tokens, and their packs."""
    segments = cut_stream(lengths, capacity=capacity, policy=Overflow.SPLIT)
    return segments, concat_split(segments.lengths, capacity=capacity)


def name_of(value):
    return getattr(value, "__name__", "")


def packs_of(plan):
    return [[segment.sample_id for segment in pack] for pack in plan]


def both_ways(algorithm, lengths, capacity):
    """The packs of an algorithm by itself, and those of a plan that names it."""
    array = np.array(lengths)
    plan = plan_packs(array, capacity=capacity, algorithm=algorithm.__name__, seed=None)
    return [algorithm(array, capacity=capacity).as_lists(), packs_of(plan)]


@pytest.fixture(params=["compiled", "plain"])
def form(request, monkeypatch):
    """Each test runs on both forms, however few items it has."""
    return use(request.param, monkeypatch)


def use(form, monkeypatch):
    if form == "compiled":
        pytest.importorskip("numba")
    monkeypatch.setattr(compiling, "_choice", form == "compiled")
    assert (compiling.compiled(best_fit_module._best_fit, 1) is not None) == (form == "compiled"), (
        "the form under test is not taken"
    )
    return form


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
        monkeypatch.setattr(next_fit_module, "_CHUNK_ITEMS", 3)
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


def test_forks_worked_example_needs_two_packs():
    """70 30 30 30 20 at 100 by first fit decreasing, from an existing packer's own test."""
    assert plan_packs([70, 30, 30, 30, 20], capacity=100, algorithm="first_fit_decreasing").num_packs == 2


def test_sequential_trace(form):
    """Next fit on the trace of an existing packer; the sample of 120 is reported, never packed over-full."""
    lengths = [60, 50, 40, 100, 30, 30, 30, 30, 120, 10]
    plan = plan_packs(lengths, capacity=100, algorithm="next_fit", overflow="drop")
    assert packs_of(plan) == [[0], [1, 2], [3], [4, 5, 6], [7, 9]]
    assert plan.dropped_ids.tolist() == [8]
    assert next_fit(np.delete(lengths, 8), capacity=100).as_lists() == [[0], [1, 2], [3], [4, 5, 6], [7, 8]]


def test_a_million_equal_lengths_are_one_run():
    """Multiplicities, not items: this would take minutes item by item."""
    plan = plan_packs(np.full(1_000_000, 3, dtype=np.int32), capacity=10, seed=None)
    assert plan.num_packs == 333_334
    assert [segment.sample_id for segment in plan.pack(0)] == [0, 1, 2]
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


def test_a_billion_samples_by_the_counts_of_many_machines():
    """No machine has all lengths: each sends its counts, the sum is planned, and each names its own samples later."""
    rng = np.random.default_rng(0)
    parts = []
    for _ in range(64):
        lengths, counts = np.unique(np.clip(rng.lognormal(6, 1, 20_000), 1, 8192).astype(np.int64), return_counts=True)
        parts.append(Histogram(lengths, counts * 800))
    whole = sum(parts, start=Histogram(np.empty(0, np.int64), np.empty(0, np.int64)))
    assert whole.num_items == 64 * 20_000 * 800 > 1_000_000_000
    runs = best_fit_decreasing(whole, capacity=8192)
    assert not len(remaining(whole, patterns_of(runs).items()).lengths)
    for pattern in patterns_of(runs):
        assert sum(length * copies for length, copies in pattern) <= 8192
    bound = lower_bound(whole, capacity=8192)
    assert bound <= runs.num_packs <= bound * 1.001
    # In whichever order the counts arrive:
    again = best_fit_decreasing(sum(reversed(parts), start=parts[0].of(np.empty(0, np.int64))), capacity=8192)
    assert [run.tolist() for run in (again.length, again.packs_in_run, again.copies_per_pack)] == [
        run.tolist() for run in (runs.length, runs.packs_in_run, runs.copies_per_pack)
    ]


def tokens_of(pieces, packing):
    """Every token as (sample, position), pack by pack."""
    rows = list(zip(pieces.sample_ids.tolist(), pieces.starts.tolist(), pieces.lengths.tolist(), strict=True))
    packs = [[rows[item] for item in pack] for pack in packing.as_lists()]
    return [[(i, start + token) for i, start, length in pack for token in range(length)] for pack in packs]


@given(case=capacities_and_lengths(oversized=True, max_samples=40))
def test_concat_split_is_the_stream_of_tokens(case):
    """Every token once and in order, however it is cut. TRL's ``wrapped`` once lost and doubled tokens (trl#6669)
    while the numbers of rows and of tokens stayed right, so counting is not enough."""
    capacity, lengths = case
    found = tokens_of(*cut_and_pack(np.array(lengths, dtype=np.int32), capacity=capacity))
    assert found == reference.concat_split(lengths, capacity)


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


@given(case=capacities_and_lengths(oversized=True))
def test_concat_split_fills_every_pack_but_the_last(case):
    """Exactly full, and no cut but where a pack ends: at most one piece of a sample begins inside it for each pack."""
    capacity, lengths = case
    pieces, packing = cut_and_pack(np.array(lengths, dtype=np.int32), capacity=capacity)
    loads = np.add.reduceat(pieces.lengths, packing.offsets[:-1])
    assert (loads[:-1] == capacity).all()
    assert loads[-1] == (sum(lengths) - 1) % capacity + 1
    inside = np.flatnonzero(pieces.starts)
    assert np.isin(inside, packing.offsets[:-1]).all()


def test_concat_split_in_full():
    """A sample over three packs, one that ends where a pack does, and one that begins there."""
    pieces, packing = cut_and_pack(np.array([3, 9, 4, 1], dtype=np.int32), capacity=4)
    assert pieces.sample_ids.tolist() == [0, 1, 1, 1, 2, 3]
    assert pieces.starts.tolist() == [0, 0, 1, 5, 0, 0]
    assert pieces.lengths.tolist() == [3, 1, 4, 4, 4, 1]
    assert packing.as_lists() == [[0, 1], [2], [3], [4], [5]]
    assert (pieces.lengths.dtype, pieces.sample_ids.dtype, pieces.starts.dtype) == (np.int32, np.int64, np.int32)


def test_concat_split_leaves_rejected_samples_out():
    """A length of -1 marks a row that could not be read: it takes no token of the stream."""
    pieces, packing = cut_and_pack(np.array([-1, 3, -1, 2], dtype=np.int32), capacity=4)
    assert pieces.sample_ids.tolist() == [1, 3, 3]
    assert packing.as_lists() == [[0, 1], [2]]
    pieces, packing = cut_and_pack(np.array([-1, -1], dtype=np.int32), capacity=4)
    assert (len(pieces.lengths), packing.as_lists()) == (0, [])


def test_concat_split_has_no_seam_every_thousand_samples():
    """TRL cuts within batches of 1,000 rows, and each leaves an unfilled pack; here there is one stream."""
    pieces, packing = cut_and_pack(np.full(5000, 3, dtype=np.int32), capacity=1024)
    assert len(packing) == -(-15_000 // 1024)
    assert int(pieces.lengths.sum()) == 15_000


@given(
    lengths=st.lists(st.integers(LARGEST - 3, LARGEST), min_size=1, max_size=4),
    capacity=st.sampled_from([LARGEST, LARGEST - 1, 1 << 30]),
)
def test_concat_split_beyond_32_bits(lengths, capacity):
    """Positions in the stream leave 32 bits long before those in a sample do."""
    pieces, packing = cut_and_pack(np.array(lengths, dtype=np.int32), capacity=capacity)
    loads = np.add.reduceat(pieces.lengths, packing.offsets[:-1], dtype=np.int64)
    assert (loads[:-1] == capacity).all()
    assert int(loads.sum()) == sum(lengths)
    assert int(pieces.starts.min()) == 0


def test_the_docs_show_every_algorithm_on_the_six_lengths():
    """docs/choosing.md is where a name is chosen: one without a row, or with other packs, is a promise nobody keeps."""
    text = (Path(__file__).parents[2] / "docs" / "choosing.md").read_text()
    rows = re.findall(r"^\| `(\w+)`(?:, `(\w+)`)?.*\| `([\d·]+)` \|$", text, flags=re.MULTILINE)
    assert {(name, (alias,) if alias else ()) for name, alias, _ in rows} == {
        (each.name, each.aliases) for each in ALGORITHMS.values()
    }
    for name, _, packs in rows:
        if name == "optimal" and not (find_spec("highspy") or find_spec("scipy")):
            continue
        plan = plan_packs(TELL_TALE, capacity=7, algorithm=name, seed=None)
        assert "·".join("".join(map(str, pack)) for pack in packs_of(plan)) == packs, name


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "auto"])
def test_an_algorithm_packs_several_budgets_itself_or_refuses_them(name):
    """Left out of ``contradicts``, budgets are packed by another algorithm under this one's name."""
    with pytest.raises(SettingsError, match="knows tokens alone"):
        plan_packs(TELL_TALE, capacity=7, algorithm=name, budgets={"samples": 2}, seed=None)

"""Several budgets at once: none is ever exceeded, and few packs are needed."""

import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.errors import InvalidLengthsError, OversizedSampleError, SettingsError
from brimful.measure.table import LengthTable
from brimful.plan import kernels_budgets
from brimful.plan.alignment import Alignment
from brimful.plan.budgets import Budgets, loads_of, over_any
from brimful.plan.counted_best_fit import counted_best_fit_decreasing
from brimful.plan.histogram import Histogram, decreasing_order
from brimful.plan.many_budgets import items_of
from brimful.plan.overflow import Overflow
from brimful.plan.vector_packing import _fill_packs, bound_of_budgets, pack_vectors
from brimful.rng import generator
from brimful.testing import reference

LENGTHS = Path(__file__).parents[2].parent / "shared" / "data" / "lengths"
NONE = Alignment()


def matrix(rows):
    return np.array(rows, dtype=np.int64)


def check(sizes, capacities, packing):
    """Every item once, no capacity exceeded, no pack empty."""
    assert sorted(packing.items.tolist()) == list(range(len(sizes)))
    assert not over_any(packing, sizes, capacities=capacities).any()
    assert not len(packing) or int(np.diff(packing.offsets).min()) >= 1


@st.composite
def vectors(draw, *, max_items=40, max_budgets=4):
    """Capacities, and sizes up to them: zeros, whole capacities, halves and a little more among them."""
    number = draw(st.integers(1, max_budgets))
    capacities = draw(st.lists(st.integers(1, 40), min_size=number, max_size=number))
    sizes = [
        st.integers(0, most) | st.sampled_from([0, 1, most, most // 2, most // 2 + 1]).filter(lambda x, m=most: x <= m)  # type: ignore[arg-type]
        for most in capacities
    ]
    rows = draw(st.lists(st.tuples(*sizes), min_size=1, max_size=max_items))
    return matrix(rows), matrix(capacities)


def fewest_packs(sizes, capacities):
    """By trying all groupings."""
    fits = [
        bool((sizes[[i for i in range(len(sizes)) if subset >> i & 1]].sum(axis=0) <= capacities).all())
        for subset in range(1 << len(sizes))
    ]

    @cache
    def fewest(items):
        if items == 0:
            return 0
        part, best = items, len(sizes)
        while part:
            if fits[part] and part & (items & -items):
                best = min(best, 1 + fewest(items & ~part))
            part = (part - 1) & items
        return best

    return fewest((1 << len(sizes)) - 1)


@given(case=vectors())
def test_no_capacity_is_ever_exceeded(case):
    """The laws, for any number of budgets, and a bound that is one."""
    sizes, capacities = case
    result = pack_vectors(sizes, capacities=capacities)
    check(sizes, capacities, result.packing)
    assert bound_of_budgets(sizes, capacities=capacities) == result.bound <= len(result.packing)
    again = pack_vectors(sizes, capacities=capacities)
    assert again.packing.as_lists() == result.packing.as_lists()


@given(case=vectors(max_items=7, max_budgets=3))
def test_at_most_one_pack_more_than_the_best_of_all(case):
    """Against the exhaustive search; the bound stays below it."""
    sizes, capacities = case
    result = pack_vectors(sizes, capacities=capacities)
    fewest = fewest_packs(sizes, capacities)
    assert result.bound <= fewest <= len(result.packing) <= fewest + 1


def test_two_shapes_that_need_each_other():
    """Long text beside large images: largest first by either budget puts like to like and needs five packs."""
    sizes = matrix([[6, 2], [6, 2], [6, 2], [2, 6], [2, 6], [2, 6]])
    result = pack_vectors(sizes, capacities=matrix([8, 8]))
    assert len(result.packing) == result.bound == 3
    assert all(sorted(sizes[pack].tolist()) == [[2, 6], [6, 2]] for pack in result.packing.as_lists())


def test_one_budget_is_best_fit_decreasing():
    """Where the others never bind, packs are those of the textbook: 3 3 5 6 1 1 at 7."""
    sizes = matrix([[3, 1], [3, 1], [5, 1], [6, 1], [1, 1], [1, 1]])
    result = pack_vectors(sizes, capacities=matrix([7, 5]))
    assert result.packing.as_lists() == [[3, 4], [2], [0, 1, 5]]
    assert result.outcome == "best_fit_decreasing by one budget keeps within all"


def test_a_limit_of_eight_is_a_limit():
    """[7] · 8 with limit 8: verl#7553 had a micro-batch of 14. So do squares: 7² twice exceeds 64."""
    sevens = LengthTable.from_lengths([7] * 8)
    for budgets in (Budgets.of(8), Budgets.of(100, {"squares": 64})):
        items = items_of(sevens, budgets, policy=Overflow.ERROR, alignment=NONE)
        result = pack_vectors(items.sizes, capacities=items.capacities)
        assert len(result.packing) == 8 == len(result.packing.items)
    assert len(result.packing) == result.bound


def test_crops_bind_where_tokens_do_not():
    """OLMo-core#870: text with 0 to 6 image crops, at most 20 crops in a pack of 4,096 tokens. Filling by tokens alone
    puts over 24 into some packs; with both budgets, crops are filled to within 1 % of what is possible."""
    crops = generator(seed=0, epoch=0, purpose="crops").integers(4000, below=7)
    tokens = 144 * crops + 20 + generator(seed=0, epoch=0, purpose="text").integers(4000, below=300)
    sizes = np.stack([tokens, crops], axis=1)
    alone = pack_vectors(sizes[:, :1], capacities=matrix([4096])).packing
    assert loads_of(alone, sizes)[:, 1].max() > 24
    result = pack_vectors(sizes, capacities=matrix([4096, 20]))
    check(sizes, matrix([4096, 20]), result.packing)
    assert int(np.argmax(sizes.sum(axis=0) / [4096, 20])) == 1, "crops bind"
    assert len(result.packing) <= 1.01 * result.bound


@pytest.mark.parametrize("name", ["mathvision", "coco_val2017_5captions"])
@pytest.mark.parametrize("capacity", [4096, 8192])
def test_text_and_images_of_real_data(name, capacity):
    """Tokens and image tokens, the second so that both bind alike: within about 1 % of the bound of the binding one."""
    path = LENGTHS / f"{name}_text_and_image_tokens__qwen2vl.npy"
    if not path.exists():
        pytest.skip("the arrays of real lengths are not here")
    text, images = np.load(path).astype(np.int64).T
    sizes = np.stack([text + images, 4 * images], axis=1)
    capacities = matrix([capacity, -(-4 * capacity * images.sum() // sizes[:, 0].sum())])
    sizes = sizes[(sizes <= capacities).all(axis=1)]
    result = pack_vectors(sizes, capacities=capacities)
    check(sizes, capacities, result.packing)
    assert len(result.packing) <= 1.01 * result.bound + 1


@given(case=vectors(max_items=60, max_budgets=3), weight=st.sampled_from([0.3, 0.7, 1.5]))
def test_compiled_and_numpy_fill_alike(case, weight):
    """A plan must not depend on what else is installed."""
    pytest.importorskip("numba")
    sizes, capacities = case
    packs = []
    for limit in (0, 1 << 62):
        with pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.setattr(kernels_budgets, "WORTH_COMPILING", limit)
            assert (kernels_budgets.filler(5) is not kernels_budgets._fill_numpy) == (limit == 0)
            packs.append(_fill_packs(sizes, capacities, weight, 0).as_lists())
    assert packs[0] == packs[1]


def test_compiled_and_numpy_fill_alike_on_many(monkeypatch):
    """More items than candidates: the window moves, and packs of hundreds take items as they come."""
    pytest.importorskip("numba")
    draw = generator(seed=1, epoch=0, purpose="sizes")
    sizes = np.stack([1 + draw.integers(5000, below=60), draw.integers(5000, below=40)], axis=1)
    for capacities in (matrix([300, 200]), matrix([9000, 6000])):
        packs = []
        for limit in (0, 1 << 62):
            monkeypatch.setattr(kernels_budgets, "WORTH_COMPILING", limit)
            packing = _fill_packs(sizes, capacities, 0.7, 0)
            check(sizes, capacities, packing)
            packs.append((packing.offsets.tolist(), packing.items.tolist()))
        assert packs[0] == packs[1]


def test_what_exceeds_no_sum_of_int64():
    """Squares of a million tokens each, very many of them: totals go beyond 2**63, packs do not."""
    sizes = np.full((3000, 1), 2**51, dtype=np.int64)
    sizes = np.concatenate([sizes, sizes], axis=1)
    result = pack_vectors(sizes, capacities=matrix([2**52, 2**52]))
    assert len(result.packing) == 1500
    check(sizes, matrix([2**52, 2**52]), result.packing)
    many = np.broadcast_to(matrix([[2**51]]), (5000, 1))
    assert bound_of_budgets(many, capacities=matrix([2**52])) >= 2499


# --- a limit on samples, on counts -----------------------------------------------------------------------------------


def counted_reference(lengths, capacity, most):
    """One item at a time: longest first, the fullest pack with room and a free place, the first opened of equals."""
    packs, rooms = [], []
    for item in sorted(range(len(lengths)), key=lambda item: (-lengths[item], item)):
        fitting = [at for at, room in enumerate(rooms) if room >= lengths[item] and len(packs[at]) < most]
        if not fitting:
            packs.append([])
            rooms.append(capacity)
        at = min(fitting, key=lambda at: (rooms[at], at)) if fitting else len(packs) - 1
        packs[at].append(item)
        rooms[at] -= lengths[item]
    return packs


@given(
    lengths=st.lists(st.integers(1, 30) | st.sampled_from([1, 10, 15, 16, 30]), min_size=1, max_size=60),
    most=st.integers(1, 6),
)
def test_counted_best_fit_is_that_of_single_items(lengths, most):
    """On counts as item by item, sample for sample; without a limit that binds, best fit decreasing itself."""
    items = Histogram.of(np.array(lengths))
    placements = counted_best_fit_decreasing(items, capacity=30, most=most)
    packs = placements.fill(decreasing_order(np.array(lengths))).as_lists()
    assert packs == counted_reference(lengths, 30, most)
    free = counted_best_fit_decreasing(items, capacity=30, most=30)
    packs = free.fill(decreasing_order(np.array(lengths))).as_lists()
    assert packs == reference.best_fit_decreasing(lengths, 30)


def test_at_most_two_samples():
    """Whole output: 6 1 · 5 1 · 3 3."""
    sizes = matrix([[3, 1], [3, 1], [5, 1], [6, 1], [1, 1], [1, 1]])
    result = pack_vectors(sizes, capacities=matrix([7, 2]))
    assert result.packing.as_lists() == [[3, 4], [2, 5], [0, 1]]
    assert result.outcome == "best_fit_decreasing with a limit on samples"


# --- from a table to items -------------------------------------------------------------------------------------------


TABLE = LengthTable.from_lengths([30, 50, 10, 70], patches=[0, 64, 300, 128])


def test_columns_and_derived_budgets():
    """Tokens aligned, patches from the table, samples and squares from real lengths."""
    budgets = Budgets.of(100, {"patches": 400, "samples": 3, "squares": 6000})
    items = items_of(TABLE, budgets, policy=Overflow.ERROR, alignment=Alignment(segment=8, total=32))
    assert items.sizes.tolist() == [[32, 0, 1, 900], [56, 64, 1, 2500], [16, 300, 1, 100], [72, 128, 1, 4900]]
    assert items.capacities.tolist() == [96, 400, 3, 6000], "96 is what 32 can use of 100"
    assert repr(budgets) == "Budgets(tokens 100, patches 400, samples 3, squares 6,000)"


def test_squares_do_not_wrap():
    """Lengths are int32; 50,000² is not."""
    items = items_of(
        LengthTable.from_lengths([50_000]),
        Budgets.of(65_536, {"squares": 2**32}),
        policy=Overflow.ERROR,
        alignment=NONE,
    )
    assert items.sizes.tolist() == [[50_000, 2_500_000_000]]


@pytest.mark.parametrize(
    ("budgets", "message"),
    [
        ({"frames": 5}, "budgets['frames'] is unknown: these lengths have patches, samples, squares"),
        ({"patches": 0}, "budgets['patches'] must be from 1"),
        ({"patches": 1.5}, "budgets['patches'] must be a whole number"),
        ({"tokens": 5}, "the capacity in tokens is capacity"),
        ({"patches": 2**53}, "budgets['patches'] must be from 1"),
    ],
)
def test_impossible_budgets(budgets, message):
    """Each refusal names the budget and what would do."""
    with pytest.raises(SettingsError, match=re.escape(message)):
        items_of(TABLE, Budgets.of(100, budgets), policy=Overflow.ERROR, alignment=NONE)


def test_a_sample_over_another_budget():
    """Named with its number; dropped and counted by budget; not to be cut."""
    budgets = Budgets.of(60, {"patches": 200})
    with pytest.raises(OversizedSampleError, match=r"longer than the capacity of 60 tokens: sample 3 \(70\)"):
        items_of(TABLE, budgets, policy=Overflow.ERROR, alignment=NONE)
    with pytest.raises(OversizedSampleError) as caught:
        items_of(TABLE, Budgets.of(100, {"patches": 200}), policy=Overflow.ERROR, alignment=NONE)
    assert str(caught.value) == (
        "1 of 4 samples exceed the capacity of 200 patches: sample 2 (300). "
        'Choose overflow="drop", or budgets={"patches": 300}'
    )
    items = items_of(TABLE, budgets, policy=Overflow.DROP, alignment=NONE)
    assert (items.dropped, items.pieces.dropped.tolist()) == ({"tokens": 1, "patches": 1}, [2, 3])
    assert items.sizes.tolist() == [[30, 0], [50, 64]]
    assert items.pieces.sample_ids.tolist() == [0, 1]
    with pytest.raises(SettingsError, match=r"overflow=\"truncate\" cuts tokens, not patches, .* sample 2 \(300\)"):
        items_of(TABLE, budgets, policy=Overflow.TRUNCATE, alignment=NONE)
    with pytest.raises(SettingsError, match=r"overflow=\"split\" divides tokens, not patches: of sample 3 \(70 tokens"):
        items_of(TABLE, Budgets.of(60, {"patches": 400}), policy=Overflow.SPLIT, alignment=NONE)


def test_policies_cut_at_the_usable_capacity():
    """Capacity 100, aligned to 32: a sample of 110 is cut at 96, and is then aligned."""
    table = LengthTable.from_lengths([110, 97, 96])
    alignment = Alignment(segment=16, total=32)
    cut = items_of(table, Budgets.of(100, {"samples": 9}), policy=Overflow.SPLIT, alignment=alignment)
    assert cut.pieces.lengths.tolist() == [96, 14, 96, 1, 96]
    assert cut.sizes.tolist() == [[96, 1], [16, 1], [96, 1], [16, 1], [96, 1]]
    kept = items_of(table, Budgets.of(100), policy=Overflow.DROP, alignment=alignment)
    assert (kept.pieces.dropped.tolist(), kept.dropped) == ([0, 1], {"tokens": 2})


def test_a_negative_size_names_the_sample():
    """A column that marks something with -1 is not a budget."""
    with pytest.raises(InvalidLengthsError, match="frames: sample 1 has -1"):
        items_of(
            LengthTable.from_lengths([3, 4], frames=[0, -1]),
            Budgets.of(8, {"frames": 5}),
            policy=Overflow.ERROR,
            alignment=NONE,
        )

"""Several budgets at once: none is ever exceeded, and few packs are needed."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.base.rng import generator
from brimful.lengths.table import LengthTable
from brimful.plan.counts.counting_sort import decreasing_order
from brimful.plan.counts.histogram import Histogram
from brimful.plan.fit.best_fit_decreasing import best_fit_decreasing
from brimful.plan.items import prepare_items
from brimful.plan.packing import loads_of
from brimful.plan.plan_settings import PlanSettings
from brimful.planners.vector.pack_vectors import bound_of_budgets, pack_vectors
from tests.plan import reference
from tests.planners.vector.instances import check, matrix, vectors

LENGTHS = Path(__file__).parents[3].parent / "shared" / "data" / "lengths"


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
    check(sizes, capacities, result.packs)
    assert bound_of_budgets(sizes, capacities=capacities) == result.bound <= len(result.packs)
    again = pack_vectors(sizes, capacities=capacities)
    assert again.packs.as_lists() == result.packs.as_lists()


@given(case=vectors(max_items=7, max_budgets=3))
def test_at_most_one_pack_more_than_the_best_of_all(case):
    """Against the exhaustive search; the bound stays below it."""
    sizes, capacities = case
    result = pack_vectors(sizes, capacities=capacities)
    fewest = fewest_packs(sizes, capacities)
    assert result.bound <= fewest <= len(result.packs) <= fewest + 1


def test_two_shapes_that_need_each_other():
    """Long text and large images: largest first by either budget puts like to like and needs five packs."""
    sizes = matrix([[6, 2], [6, 2], [6, 2], [2, 6], [2, 6], [2, 6]])
    result = pack_vectors(sizes, capacities=matrix([8, 8]))
    assert len(result.packs) == result.bound == 3
    assert all(sorted(sizes[pack].tolist()) == [[2, 6], [6, 2]] for pack in result.packs.as_lists())


def test_one_budget_is_best_fit_decreasing():
    """Where the others never bind, packs are the textbook's: 3 3 5 6 1 1 at 7."""
    sizes = matrix([[3, 1], [3, 1], [5, 1], [6, 1], [1, 1], [1, 1]])
    result = pack_vectors(sizes, capacities=matrix([7, 5]))
    assert result.packs.as_lists() == [[3, 4], [2], [0, 1, 5]]
    assert result.outcome.description == "best_fit_decreasing by one budget keeps within all"


def test_a_limit_of_eight_is_a_limit():
    """[7] · 8 with limit 8: verl#7553 had a micro-batch of 14. So do squares: 7² twice exceeds 64."""
    sevens = LengthTable.from_lengths([7] * 8)
    for budgets in (
        PlanSettings(capacity=8, budgets={"samples": 9}),
        PlanSettings(capacity=100, budgets={"squares": 64}),
    ):
        items = prepare_items(sevens, budgets)
        result = pack_vectors(items.sizes, capacities=items.capacities)
        assert len(result.packs) == 8 == len(result.packs.items)
    assert len(result.packs) == result.bound


def test_crops_bind_where_tokens_do_not():
    """OLMo-core#870: text with 0 to 6 image crops, at most 20 crops in a pack of 4,096 tokens. Filling by tokens alone
    puts over 24 into some packs; with both budgets, crops are filled to within 1 % of what is possible."""
    crops = generator(seed=0, epoch=0, purpose="crops").integers(4000, below=7)
    tokens = 144 * crops + 20 + generator(seed=0, epoch=0, purpose="text").integers(4000, below=300)
    sizes = np.stack([tokens, crops], axis=1)
    alone = pack_vectors(sizes[:, :1], capacities=matrix([4096])).packs
    assert loads_of(alone, sizes)[:, 1].max() > 24
    result = pack_vectors(sizes, capacities=matrix([4096, 20]))
    check(sizes, matrix([4096, 20]), result.packs)
    assert int(np.argmax(sizes.sum(axis=0) / [4096, 20])) == 1, "crops bind"
    assert len(result.packs) <= 1.01 * result.bound


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
    check(sizes, capacities, result.packs)
    assert len(result.packs) <= 1.01 * result.bound + 1


def test_what_exceeds_no_sum_of_int64():
    """Squares of a million tokens each, very many of them: totals go beyond 2**63, packs do not."""
    sizes = np.full((3000, 1), 2**51, dtype=np.int64)
    sizes = np.concatenate([sizes, sizes], axis=1)
    result = pack_vectors(sizes, capacities=matrix([2**52, 2**52]))
    assert len(result.packs) == 1500
    check(sizes, matrix([2**52, 2**52]), result.packs)
    many = np.broadcast_to(matrix([[2**51]]), (5000, 1))
    assert bound_of_budgets(many, capacities=matrix([2**52])) == 2499


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
def test_a_limit_on_items_as_item_by_item(lengths, most):
    """On counts as item by item, sample for sample; without a limit that binds, best fit decreasing itself."""
    items = Histogram.of(np.array(lengths))
    runs = best_fit_decreasing(items, capacity=30, max_items=most)
    packs = runs.assign(decreasing_order(np.array(lengths))).as_lists()
    assert packs == counted_reference(lengths, 30, most)
    free = best_fit_decreasing(items, capacity=30, max_items=30)
    packs = free.assign(decreasing_order(np.array(lengths))).as_lists()
    assert packs == reference.best_fit_decreasing(lengths, 30)


def test_at_most_two_samples():
    """Whole output: 6 1 · 5 1 · 3 3."""
    sizes = matrix([[3, 1], [3, 1], [5, 1], [6, 1], [1, 1], [1, 1]])
    result = pack_vectors(sizes, capacities=matrix([7, 2]))
    assert result.packs.as_lists() == [[3, 4], [2, 5], [0, 1]]
    assert result.outcome.description == "best_fit_decreasing with a limit on samples"

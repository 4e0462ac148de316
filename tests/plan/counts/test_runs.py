"""Items assigned to runs of packs, against a look at every run, pack and copy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful.base.compiling import compiled, compiled_forms
from brimful.plan.counts.counting_sort import decreasing_order
from brimful.plan.counts.histogram import Histogram
from brimful.plan.counts.runs import assign_runs
from brimful.plan.fit.best_fit_decreasing import best_fit_decreasing
from brimful.planners.patterns import runs_of


def slowly(lengths, runs):
    """Places by looking at every run, pack and copy."""
    order = iter(sorted(range(len(lengths)), key=lambda item: (-lengths[item], item)))
    packs = [{} for _ in range(runs.num_packs)]
    rows = zip(runs.first_pack, runs.packs_in_run, runs.copies_per_pack, runs.items_before, strict=True)
    for first_pack, packs_in_run, copies, items_before in rows:
        for pack in range(first_pack, first_pack + packs_in_run):
            for copy in range(copies):
                packs[pack][int(items_before + copy)] = next(order)
    return [[pack[place] for place in sorted(pack)] for pack in packs]


@pytest.fixture(params=["compiled", "numpy"])
def form(request):
    """Each test runs on both forms, however few items it has."""
    if request.param == "compiled":
        pytest.importorskip("numba")
    with compiled_forms(request.param == "compiled"):
        assert (compiled(assign_runs, 1) is not None) == (request.param == "compiled")
        yield request.param


@pytest.mark.parametrize("use", [True, False], ids=["compiled", "numpy"])
@settings(max_examples=2 * settings.default.max_examples)
@given(
    seed=st.integers(0, 2**32),
    size=st.integers(1, 300),
    longest=st.integers(1, 12),  # few: equal lengths come often
    capacity=st.integers(12, 60),
    max_items=st.integers(1, 9) | st.none(),
)
def test_the_same_as_a_look_at_every_run(use, seed, size, longest, capacity, max_items):
    """In the order of opening, and in any other: then packs come as they are, each in its new place."""
    lengths = np.random.default_rng(seed).integers(1, longest + 1, size).astype(np.int32)
    items = Histogram.of(lengths)
    with compiled_forms(use):
        runs = best_fit_decreasing(items, capacity=capacity, max_items=max_items)
        order = decreasing_order(lengths, items)
        packing = runs.assign(order)
        expected = slowly(lengths.tolist(), runs)
        assert packing.as_lists() == expected
        assert packing.items.dtype == np.int32
        assert runs.pack_sizes().tolist() == [len(pack) for pack in expected]
        pack_order = np.random.default_rng(seed).permutation(runs.num_packs)
        places = np.argsort(pack_order)
        reordered = runs.assign(order.copy(), places)
        assert reordered.as_lists() == [expected[pack] for pack in pack_order]
        assert reordered.items.dtype == np.int32


def test_lengths_that_no_table_has_entries_for(form):
    """Too long to be counted in a table: sorted instead."""
    lengths = np.random.default_rng(0).choice([2**31 - 1, 2**30, 2**30 - 7, 70_000, 3], size=1_000).astype(np.int32)
    items = Histogram.of(lengths)
    runs = best_fit_decreasing(items, capacity=2**31 - 1)
    assert runs.assign(decreasing_order(lengths, items)).as_lists() == slowly(lengths.tolist(), runs)


def test_a_run_longer_than_a_chunk_is_cut(form):
    """NumPy assigns half a million items at a time; here a pack of a run holds 100,001."""
    lengths = np.concatenate([np.full(7, 7), np.ones(700_000, dtype=np.int64)]).astype(np.int32)
    runs = runs_of([(((7, 1), (1, 100_000)), 7)])
    packing = runs.assign(decreasing_order(lengths))
    assert np.array_equal(np.sort(packing.items), np.arange(len(lengths)))
    assert lengths[packing.items[packing.offsets[:-1]]].tolist() == [7] * 7
    assert packing.sizes.tolist() == [100_001] * 7

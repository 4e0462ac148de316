"""Samples named in one pass, against sorting first and filling then."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful import compiling
from brimful.plan import dealing, stretches
from brimful.plan.best_fit_decreasing import best_fit_decreasing
from brimful.plan.counted_best_fit import counted_best_fit_decreasing
from brimful.plan.dealing import deal
from brimful.plan.histogram import Histogram, Placements, decreasing_order
from brimful.plan.patterns import patterns_of


def _slowly(lengths, placements):
    """Places by looking at every run, pack and copy."""
    order = iter(sorted(range(len(lengths)), key=lambda item: (-lengths[item], item)))
    packs = [{} for _ in range(placements.num_packs)]
    runs = zip(placements.first, placements.packs, placements.copies, placements.slot, strict=True)
    for first, num_packs, copies, slot in runs:
        for pack in range(first, first + num_packs):
            for copy in range(copies):
                packs[pack][int(slot + copy)] = next(order)
    return [[pack[slot] for slot in sorted(pack)] for pack in packs]


@pytest.mark.parametrize("form", ["compiled", "numpy"])
@settings(max_examples=150)
@given(
    seed=st.integers(0, 2**32),
    size=st.integers(1, 300),
    longest=st.integers(1, 12),  # few: equal lengths come often
    capacity=st.integers(12, 60),
    most=st.integers(1, 9),
    chunk=st.sampled_from([1, 3, 16, 1 << 18]),
)
def test_the_same_as_a_sort_and_a_look_at_every_run(form, seed, size, longest, capacity, most, chunk):
    lengths = np.random.default_rng(seed).integers(1, longest + 1, size).astype(np.int32)
    items = Histogram.of(lengths)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiling, "WORTH_COMPILING", 0 if form == "compiled" else 1 << 62)
        patch.setattr(dealing, "_CHUNK_ITEMS", chunk)
        patch.setattr(stretches, "_CHUNK_PACKS", chunk)
        for placements in (
            best_fit_decreasing(items, capacity=capacity),
            counted_best_fit_decreasing(items, capacity=capacity, most=most),
        ):
            dealt = deal(lengths, items, placements)
            assert dealt.as_lists() == _slowly(lengths.tolist(), placements)
            filled = placements.fill(decreasing_order(lengths, items))
            assert np.array_equal(dealt.items, filled.items)
            assert np.array_equal(dealt.offsets, filled.offsets)
            assert dealt.items.dtype == filled.items.dtype == np.int32


@pytest.mark.parametrize("form", ["compiled", "numpy"])
def test_lengths_that_no_table_has_entries_for(monkeypatch, form):
    monkeypatch.setattr(compiling, "WORTH_COMPILING", 0 if form == "compiled" else 1 << 62)
    lengths = np.random.default_rng(0).choice([2**31 - 1, 2**30, 2**30 - 7, 70_000, 3], size=1_000).astype(np.int32)
    items = Histogram.of(lengths)
    placements = best_fit_decreasing(items, capacity=2**31 - 1)
    assert deal(lengths, items, placements).as_lists() == _slowly(lengths.tolist(), placements)


def test_places_beyond_four_bytes_on_the_way_come_out_right(monkeypatch):
    # Packs of 100,001 items: the product of a place in a chunk and the distance of packs passes 2**31.
    monkeypatch.setattr(compiling, "WORTH_COMPILING", 1 << 62)
    lengths = np.concatenate([np.full(30, 7), np.ones(3_000_000, dtype=np.int64)]).astype(np.int32)
    items = Histogram.of(lengths)
    placements = Placements.of_patterns([([7, *[1] * 100_000], 30)])
    dealt = deal(lengths, items, placements)
    assert np.array_equal(np.sort(dealt.items), np.arange(len(lengths)))
    assert lengths[dealt.items[dealt.offsets[:-1]]].tolist() == [7] * 30
    assert np.diff(dealt.offsets).tolist() == [100_001] * 30


def test_patterns_are_dealt_as_they_are():
    lengths = np.random.default_rng(1).integers(1, 50, 5_000).astype(np.int32)
    items = Histogram.of(lengths)
    placements = best_fit_decreasing(items, capacity=100)
    packs = deal(lengths, items, placements).as_lists()
    found = {}
    for pack in packs:
        held = np.unique(lengths[pack], return_counts=True)
        pattern = tuple(sorted(zip(*map(np.ndarray.tolist, held), strict=True), reverse=True))  # type: ignore[arg-type]
        found[pattern] = found.get(pattern, 0) + 1
    assert found == patterns_of(placements)

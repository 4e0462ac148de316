"""Best fit decreasing on counts: the compiled form gives what plain Python gives, run for run."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful import plan_packs
from brimful.base.compiling import compiled_forms
from brimful.plan.counts.histogram import Histogram
from brimful.plan.fit.best_fit_decreasing import best_fit_decreasing

pytest.importorskip("numba")


def both_forms(items, capacity):
    tables = []
    for use in (True, False):
        with compiled_forms(use):
            runs = best_fit_decreasing(items, capacity=capacity)
        names = ("length", "first_pack", "packs_in_run", "copies_per_pack", "items_before")
        tables.append((runs.num_packs, [getattr(runs, name).tolist() for name in names]))
    return tables


@given(
    counts=st.dictionaries(st.integers(1, 300), st.integers(1, 10**9), min_size=1, max_size=25),
    capacity=st.integers(300, 2000),
)
def test_billions_of_items_as_multiplicities(counts, capacity):
    """Counts, not items: both forms place the same runs."""
    lengths = np.array(sorted(counts), dtype=np.int64)
    items = Histogram(lengths, np.array([counts[int(length)] for length in lengths], dtype=np.int64))
    compiled, plain = both_forms(items, capacity)
    assert compiled == plain


def test_long_lists_of_runs_grow():
    """More runs than the first allocation of the compiled form holds."""
    items = Histogram(np.arange(1, 300), np.random.default_rng(0).integers(1, 10**6, 299))
    compiled, plain = both_forms(items, 10_007)
    assert compiled == plain
    assert len(plain[1][0]) > 64 + 2 * len(items.lengths)


@pytest.mark.parametrize("capacity", [63, 64, 65, 4095, 4096, 4097, 8192])
def test_rooms_on_both_sides_of_a_power_of_two(capacity):
    """Rooms are leaves of a binary tree: a wrong turn takes a pack that is not the fullest."""
    lengths = np.random.default_rng(capacity).integers(1, capacity + 1, 3000)
    compiled, plain = both_forms(Histogram.of(lengths), capacity)
    assert compiled == plain


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

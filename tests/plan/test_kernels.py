"""Compiled passes give what NumPy gives, bit for bit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful import compiling, plan_packs
from brimful.plan import kernels as kernels_module
from brimful.plan.fit.best_fit_decreasing import best_fit_decreasing
from brimful.plan.counted_best_fit import counted_best_fit_decreasing
from brimful.plan.counts.histogram import Histogram
from brimful.testing.strategies import capacities_and_lengths

pytest.importorskip("numba")


@pytest.fixture
def compiled_always(monkeypatch):
    """Small cases take the compiled path too."""
    monkeypatch.setattr(compiling, "WORTH_COMPILING", 0)


def both(monkeypatch, call):
    results = []
    for limit in (0, 1 << 62):
        monkeypatch.setattr(compiling, "WORTH_COMPILING", limit)
        assert (kernels_module.kernels(5) is not None) == (limit == 0), "the path under test is not taken"
        results.append(call())
    return results


@given(case=capacities_and_lengths(), seed=st.sampled_from([None, 0, 1]))
def test_plans_are_the_same_with_and_without_numba(case, seed):
    """A plan must not depend on what else is installed."""
    capacity, lengths = case
    with pytest.MonkeyPatch.context() as monkeypatch:
        compiled, plain = both(monkeypatch, lambda: plan_packs(lengths, capacity=capacity, seed=seed))
    assert compiled.fingerprint == plain.fingerprint
    assert compiled.bound == plain.bound


@given(
    counts=st.dictionaries(st.integers(1, 300), st.integers(1, 10**9), min_size=1, max_size=25),
    capacity=st.integers(300, 2000),
)
def test_best_fit_on_large_counts(counts, capacity):
    """Billions of items as multiplicities: the compiled and the plain form place the same runs."""
    lengths = np.array(sorted(counts), dtype=np.int64)
    items = Histogram(lengths, np.array([counts[int(length)] for length in lengths], dtype=np.int64))
    plain = counted_best_fit_decreasing(items, capacity=capacity, most=capacity)
    compiled = best_fit_decreasing(items, capacity=capacity)
    assert compiled.num_packs == plain.num_packs
    for name in ("length", "first", "packs", "copies", "slot"):
        assert getattr(compiled, name).tolist() == getattr(plain, name).tolist()


def test_long_lists_of_runs_grow(compiled_always):
    """More runs than the first allocation of the compiled form holds."""
    lengths = np.random.default_rng(0).integers(1, 8000, 30_000)
    plan = plan_packs(lengths, capacity=8192, seed=None)
    plan.validate(lengths)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(compiling, "WORTH_COMPILING", 1 << 62)
        assert plan_packs(lengths, capacity=8192, seed=None).fingerprint == plan.fingerprint


def test_a_run_longer_than_a_chunk_is_cut(monkeypatch):
    """NumPy fills some million items at a time; a single run may be longer."""
    import brimful.plan.histogram as histogram_module

    monkeypatch.setattr(compiling, "WORTH_COMPILING", 1 << 62)
    lengths = np.array([2] * 100 + [1] * 57)
    whole = plan_packs(lengths, capacity=7, seed=None)
    monkeypatch.setattr(histogram_module, "_CHUNK_ITEMS", 10)
    assert plan_packs(lengths, capacity=7, seed=None).fingerprint == whole.fingerprint

"""Best fit decreasing on counts: the compiled form gives what plain Python gives, run for run."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.compiling import compiled_forms
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
    lengths = np.random.default_rng(0).integers(1, 8000, 30_000)
    compiled, plain = both_forms(Histogram.of(lengths), 8192)
    assert compiled == plain
    assert len(plain[1][0]) > 1024

"""Packs filled from a pool of candidates, compiled and not."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.base.compiling import compiled, compiled_forms
from brimful.base.rng import generator
from brimful.planners.vector.fill_vectors import _fill, fill_packs
from tests.planners.vector.instances import check, matrix, vectors


@given(case=vectors(max_items=60, max_budgets=3), weight=st.sampled_from([0.3, 0.7, 1.5]))
def test_compiled_and_numpy_fill_alike(case, weight):
    """A plan must not depend on what else is installed."""
    pytest.importorskip("numba")
    sizes, capacities = case
    packs = []
    for use in (True, False):
        with compiled_forms(use):
            assert (compiled(_fill, 5) is not None) == use, "the form under test is not taken"
            packs.append(fill_packs(sizes, capacities, weight, 0).as_lists())
    assert packs[0] == packs[1]


def test_compiled_and_numpy_fill_alike_on_many():
    """More items than candidates: the window moves, and packs of hundreds take items as they come."""
    pytest.importorskip("numba")
    draw = generator(seed=1, epoch=0, purpose="sizes")
    sizes = np.stack([1 + draw.integers(5000, below=60), draw.integers(5000, below=40)], axis=1)
    for capacities in (matrix([300, 200]), matrix([9000, 6000])):
        packs = []
        for use in (True, False):
            with compiled_forms(use):
                packing = fill_packs(sizes, capacities, 0.7, 0)
            check(sizes, capacities, packing)
            packs.append((packing.offsets.tolist(), packing.items.tolist()))
        assert packs[0] == packs[1]

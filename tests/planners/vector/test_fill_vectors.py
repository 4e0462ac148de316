"""Packs filled from a pool of candidates, compiled and not."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.base.compiling import compiled, compiled_forms
from brimful.base.rng import generator
from brimful.planners.vector import fill_vectors, pack_vectors
from brimful.planners.vector.fill_vectors import _fill, fill_packs
from tests.plan.frozen import digest_of
from tests.planners.vector.instances import check, matrix, vectors


def _random_packs(chance):
    """Budgets that bind apart or together, few items or more than candidates."""
    count, num_budgets = chance.number(2, 70), chance.number(1, 4)
    capacities = chance.numbers(8, 60, num_budgets)
    sizes = chance.numbers(0, chance.of(8, 30, 60), (count, num_budgets))
    if chance.of(True, False):  # of one shape, as patches within tokens
        sizes = sizes[:, :1] * chance.numbers(1, 3, num_budgets) + chance.numbers(0, 4, (count, num_budgets))
    if chance.of(True, False, False):  # at most so many samples
        sizes, capacities[-1] = np.maximum(sizes, 1), chance.number(1, 7)
        sizes[:, -1] = 1
    sizes = np.minimum(sizes, capacities)
    result = pack_vectors.pack_vectors(sizes, capacities=capacities, seed=chance.number(3))
    check(sizes, capacities, result.packs)
    return [result.packs.as_lists(), result.bound, result.outcome.description]


def test_random_packs_are_what_they_were(monkeypatch):
    """A score, an exchange or a refill that is another one still gives valid packs, a little fewer or more of them."""
    for name, value in (("_MIN_CANDIDATES", 5), ("_FEW_ITEMS", 30), ("_SCORED_ITEMS", 2)):
        monkeypatch.setattr(fill_vectors, name, value)
    monkeypatch.setattr(pack_vectors, "_CLOSE_ENOUGH", 0.06)
    monkeypatch.setattr(pack_vectors, "_SAMPLE_ITEMS", 20)
    monkeypatch.setattr(pack_vectors, "_REPACK_ROUNDS", ((30, 3), (60, 1)))
    with compiled_forms(False):
        assert digest_of(_random_packs, 150) == "d81839a58adc6d99"


@given(case=vectors(max_items=60, max_budgets=3), weight=st.sampled_from([0.3, 0.7, 1.5]))
def test_compiled_and_numpy_fill_alike(case, weight):
    """A plan must not depend on the other packages installed."""
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

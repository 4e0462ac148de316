"""Samples sorted by micro-batch: both forms give the same arrays, to the last bit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.compiling import compiled_forms
from brimful.plan.step.by_micro_batch import sort_by_micro_batch
from tests.plan.forms import use


@pytest.mark.parametrize("form", ["compiled", "plain"])
def test_six_samples(form, monkeypatch):
    """The last micro-batch has none: offsets go on, and its sums are 0."""
    use(form, monkeypatch)
    order, offsets, tokens, costs = sort_by_micro_batch(
        np.array([2, 0, 2, 1, 0, 2]), np.array([3, 3, 5, 6, 1, 1]), np.array([3.0, 3, 5, 6, 1, 1]), num_bins=4
    )
    assert order.tolist() == [1, 4, 3, 0, 2, 5]
    assert offsets.tolist() == [0, 2, 3, 6, 6]
    assert tokens.tolist() == [4, 6, 9, 0]
    assert costs.tolist() == [4.0, 6.0, 9.0, 0.0]


@given(bins=st.lists(st.integers(0, 6), min_size=1, max_size=40), seed=st.integers(0, 2**32 - 1))
def test_forms_agree(bins, seed):
    """Sums that differed in their last bit would give ranks with and without a compiler different fingerprints."""
    costs = np.random.default_rng(seed).random(len(bins)) * 1e17
    results = []
    for is_compiled in (True, False):
        with compiled_forms(is_compiled):
            results.append(sort_by_micro_batch(np.array(bins), np.arange(len(bins)), costs, num_bins=max(bins) + 1))
    for left, right in zip(*results, strict=True):
        assert left.dtype == right.dtype
        assert left.tolist() == right.tolist()

"""The pricing problem against its recurrence."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.base.compiling import compiled_forms
from brimful.planners.optimal import knapsack
from brimful.planners.optimal.knapsack import SearchLimit, best_content, solve_knapsack


@given(
    values=st.dictionaries(st.integers(1, 30), st.integers(1, 2**50), min_size=1, max_size=8),
    capacity=st.integers(30, 90),
)
def test_knapsack_against_the_recurrence(values, capacity):
    """Values and contents, of both forms and of two lengths at a time; contents must be worth what is claimed."""
    lengths = np.array(sorted(values), dtype=np.int64)
    best = [0] * (capacity + 1)
    for size in range(1, capacity + 1):
        best[size] = max([best[size - length] + values[length] for length in values if length <= size], default=0)
    tables = []
    for use in (True, False):
        with compiled_forms(use), pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.setattr(knapsack, "_STEPS_PER_BLOCK", 2 * capacity + 2)
            limit = SearchLimit(operations=1e9)
            prices = np.array([values[int(length)] for length in lengths])
            found = solve_knapsack(lengths, prices, capacity=capacity, limit=limit)
            assert found is not None
            assert limit.remaining_operations == 1e9 - len(lengths) * capacity
            first_block = solve_knapsack(lengths, prices, capacity=capacity, limit=SearchLimit(operations=1))
            assert (first_block is None) == (len(lengths) > 2)
            assert found[0].tolist() == best
            content = [int(lengths[at]) for at in best_content(lengths, found[1], capacity)]
            assert sum(content) <= capacity
            assert sum(values[length] for length in content) == best[capacity]
            tables.append(found[1].tolist())
    assert tables[0] == tables[-1]
    assert solve_knapsack(lengths, prices, capacity=capacity, limit=SearchLimit(seconds=0)) is None

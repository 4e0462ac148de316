"""The bound that column generation proves."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.plan.counts.histogram import Histogram
from brimful.planners.optimal.column_generation import ColumnGeneration
from brimful.planners.optimal.knapsack import SearchLimit
from brimful.planners.patterns import load_of
from tests.planners.optimal.instances import fewest_packs


@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=9),
    factors=st.lists(st.floats(0, 3), min_size=20, max_size=20),
)
def test_a_bound_from_any_prices_holds(lengths, factors):
    """Prices come from floating point: any prices at all, however wrong, must not prove too much."""
    capacity = 20
    items = Histogram.of(np.array(lengths))
    generation = ColumnGeneration(items, capacity, [((length, 1),) for length in items.lengths.tolist()], SearchLimit())
    assert generation.solve_master()
    generation.master.prices = np.array(factors[: len(items.lengths)]) - 0.5
    generation.add_columns()
    assert 0 < generation.bound <= fewest_packs(tuple(lengths), capacity)
    # A new pattern has no room for another item, nor for a longer one in the place of any.
    distinct = items.lengths.tolist()
    for pattern in list(generation.columns)[len(distinct) :]:
        room = capacity - load_of(pattern)
        longer = [
            distinct[place] - distinct[place - 1]
            for place in range(1, len(distinct))
            if distinct[place - 1] in dict(pattern)
        ]
        assert 0 <= room < min([distinct[0], *longer])
    # The best prices so far are kept in packs: all items are worth their bound, before it is rounded up.
    assert items.counts @ generation.center == pytest.approx(generation.center_value)
    assert 0 <= generation.bound - generation.center_value < 1

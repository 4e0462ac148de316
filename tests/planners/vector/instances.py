"""Sizes and capacities under several budgets, and a check of packs."""

import numpy as np
from hypothesis import strategies as st

from brimful.plan.packing import loads_of


def matrix(rows):
    return np.array(rows, dtype=np.int64)


def check(sizes, capacities, packing):
    """Every item once, no capacity exceeded, no pack empty."""
    assert sorted(packing.items.tolist()) == list(range(len(sizes)))
    assert (loads_of(packing, sizes) <= capacities).all()
    assert not len(packing) or int(np.diff(packing.offsets).min()) >= 1


@st.composite
def vectors(draw, *, max_items=40, max_budgets=4):
    """Capacities, and sizes up to them: zeros, whole capacities, halves and a little more among them."""
    number = draw(st.integers(1, max_budgets))
    capacities = draw(st.lists(st.integers(1, 40), min_size=number, max_size=number))
    sizes = [
        st.integers(0, most) | st.sampled_from([0, 1, most, most // 2, most // 2 + 1]).filter(lambda x, m=most: x <= m)  # type: ignore[arg-type]
        for most in capacities
    ]
    rows = draw(st.lists(st.tuples(*sizes), min_size=1, max_size=max_items))
    return matrix(rows), matrix(capacities)

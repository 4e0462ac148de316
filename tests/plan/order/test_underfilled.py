"""Packs below the least fill: packed again, and last."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from brimful import plan_packs
from tests.plan.contents import ids_of


def test_a_pack_exactly_at_the_least_fill_is_full_enough():
    """0.55 times 100 is a little above 55 in floating point."""
    plan = plan_packs([55] * 4 + [100], capacity=100, algorithm="best_fit", min_fill=0.55)
    assert plan.outcome.packs_below_min_fill in (None, (0, 0))


def test_packs_below_the_least_fill_come_last_and_nothing_is_dropped():
    """An existing packer drops them: 20 of 25 samples in silence."""
    lengths = [6, 9, 5, 3, 1, 8]
    plan = plan_packs(lengths, capacity=10, algorithm="first_fit", min_fill=0.7, seed=None)
    plan.validate(np.array(lengths))
    assert ids_of(plan) == [[0, 3, 4], [1], [5], [2]]
    assert plan.outcome.packs_below_min_fill == (1, 1)


@given(
    lengths=st.lists(st.integers(1, 50), min_size=1, max_size=40),
    min_fill=st.floats(0, 1),
    algorithm=st.sampled_from(["auto", "first_fit", "worst_fit", "phased"]),
    samples=st.sampled_from([None, 3]),
)
def test_postponing_never_costs_packs_or_samples(lengths, min_fill, algorithm, samples):
    """Full packs first, then the others; as many as without it, or fewer."""
    options = (
        {"capacity": 60, "algorithm": algorithm} if samples is None else {"capacity": 60, "budgets": {"samples": 3}}
    )
    plan = plan_packs(lengths, min_fill=min_fill, **options)
    plan.validate(np.array(lengths))
    assert plan.num_packs <= plan_packs(lengths, **options).num_packs
    full = [
        sum(part.length for part in pack) >= min_fill * 60 or (samples is not None and len(pack) >= min_fill * 3)
        for pack in plan
    ]
    assert full == sorted(full, reverse=True)

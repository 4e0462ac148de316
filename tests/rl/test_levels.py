"""Slices that all ranks fill to one level, where every sample has its rank."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from brimful.rl import plan_step
from brimful.rl.fill_bins import run_loop
from brimful.rl.levels import fill_common_levels


def filled(lengths, weights, offsets, *, capacity, micro_batches):
    """The slice of each item, and the number of slices."""
    slice_of = np.full(len(lengths), -1)
    next_unplaced = np.arange(len(lengths) + 1)
    slices = run_loop(
        fill_common_levels, lengths, weights, offsets, capacity, micro_batches,
        results=(next_unplaced, slice_of),
    )  # fmt: skip
    return slice_of, slices


RANKS = st.lists(st.lists(st.integers(1, 20), min_size=3, max_size=12), min_size=1, max_size=4)


@given(ranks=RANKS, micro_batches=st.integers(1, 3))
def test_slices_hold_capacity_and_level(ranks, micro_batches):
    """No rank is above the level of a slice, its most costly sample; every rank keeps a sample for each later slice."""
    ranks = [sorted(lengths, reverse=True) for lengths in ranks]
    lengths = np.concatenate(ranks)
    weights = lengths**2
    offsets = np.cumsum([0, *map(len, ranks)])
    slice_of, slices = filled(lengths, weights, offsets, capacity=20, micro_batches=micro_batches)
    assert int(slice_of.max(initial=-1)) == slices - 1
    for begin, end in pairwise(offsets.tolist()):
        part = slice_of[begin:end]
        assert int((part < 0).sum()) >= micro_batches - slices
        for number in range(slices):
            is_in_slice = part == number
            assert is_in_slice.any()
            assert int(lengths[begin:end][is_in_slice].sum()) <= 20
            assert int(weights[begin:end][is_in_slice].sum()) <= int(weights[slice_of == number].max())


def test_nothing_is_filled_where_no_sample_is_above_the_mean():
    lengths = np.array([2, 2, 2, 2, 2, 2])
    slice_of, slices = filled(lengths, lengths, np.array([0, 3, 6]), capacity=8, micro_batches=2)
    assert (slice_of.tolist(), slices) == ([-1] * 6, 0)


def test_ranks_with_groups_wait_less():
    """One rank has the one long sample; the other fills its micro-batch meanwhile instead of halving its work evenly."""
    lengths = [8, 2, 1, 5, 4, 3]
    step = plan_step(
        lengths,
        capacity=9,
        dp_world_size=2,
        cost=np.array(lengths, dtype=np.float64) ** 2,
        groups=[0, 0, 0, 1, 1, 1],
        min_micro_batches=2,
    )
    assert step.num_micro_batches == 2
    # 64 is waited for in slice 0, so that 5 and 4 or 3 stand beside it: slice 1 is no more than 16.
    assert step.costs.max(axis=0).tolist() == [64.0, 9.0]

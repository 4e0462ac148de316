"""Exchanges: ranks wait less, and all the rest stays."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.base.compiling import compiled_forms
from brimful.rl.fill_bins import run_loop
from brimful.rl.spread_samples import exchange_between_ranks as loop
from brimful.rl.within_ranks import exchange_within_ranks
from tests.plan.forms import use


def exchange_between_ranks(sizes, weights, rank_of, *, room, num_ranks):
    run_loop(loop, sizes, weights, room, num_ranks, results=(rank_of,))


@pytest.mark.parametrize("form", ["compiled", "plain"])
def test_the_busiest_rank_exchanges_with_the_idlest(form, monkeypatch):
    """9 5 3 and 7 6 become 7 5 3 and 9 6; where the other rank has no room for it, nothing moves."""
    use(form, monkeypatch)
    weights = np.array([9, 7, 6, 5, 3])
    rank_of = np.array([0, 1, 1, 0, 0])
    exchange_between_ranks(np.ones(5, dtype=np.int64), weights, rank_of, room=4, num_ranks=2)
    assert rank_of.tolist() == [1, 0, 1, 0, 0]
    sizes, rank_of = np.array([4, 1, 1, 4, 4]), np.array([0, 1, 1, 0, 0])
    exchange_between_ranks(sizes, weights, rank_of, room=4, num_ranks=2)
    assert rank_of.tolist() == [0, 1, 1, 0, 0]


@pytest.mark.parametrize("form", ["compiled", "plain"])
def test_work_goes_where_another_rank_is_slower(form, monkeypatch):
    """Slices of 17 and 12 become 11 and 12: rank 0 moves 9 to its other micro-batch, unless that has no room; then rank 1 does what it can."""
    use(form, monkeypatch)
    weights, bins = np.array([9, 8, 3, 6, 5, 7, 5]), np.array([0, 0, 1, 2, 2, 3, 3])
    for lengths, capacity, expected in (
        ([1, 1, 1, 1, 1, 1, 1], 2, [1, 0, 1, 2, 2, 3, 3]),
        ([1, 3, 4, 1, 1, 1, 1], 4, [0, 0, 1, 2, 2, 2, 3]),
    ):
        exchanged = exchange_within_ranks(np.array(lengths), weights, bins, capacity=capacity, micro_batches=2)
        assert exchanged.tolist() == expected


@st.composite
def steps(draw):
    """Samples in micro-batches of some ranks, none empty, and a capacity that holds them."""
    ranks, micro_batches = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    num_bins = ranks * micro_batches
    bins = [*range(num_bins), *draw(st.lists(st.integers(0, num_bins - 1), max_size=30))]
    lengths = draw(st.lists(st.integers(1, 50), min_size=len(bins), max_size=len(bins)))
    weights = draw(st.lists(st.integers(1, 1000), min_size=len(bins), max_size=len(bins)))
    capacity = int(np.bincount(bins, lengths).max()) + draw(st.integers(0, 20))
    return ranks, micro_batches, np.array(bins), np.array(lengths), np.array(weights), capacity


@given(case=steps())
def test_steps_are_never_longer_and_keep_every_law(case):
    """An exchange that breaks the capacity is memory that is not there; one over ranks takes a group apart."""
    ranks, micro_batches, bins, lengths, weights, capacity = case
    results = []
    for is_compiled in (True, False):
        with compiled_forms(is_compiled):
            results.append(
                exchange_within_ranks(lengths, weights, bins, capacity=capacity, micro_batches=micro_batches)
            )
    exchanged = results[0]
    assert exchanged.tolist() == results[1].tolist()
    assert (exchanged // micro_batches).tolist() == (bins // micro_batches).tolist()
    assert np.bincount(exchanged, lengths).max() <= capacity
    assert np.bincount(exchanged, minlength=ranks * micro_batches).min() >= 1

    def time(of):
        work = np.bincount(of, weights, minlength=ranks * micro_batches).reshape(ranks, micro_batches)
        return work.max(axis=0).sum()

    assert time(exchanged) <= time(bins)


@given(case=steps())
def test_ranks_are_never_more_unequal(case):
    """The busiest rank never has more to do than before, and no rank more tokens than its room."""
    ranks, micro_batches, bins, lengths, weights, _ = case
    rank_of = bins // micro_batches
    before = np.bincount(rank_of, weights, minlength=ranks).max()
    room = int(np.bincount(rank_of, lengths).max())
    results = []
    for is_compiled in (True, False):
        with compiled_forms(is_compiled):
            results.append(rank_of.copy())
            exchange_between_ranks(lengths, weights, results[-1], room=room, num_ranks=ranks)
    assert results[0].tolist() == results[1].tolist()
    assert np.bincount(results[0], weights, minlength=ranks).max() <= before
    assert np.bincount(results[0], lengths).max() <= room

"""Turns of sources: shares over every prefix."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful.base.compiling import compiled, compiled_forms
from brimful.mixtures.take_turns import apportioned, scale_for, take_turns

WEIGHTS = st.lists(st.integers(1, 1000), min_size=1, max_size=9)


def turns_of(weights, sizes, *, is_unit):
    """Turns until one source has no draw left; ``sizes`` of each source."""
    offsets = np.concatenate([[0], np.cumsum([len(each) for each in sizes])]).astype(np.int64)
    flat = np.concatenate(sizes).astype(np.int64)
    scale = scale_for(int(flat.max()), len(weights))
    turns = np.empty(len(flat) + 1, dtype=np.int16)
    number, starved = (compiled(take_turns, 0) or take_turns)(
        apportioned(np.array(weights, dtype=float), scale), np.zeros(len(weights), np.int64), np.stack([flat, flat]),
        offsets[:-1].copy(), offsets[1:].copy(), np.full(len(weights), -1), np.array([-1, -1]), turns, is_unit,
    )  # fmt: skip
    assert starved >= 0
    return turns[:number]


def test_three_sources_take_turns_as_drawn():
    """The drawing in the docstring: one half, a third and a sixth."""
    turns = turns_of([3, 2, 1], [np.ones(50)] * 3, is_unit=True)
    assert turns[:12].tolist() == turns[:6].tolist() * 2
    assert np.bincount(turns[:6]).tolist() == [3, 2, 1]


@pytest.mark.parametrize(
    ("shares", "parts"),
    [
        ([2, 1, 1], [50, 25, 25]),
        ([5e9, 1, 1, 0], [98, 1, 1, 0]),
        ([512, 488], [51, 49]),
        ([1, 1e-9, 1, 0.04], [49, 1, 49, 1]),
        ([1] * 7, [15, 15, *[14] * 5]),
    ],
)
def test_parts_add_up_and_the_smallest_share_has_one(shares, parts):
    """A source of one sample among billions is drawn some day, and one without weight never."""
    assert apportioned(np.array(shares), 100).tolist() == parts


@given(WEIGHTS)
def test_no_prefix_is_one_draw_off_its_shares(weights):
    """Tijdeman's bound. The rule of the largest deficit, and sorting by ideal times, break it for several sources."""
    turns = turns_of(weights, [np.ones(200)] * len(weights), is_unit=True)
    drawn = np.cumsum(turns[:, None] == np.arange(len(weights)), axis=0)
    asked = np.arange(1, len(turns) + 1)[:, None] * (np.array(weights) / sum(weights))
    assert np.abs(drawn - asked).max() < 1


@given(WEIGHTS, st.integers(0, 2**32))
def test_no_source_is_ahead_by_more_than_one_of_its_samples(weights, seed):
    """With lengths that differ 40-fold, as captions among documents: shares in tokens."""
    draws = np.random.default_rng(seed)
    sizes = [draws.integers(1, 41, 200) for _ in weights]
    turns = turns_of(weights, sizes, is_unit=False)
    given_tokens = np.zeros(len(weights))
    heads, shares = [0] * len(weights), np.array(weights) / sum(weights)
    for source in turns.tolist():
        size = sizes[source][heads[source]]
        heads[source] += 1
        given_tokens[source] += size
        ahead = given_tokens[source] - shares[source] * given_tokens.sum()
        assert ahead <= (1 - shares[source]) * size + 1e-3


@given(WEIGHTS, st.integers(0, 2**32), st.booleans())
@settings(deadline=None, max_examples=15)
def test_compiled_turns_are_the_same(weights, seed, is_unit):
    """Without it a plan depends on whether numba is installed."""
    draws = np.random.default_rng(seed)
    sizes = [np.ones(60, dtype=int) if is_unit else draws.integers(1, 3000, 60) for _ in weights]
    turns = []
    for use in (False, True):
        with compiled_forms(use):
            turns.append(turns_of(weights, sizes, is_unit=is_unit))
    assert np.array_equal(*turns)


@pytest.mark.parametrize(("largest", "sources"), [(1, 2), (40, 3), (2**20, 9), (2**31 - 1, 300)])
def test_credits_stay_within_int64(largest, sources):
    """Without it a long sample of a large mixture turns a debt into a credit."""
    assert scale_for(largest, sources) * largest * sources < 2**63
    assert apportioned(np.arange(1, sources + 1, dtype=float), scale_for(largest, sources)).sum() == scale_for(
        largest, sources
    )

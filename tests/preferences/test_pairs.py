"""Both sides of a preference are found in a micro-batch, or the batch is refused."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.errors import CollateError
from brimful.preferences.dpo import pair_segments


def test_two_pairs():
    assert pair_segments([6, 7, 3, 2]).tolist() == [[0, 1], [3, 2]]
    assert pair_segments([]).shape == (0, 2)


def test_segments_of_an_empty_place_pair_as_they_lie():
    """Their samples are -1: none is another's, and none has a target."""
    assert pair_segments([-1, -1, -1, -1]).tolist() == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("sample_ids", "reason"),
    [
        ([2, 3, 4], r"row 2 of preferences or KTO is in this micro-batch with samples \[4\]"),
        ([3, 4, 5], r"row 1 of preferences or KTO is in this micro-batch with samples \[3\]"),
        ([2, 3, 2], r"row 1 of preferences or KTO is in this micro-batch with samples \[2, 2, 3\]"),
    ],
)
def test_a_pair_that_was_taken_apart_is_named(sample_ids, reason):
    with pytest.raises(CollateError, match=reason):
        pair_segments(sample_ids)


@given(st.lists(st.integers(0, 50), unique=True, max_size=20), st.randoms())
def test_every_pair_once(pairs, random):
    ids = [2 * pair + side for pair in pairs for side in (0, 1)]
    random.shuffle(ids)
    rows = pair_segments(ids)
    assert [(ids[chosen], ids[rejected]) for chosen, rejected in rows.tolist()] == [
        (sample, sample + 1) for sample in ids if sample % 2 == 0
    ]


@given(st.lists(st.integers(0, 5), max_size=6), st.integers(0, 2))
def test_a_batch_is_paired_or_refused_by_its_first_wrong_row(sample_ids, num_empty):
    """Without it the loss would compare answers of two rows, or the message name a row that is whole."""
    ids = [-1, -1] * num_empty + sample_ids
    rows = {sample_id // 2: sorted(other for other in sample_ids if other // 2 == sample_id // 2) for sample_id in ids}
    wrong = [row for row, samples in rows.items() if row >= 0 and samples != [2 * row, 2 * row + 1]]
    if wrong:
        message = f"row {wrong[0]} of preferences or KTO is in this micro-batch with samples {rows[wrong[0]]},"
        with pytest.raises(CollateError, match=re.escape(message)):
            pair_segments(ids)
        return
    pairs = pair_segments(ids)
    assert sorted(pairs.reshape(-1).tolist()) == list(range(len(ids)))
    assert pairs[:num_empty].tolist() == [[2 * place, 2 * place + 1] for place in range(num_empty)]
    assert all((ids[even], ids[odd]) in ((-1, -1), (ids[even], ids[even] + 1)) for even, odd in pairs.tolist())

"""Labels moved inside of segments: nothing predicts into the next sample."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.collate import lay_out, shift_labels
from brimful.collate.padding import shift_left
from brimful.errors import SettingsError
from brimful.testing.toys import toy_pack

BOUNDARIES = np.array([0, 4, 6, 7, 9, 9], dtype=np.int32)


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        (1, [2, 3, 4, -100, 6, -100, -100, 9, -100]),
        (2, [3, 4, -100, -100, -100, -100, -100, -100, -100]),
        (3, [4, *[-100] * 8]),
        (9, [-100] * 9),
        (20, [-100] * 9),
    ],
)
def test_whole_output(by, expected):
    """Segments of 4, 2, 1, 2 and 0 tokens."""
    labels = np.arange(1, 10)
    assert shift_labels(labels, BOUNDARIES, by=by).tolist() == expected
    assert labels.tolist() == list(range(1, 10))


@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=6), by=st.integers(1, 4))
def test_like_a_loop_over_segments(lengths, by):
    """Shift each sample alone and put the pieces together."""
    batch = lay_out([toy_pack(lengths)])
    pieces = []
    for start, stop in zip(batch.cu_seqlens[:-1], batch.cu_seqlens[1:], strict=True):
        segment = batch.labels[start:stop].tolist()
        pieces += (segment[by:] + [-100] * by)[: len(segment)]
    assert shift_labels(batch.labels, batch.cu_seqlens, by=by).tolist() == pieces


def test_weights_move_as_labels_do():
    """What is left over weighs nothing; more dimensions keep theirs."""
    weights = np.arange(1, 10, dtype=np.float32)
    moved = shift_left(np.stack([weights, weights]), BOUNDARIES, by=1, fill=0.0)
    assert moved.tolist() == [[2, 3, 4, 0, 6, 0, 0, 9, 0]] * 2
    assert moved.dtype == np.float32


def test_shifting_by_nothing_is_a_mistake():
    """By 0 or less the labels would tell what they ask."""
    with pytest.raises(SettingsError, match="at least 1 and not by 0"):
        shift_labels(np.arange(3), np.array([0, 3], dtype=np.int32), by=0)

"""Copies of a batch for the probe: other tokens in one segment, or one segment alone."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from brimful.doctor.batch.rewrite import alone, exchanged
from brimful.doctor.batch.view import read_batch
from brimful.errors import CollateError
from tests.doctor.batch.strategies import made


def values(batch: Any) -> dict[str, Any]:
    return {str(word): word.array for word in read_batch(batch).words}


def same(first: Any, second: Any) -> bool:
    if first is None or second is None:
        return first is second
    if first.dtype == object:
        return len(first) == len(second) and all(map(np.array_equal, first, second))
    return bool(np.array_equal(first, second))


@given(case=made(repeats=False), data=st.data())
def test_only_the_tokens_of_one_segment_are_exchanged(case, data):
    """A copy that differs anywhere else would accuse a right model of seeing its neighbors."""
    before = copy.deepcopy(values(case.batch))
    view = read_batch(case.batch)
    segment = data.draw(st.sampled_from(view.segments))
    row, start, stop = segment
    copied = exchanged(case.batch, view, segment, 70 + np.arange(segment.length))
    after = read_batch(copied)
    assert after.ids[row, start:stop].tolist() == (70 + np.arange(segment.length)).tolist()
    outside = np.ones(view.shape, dtype=bool)
    outside[row, start:stop] = False
    assert (after.ids == view.ids)[outside].all()
    assert after.segments == view.segments
    assert (after.targets == view.targets)[outside].all()
    # Inside, the same positions are trained, on the new tokens.
    inside = after.targets[row, start : stop - 1]
    trained = view.targets[row, start : stop - 1] != -100
    assert ((inside != -100) == trained).all()
    assert (inside[trained] == after.ids[row, start + 1 : stop][trained]).all()
    assert after.targets[row, stop - 1] == view.targets[row, stop - 1]
    # The batch itself is as it was, and the copy has its types.
    assert all(same(before[name], value) for name, value in values(case.batch).items())
    untouched = {str(view.ids_word[-1]), "labels", "shift_labels"}
    for key, value in case.batch.items():
        assert type(copied[key]) is type(value)
        if key not in untouched:
            assert copied[key] is value
        elif isinstance(value, torch.Tensor):
            assert (copied[key].dtype, copied[key].layout) == (value.dtype, value.layout)


@given(case=made(repeats=False), data=st.data())
def test_one_segment_is_alone_in_each_row(case, data):
    """A segment that keeps a neighbor, or its old positions, has not the losses that it has alone."""
    view = read_batch(case.batch)
    own = {segment.row: segment for segment in view.segments}
    by_row = [[item for item in view.segments if item.row == row] for row in sorted(own)]
    chosen = [data.draw(st.sampled_from(items)) for items in by_row]
    if len(chosen) != view.shape[0]:
        return
    copied = alone(case.batch, view, chosen)
    after = read_batch(copied)
    for row, segment in enumerate(chosen):
        size = segment.length
        first = next(item for item in after.segments if item.row == row)
        assert first == (row, 0, size)
        assert after.ids[row, :size].tolist() == view.ids[segment.row, segment.start : segment.stop].tolist()
        assert set(after.ids[row, size : after.row_lengths[row]].tolist()) <= {int(after.ids[row, size - 1])}
        old = view.targets[segment.row, segment.start : segment.stop - 1]
        assert after.targets[row, : size - 1].tolist() == old.tolist()
        assert (after.targets[row, size - 1 :] == -100).all()
        if after.positions is not None:
            assert after.positions[row, :size].tolist() == list(range(size))
    for word, other in zip(view.words, after.words, strict=True):
        assert word.path == other.path
        if word.array is not None:
            assert word.array.shape == other.array.shape
            assert getattr(word.value, "dtype", None) == getattr(other.value, "dtype", None)


def test_rows_with_media_stay_as_they_are():
    batch = {"input_ids": torch.tensor([[1, 2, 3]]), "pixel_values": torch.zeros(4, 8)}
    view = read_batch(batch)
    with pytest.raises(CollateError, match="pixel_values"):
        alone(batch, view, view.segments)


def test_another_number_of_tokens_is_refused():
    batch = {"input_ids": torch.tensor([[1, 2, 3]])}
    view = read_batch(batch)
    with pytest.raises(CollateError, match="3 tokens"):
        exchanged(batch, view, view.segments[0], [1, 2])

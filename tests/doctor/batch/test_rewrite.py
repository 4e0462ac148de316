"""Copies of a batch for the probe: other tokens in one segment, or one segment alone."""

import copy
from collections import namedtuple
from dataclasses import dataclass
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import BatchEncoding

from brimful import PackCollator
from brimful.doctor.batch.rewrite import alone, exchanged
from brimful.doctor.batch.view import read_batch
from brimful.errors import CollateError
from brimful.testing.toys import toy_pack
from tests.doctor.batch.strategies import made
from tests.doctor.batch.words import IDS, STARTS, WORDS, told_by


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
    """A copy that differs elsewhere would accuse a right model of seeing its neighbors."""
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
    untouched = {str(view.ids_word.path[-1]), "labels", "shift_labels"}
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
            begin = int(view.positions[segment.row, segment.start])
            assert after.positions[row, :size].tolist() == list(range(begin, begin + size))
    for word, other in zip(view.words, after.words, strict=True):
        assert word.path == other.path
        if word.array is not None:
            assert word.array.shape == other.array.shape
            assert getattr(word.value, "dtype", None) == getattr(other.value, "dtype", None)


@given(case=made(repeats=False), data=st.data())
def test_a_segment_is_cut_out(case, data):
    """A batch of one row, as long as its only sample."""
    view = read_batch(case.batch)
    segment = data.draw(st.sampled_from(view.segments))
    row, start, stop = segment
    after = read_batch(alone(case.batch, view, [segment], is_cut=True))
    assert after.ids.tolist() == [view.ids[row, start:stop].tolist()]
    assert after.targets.tolist() == [[*view.targets[row, start : stop - 1].tolist(), -100]]
    assert {tuple(claim.starts.tolist()) for claim in after.claims} <= {(0,)}
    if after.positions is not None:
        assert after.positions.tolist() == [[view.positions[row, start] + index for index in range(segment.length)]]


@pytest.mark.parametrize("words", WORDS, ids=lambda words: next(iter(words)))
def test_words_of_other_loaders_are_rewritten(words):
    """A word that keeps its old boundaries contradicts the others."""
    batch = told_by(words)
    view = read_batch(batch)
    copied = alone(batch, view, [view.segments[1]])
    after = read_batch(copied)
    assert after.ids.tolist() == [[8, 9, 9, 9, 9, 9]]
    assert after.segments[0] == (0, 0, 2)
    assert after.targets.tolist() == [[9, *[-100] * 5]]
    assert after.believed.word == view.believed.word
    # The place of the segment keeps its padding, and all words agree on it.
    starts = {tuple(claim.starts[claim.starts < 5].tolist()) for claim in after.claims}
    assert starts == {(0, 3) if "cu_seqlens_q_padded" in words else (0, 2)}
    for word, new in zip(view.words, after.words, strict=True):
        assert type(word.value) is type(new.value)
        assert word.array.shape == new.array.shape
    other = exchanged(batch, view, view.segments[0], [1, 2, 3])
    assert read_batch(other).ids.tolist() == [[1, 2, 3, 8, 9, 0]]
    assert read_batch(other).segments == view.segments


@dataclass(frozen=True)
class Params:
    cu_seqlens_q: torch.Tensor
    qkv_format: str = "thd"


Batch = namedtuple("Batch", "tokens labels params")


def test_containers_keep_their_types():
    params = Params(torch.tensor([0, 3, 5, 6], dtype=torch.int32))
    row = torch.tensor(IDS)
    labels = torch.tensor([[-100, 6, 7, -100, 9, -100]])
    for batch in (
        Batch(row, labels, params),
        SimpleNamespace(tokens=row, labels=labels, packed_seq_params=params),
        BatchEncoding({"input_ids": row, "labels": labels, "packed_seq_params": params}),
        MappingProxyType({"input_ids": row, "labels": labels, "packed_seq_params": params}),
        ({"input": row, "packed_seq_params": params}, labels),
    ):
        view = read_batch(batch)
        assert view.segments == STARTS
        copied = alone(batch, view, [view.segments[1]])
        assert type(copied) is (dict if isinstance(batch, MappingProxyType) else type(batch))
        assert read_batch(copied).segments[0] == (0, 0, 2)
        assert view.segments == read_batch(batch).segments


def test_rows_of_positions_of_media_models_are_moved():
    """Three rows or four, before the rows of the batch or after them."""
    ids = torch.tensor([[5, 6, 7, 8, 9], [1, 2, 3, 4, 5]])
    text = torch.tensor([[0, 1, 2, 0, 1], [0, 1, 0, 1, 2]])
    for positions in (text.expand(3, 2, 5), text.expand(4, 2, 5), text[:, None].expand(2, 3, 5)):
        batch = {"input_ids": ids, "position_ids": positions}
        view = read_batch(batch)
        assert [segment.row for segment in view.segments] == [0, 0, 1, 1]
        copied = alone(batch, view, [view.segments[1], view.segments[3]])
        assert copied["input_ids"].tolist() == [[8, 9, 9, 9, 9], [3, 4, 5, 5, 5]]
        assert copied["position_ids"].shape == positions.shape
        assert read_batch(copied).positions.tolist() == [[0, 1, 0, 1, 2], [0, 1, 2, 0, 1]]


def test_segments_of_another_row_bring_its_places():
    batch = PackCollator(dialect="axolotl", pad_to=8)([toy_pack([3, 2]), toy_pack([6], seed=1)])
    view = read_batch(batch)
    copied = alone(batch, view, [view.segments[2], view.segments[0]])
    assert copied["attention_mask"].tolist() == [[1] * 6 + [2] * 2, [1] * 3 + [2] * 5]
    assert read_batch(copied).segments[0] == (0, 0, 6)


def test_values_of_tokens_move_with_them():
    """Weights, log probabilities: columns of other names. The rest of the row has none."""
    batch = {
        "input_ids": torch.tensor(IDS),
        "seq_lengths": [[3, 2, 1]],
        "logps": torch.arange(6.0)[None],
        "note": "text",
    }
    view = read_batch(batch)
    copied = alone(batch, view, [view.segments[1]])
    assert copied["logps"].tolist() == [[3, 4, 0, 0, 0, 0]]
    assert copied["note"] == "text"


def test_tokens_alone_are_a_batch():
    for ids in (torch.tensor([[1, 2, 3], [4, 5, 6]]), [[1, 2, 3], [4, 5, 6]], np.array([[1, 2, 3], [4, 5, 6]])):
        view = read_batch(ids)
        assert view.segments == [(0, 0, 3), (1, 0, 3)]
        copied = exchanged(ids, view, view.segments[1], [7, 8, 9])
        assert type(copied) is type(ids)
        assert np.asarray(copied).tolist() == [[1, 2, 3], [7, 8, 9]]


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

"""Views of batches: every dialect of the project, and the words of other loaders."""

from collections import namedtuple
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given

from brimful.doctor.batch.view import Labeling, read_batch
from brimful.errors import CollateError, WrongTypeError
from tests.doctor.batch.strategies import made
from tests.doctor.batch.words import BY_MASK, IDS, STARTS, WORDS, told_by


@given(case=made())
def test_every_dialect_is_read_exactly(case):
    """Nothing that is said of a batch holds if its segments are found at other places."""
    view = read_batch(case.batch)
    assert len(view.segments) == len(case.samples)
    for (row, start, stop), sample, trained in zip(view.segments, case.samples, case.targets, strict=True):
        size = len(sample)
        assert view.ids[row, start : start + size].tolist() == sample
        # Padding after a segment is a part of it where no word marks it.
        assert not view.ids[row, start + size : stop].any()
        expected = [token if flag else -100 for token, flag in zip(sample[1:], trained[1:], strict=True)]
        assert view.targets[row, start : start + size - 1].tolist() == expected
        assert (view.targets[row, start + size - 1 : stop] == -100).all()
    assert (view.targets != -100).sum() == sum(map(sum, case.targets))
    inside = np.zeros(view.shape, dtype=bool)
    for row, start, stop in view.segments:
        inside[row, start:stop] = True
    assert (view.padding == ~inside).all()


@pytest.mark.parametrize("words", WORDS, ids=lambda words: next(iter(words)))
def test_words_of_other_loaders(words):
    """A loader whose boundaries are not understood would be told that it has none."""
    view = read_batch(told_by(words))
    assert view.segments == STARTS
    assert next(iter(words)) in view.evidence
    assert view.padding.tolist() == [[False] * 5 + [True]]


@dataclass
class Batch:
    tokens: torch.Tensor
    targets: torch.Tensor
    positions: torch.Tensor


Pair = namedtuple("Pair", "input_ids labels")

TOKENS = torch.tensor(IDS)
TARGETS = torch.tensor([[6, 7, -100, 9, -100, -100]])
POSITIONS = torch.tensor([[0, 1, 2, 0, 1, 0]])


@pytest.mark.parametrize(
    ("batch", "path"),
    [
        ({"input": TOKENS, "labels": TARGETS, "positions": POSITIONS}, ("input",)),
        (({"input": TOKENS, "positions": POSITIONS}, TARGETS), (0, "input")),
        ([{"input": TOKENS, "positions": POSITIONS}, TARGETS], (0, "input")),
        ({"inputs": {"tokens": TOKENS, "positions": POSITIONS}, "targets": TARGETS}, ("inputs", "tokens")),
        (Batch(TOKENS, TARGETS, POSITIONS), ("tokens",)),
        (SimpleNamespace(tokens=TOKENS, labels=TARGETS, positions=POSITIONS), ("tokens",)),
    ],
    ids=["mapping", "pair", "list", "nested", "dataclass", "attributes"],
)
def test_batches_of_every_type(batch, path):
    view = read_batch(batch)
    assert view.ids_word.path == path
    assert view.segments == STARTS
    assert view.labeling is Labeling.SHIFTED
    assert view.targets.tolist() == TARGETS.tolist()


def test_a_pair_without_names_is_tokens_and_labels():
    view = read_batch((TOKENS, TARGETS))
    assert (view.ids_word.path, view.labels_word.path) == ((0,), (1,))
    assert view.labeling is Labeling.SHIFTED
    assert read_batch(Pair(TOKENS, TARGETS)).labeling is Labeling.SHIFTED


def test_rows_of_lists_are_as_long_as_they_are():
    view = read_batch({"input_ids": [[5, 6, 7], [8, 9]], "labels": [[5, 6, 7], [-100, 9]]})
    assert view.segments == [(0, 0, 3), (1, 0, 2)]
    assert view.targets.tolist() == [[6, 7, -100], [9, -100, -100]]


def test_padding_may_come_first():
    batch = {"input_ids": [[0, 0, 7], [8, 9, 5]], "attention_mask": [[0, 0, 1], [1, 1, 1]]}
    for words in ({}, {"position_ids": [[1, 1, 0], [0, 1, 2]]}):
        view = read_batch({**batch, **words})
        assert view.segments == [(0, 2, 3), (1, 0, 3)]
        assert view.evidence == ""


def test_masks_of_answers_mark_the_targets():
    view = read_batch({"input_ids": IDS, "completion_mask": [[0, 0, 1, 0, 1, 0]], **BY_MASK})
    assert view.labeling is Labeling.BY_MASK
    assert view.targets.tolist() == [[-100, 7, -100, 9, -100, -100]]


def test_halves_of_pairs_are_read_by_their_prefix():
    batch = {"chosen_input_ids": [[1, 2, 3]], "rejected_input_ids": [[1, 2, 4]], "chosen_cu_seq_lens_q": [0, 2, 3]}
    assert read_batch(batch, prefix="chosen_").segments == [(0, 0, 2), (0, 2, 3)]
    assert read_batch(batch, prefix="rejected_").ids.tolist() == [[1, 2, 4]]


def test_a_batch_without_tokens_names_its_keys():
    with pytest.raises(CollateError, match=r"pixel_values, note.*input_ids"):
        read_batch({"pixel_values": torch.zeros(2), "note": "text"})
    with pytest.raises(WrongTypeError):
        read_batch("text")

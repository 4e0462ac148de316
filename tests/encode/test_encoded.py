"""Tokens and targets of one sample, in memory and on disk."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from brimful.encode import EncodedSample
from brimful.encode.stored import StoredSamples, write_stored
from brimful.errors import EncodeError


def _encoded(ids, mask):
    return EncodedSample(np.array(ids, dtype=np.int32), np.array(mask, dtype=bool))


def test_labels_and_back():
    """Without it an encoder of somebody else could not be used, or its labels would come back changed."""
    ids, labels = np.array([5, 6, 7]), np.array([-100, 6, -100])
    encoded = EncodedSample.from_labels(ids, labels)
    assert (encoded.input_ids.dtype, encoded.input_ids.tolist()) == (np.int32, [5, 6, 7])
    assert encoded.loss_mask.tolist() == [False, True, False]
    assert (encoded.labels.dtype, encoded.labels.tolist()) == (np.int64, [-100, 6, -100])


def test_shifted_labels_are_refused():
    """Without it labels that are shifted already would be shifted twice by the trainer."""
    with pytest.raises(EncodeError) as caught:
        EncodedSample.from_labels(np.array([5, 6, 7]), np.array([-100, 7, -100]))
    assert str(caught.value) == ("label 7 at position 1 is neither its token 6 nor -100: labels must not be shifted")


def test_labels_of_another_length_are_refused():
    """Without it labels would be matched to the wrong tokens."""
    with pytest.raises(EncodeError, match=r"input_ids \(3,\) and labels \(2,\) must be two rows of one length"):
        EncodedSample.from_labels(np.array([5, 6, 7]), np.array([-100, 6]))


def test_stored_samples_come_back_by_id(tmp_path):
    """Without it packs would be written with tokens of a neighbour, or lose the targets of token 0."""
    first = [_encoded([0, 0, 7], [True, False, True]), None, _encoded([151643], [False])]
    second = [_encoded([1, 2], [True, True])]
    write_stored(tmp_path / "0.arrow", first)
    write_stored(tmp_path / "3.arrow", second)
    stored = StoredSamples([(0, str(tmp_path / "0.arrow")), (3, str(tmp_path / "3.arrow"))])
    for reader in (stored, pickle.loads(pickle.dumps(stored))):
        for sample_id, expected in ((3, second[0]), (0, first[0]), (2, first[2])):
            sample = reader[sample_id]
            assert (sample.input_ids.dtype, sample.input_ids.tolist()) == (np.int32, expected.input_ids.tolist())
            assert sample.loss_mask.tolist() == expected.loss_mask.tolist()
        assert len(reader[1]) == 0


def test_more_files_than_may_be_open(tmp_path, monkeypatch):
    """Without it a data set of many blocks would run out of file handles."""
    monkeypatch.setattr("brimful.encode.stored._FILES_KEPT_OPEN", 2)
    parts = [(number, str(tmp_path / f"{number}.arrow")) for number in range(5)]
    for number, path in parts:
        write_stored(path, [_encoded([number], [True])])
    stored = StoredSamples(parts)
    assert [stored[number].input_ids.tolist() for number in (4, 0, 3, 1, 2, 0)] == [[4], [0], [3], [1], [2], [0]]
    assert len(stored._open) == 2


def test_ids_that_do_not_fit_are_refused_before_they_wrap():
    """2**32 + 6 in int32 is 6, a token that any vocabulary has."""
    with pytest.raises(EncodeError, match=f"token 1 is {2**32 + 6}, which no vocabulary has"):
        EncodedSample.from_labels(np.array([5, 2**32 + 6]), np.array([-100, -100]))

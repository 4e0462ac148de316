"""Tokens and targets of one sample."""

from __future__ import annotations

import numpy as np
import pytest

from brimful.encode import EncodedSample
from brimful.errors import EncodeError


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
    with pytest.raises(EncodeError, match=r"input_ids \(3,\) and labels \(2,\) must be two rows of equal length"):
        EncodedSample.from_labels(np.array([5, 6, 7]), np.array([-100, 6]))


def test_ids_that_do_not_fit_are_refused_before_they_wrap():
    """2**32 + 6 in int32 is 6, a token that any vocabulary has."""
    with pytest.raises(EncodeError, match=f"token 1 is {2**32 + 6}, which no vocabulary has"):
        EncodedSample.from_labels(np.array([5, 2**32 + 6]), np.array([-100, -100]))

"""Tokens and targets of one sample."""

from __future__ import annotations

import numpy as np

from brimful.encode import EncodedSample


def test_labels_are_the_targets():
    """Without it labels of a sample would be other tokens, or of a type that no loss takes."""
    labels = EncodedSample(np.array([5, 6, 7], np.int32), np.array([False, True, False])).labels
    assert (labels.dtype, labels.tolist()) == (np.int64, [-100, 6, -100])

"""Spectrograms without their padding: a store holds the columns of the clip, the number in all later ones, and a count.

A clip of five seconds fills 500 of the 30,000 columns that Qwen2.5-Omni is given, or of the 3,000 of Qwen2-Audio.
Columns after its end are silence, so all their numbers are equal.
"""

import numpy as np

from brimful.media.features.block import Features
from brimful.media.placed import PlacedMedium

_EDGE = 2
"""Columns after the last that still see the clip: a window is 2.5 steps wide, and centered."""

_MASK = "feature_attention_mask"


def trimmed(features: Features, item: PlacedMedium) -> Features:
    """Return the features to store: the columns of a clip that are not padding; all others unchanged.

    Args:
        features: of one medium.
        item: the same medium, with ``num_mel_frames``.

    >>> from brimful.media import Medium, MediaKind
    >>> sound = PlacedMedium(Medium(MediaKind.AUDIO, "a"), 0, 1, 1, num_mel_frames=1)
    >>> mask = np.array([[1, 0, 0, 0, 0]], np.int32)
    >>> spectrogram = np.array([[[5, 4, 3, 0, 0]]], np.float32)
    >>> stored = trimmed({"input_features": spectrogram, "feature_attention_mask": mask}, sound)
    >>> stored["input_features"].tolist(), stored["padding"].tolist(), stored["num_columns"].tolist()
    ([[[5.0, 4.0, 3.0]]], [0.0], [5])
    >>> restored(stored, sound)["input_features"].tolist()
    [[[5.0, 4.0, 3.0, 0.0, 0.0]]]
    """
    if _MASK not in features:
        return features
    spectrogram = features["input_features"]
    return {
        "input_features": spectrogram[..., : item.num_mel_frames + _EDGE],
        # The last number is padding, if any exists.
        "padding": spectrogram.reshape(-1)[-1:],
        "num_columns": np.array([spectrogram.shape[-1]], dtype=np.int64),
    }


def shortened(features: Features, num_columns: int) -> Features:
    """Return a copy of a clip's features with ``num_columns`` columns, at least its own; other media are unchanged.

    >>> mask = np.array([[1, 0, 0, 0, 0]], np.int32)
    >>> spectrogram = np.array([[[5, 4, 3, 0, 0]]], np.float32)
    >>> shortened({"input_features": spectrogram, "feature_attention_mask": mask}, 2)["input_features"].tolist()
    [[[5.0, 4.0]]]
    """
    if _MASK not in features:
        return features
    return {name: array[..., :num_columns].copy() for name, array in features.items()}


def restored(stored: Features, item: PlacedMedium) -> Features:
    """Return the features that ``trimmed`` was given."""
    if "num_columns" not in stored:
        return stored
    columns = stored["input_features"]
    num_columns = int(stored["num_columns"][0])
    spectrogram = np.full((*columns.shape[:-1], num_columns), stored["padding"][0], dtype=columns.dtype)
    spectrogram[..., : columns.shape[-1]] = columns
    mask = np.zeros((len(columns), num_columns), dtype=np.int32)
    mask[:, : item.num_mel_frames] = 1
    return {"input_features": spectrogram, _MASK: mask}

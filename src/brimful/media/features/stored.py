"""Features that a store holds instead of bytes, with the metadata of their blocks.

Of a spectrogram it holds the columns of the clip, the number in all later ones, and their count.

A clip of five seconds fills 500 of the 30,000 columns that Qwen2.5-Omni is given, or of the 3,000 of Qwen2-Audio.
Columns after its end are silence, so all their numbers are equal.
"""

import numpy as np

from brimful.errors import SettingsError
from brimful.media.features.block import Features, from_block
from brimful.media.placed import PlacedMedium
from brimful.media.reference import BadMediumError
from brimful.typing import Fingerprint

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


def metadata_of(item: PlacedMedium, fingerprint: Fingerprint, settings: Fingerprint) -> dict[str, str]:
    """Return the metadata of a block: kind and fingerprint of the medium, and fingerprint of the settings."""
    return {"kind": item.medium.kind.value, "medium": fingerprint, "settings": settings}


def read_features(item: PlacedMedium, settings: Fingerprint) -> Features:
    """Return the features of a medium in a container of features, bit for bit as they were made.

    Args:
        item: of a pack of such a store.
        settings: fingerprint of the expected settings.

    Raises:
        BadMediumError: the block is damaged, or belongs to another medium.
        SettingsError: it was made with other settings.
    """
    features, metadata = from_block(item.medium.read())
    expected = metadata_of(item, item.fingerprint, settings)
    for name in ("kind", "medium"):
        if metadata.get(name) != expected[name]:
            raise BadMediumError(f"its features belong to another medium in {item.medium.path}: write the packs again")
    if metadata.get("settings") != settings:
        raise SettingsError(
            "its features were made with another processor, or other settings of it: give the processor that the packs "
            "were made with, or none"
        )
    return restored(features, item)

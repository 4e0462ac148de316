"""Blocks of features: the arrays of one medium as bytes, in the form of safetensors.

A header of JSON says the dtype, shape and range of each array, and the metadata of the block; the
arrays follow. The metadata holds a digest of all the rest, so that a reader can verify a block.
Written here and not by the library, because the size of a block has to be known before its arrays
are.

Of a spectrogram a block holds the columns of the clip, the number in all later ones, and their
count: a clip of five seconds fills 500 of the 30,000 columns that Qwen2.5-Omni is given, or of the
3,000 of Qwen2-Audio. Columns after its end are silence, so all their numbers are equal.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from brimful.base.fingerprint import canonical_json, fingerprint_stream
from brimful.base.typing import AnyArray, Fingerprint
from brimful.errors import SettingsError
from brimful.media.medium import BadMediumError, PlacedMedium

Features: TypeAlias = dict[str, AnyArray]
"""Arrays of one medium by the name of the model's argument, its items on the first axis."""

_DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"), "F32": np.dtype("<f4"), "F16": np.dtype("<f2"),
    "I64": np.dtype("<i8"), "I32": np.dtype("<i4"), "I16": np.dtype("<i2"), "I8": np.dtype("i1"),
    "U8": np.dtype("u1"), "BOOL": np.dtype("?"),
}  # fmt: skip
"""Dtypes by their names in safetensors."""

_NAMES = {dtype: name for name, dtype in _DTYPES.items()}

_DIGEST = "xxh3_128"
"""Key of the metadata: fingerprint of the header without it, and of the arrays."""

_NO_DIGEST = "0" * 32

_LENGTH_BYTES = 8
"""Bytes before the header that give its length; the header is padded to a multiple of this
number.
"""


def block_bytes(features: Features, metadata: Mapping[str, str]) -> int:
    """Return the size of a block of arrays of these dtypes and shapes; their values are not
    read.
    """
    header = _header(features, {**metadata, _DIGEST: _NO_DIGEST})
    return _LENGTH_BYTES + len(_padded(header)) + sum(array.nbytes for array in features.values())


def to_block(features: Features, metadata: Mapping[str, str]) -> bytes:
    """Return features as a block.

    Args:
        features: of one medium.
        metadata: what the block is of; ``xxh3_128`` is added.

    >>> block = to_block({"grid": np.array([[1, 2, 2]])}, {"kind": "image"})
    >>> arrays, metadata = from_block(block)
    >>> arrays["grid"].tolist(), metadata
    ([[1, 2, 2]], {'kind': 'image'})
    """
    header = _header(features, metadata)
    # Views, not copies: the patches of one film take gigabytes.
    pieces = [
        np.ascontiguousarray(features[name]).reshape(-1).view(np.uint8).data
        for name in _ordered(features)
    ]
    digest = fingerprint_stream([canonical_json(header), *pieces])
    text = _padded(_header(features, {**metadata, _DIGEST: digest}))
    return b"".join([len(text).to_bytes(_LENGTH_BYTES, "little"), text, *pieces])


def from_block(block: bytes) -> tuple[Features, dict[str, str]]:
    """Return the arrays of a block, as views of it, and its metadata.

    Raises:
        BadMediumError: the bytes differ from what was written.
    """
    try:
        end = _LENGTH_BYTES + int.from_bytes(block[:_LENGTH_BYTES], "little")
        header = json.loads(block[_LENGTH_BYTES:end])
        metadata = header["__metadata__"]
        digest = metadata.pop(_DIGEST)
        data = memoryview(block)[end:]
        if fingerprint_stream([canonical_json(header), data]) != digest:
            raise ValueError("its digest differs")
        features = {}
        for name, facts in header.items():
            if name != "__metadata__":
                start, stop = facts["data_offsets"]
                dtype = _DTYPES[facts["dtype"]]
                features[name] = np.frombuffer(data[start:stop], dtype).reshape(facts["shape"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadMediumError(f"its features differ from what was written ({error})") from error
    return features, metadata


def _ordered(features: Features) -> list[str]:
    """Return names by descending element size, so that every array begins at a multiple of it."""
    return sorted(features, key=lambda name: (-features[name].dtype.itemsize, name))


def _header(features: Features, metadata: Mapping[str, str]) -> dict[str, Any]:
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    start = 0
    for name in _ordered(features):
        array = features[name]
        end = start + array.nbytes
        # A dtype without a name in the format is a bug of the maker, and a KeyError.
        header[name] = {
            "dtype": _NAMES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [start, end],
        }
        start = end
    return header


def _padded(header: dict[str, Any]) -> bytes:
    text = canonical_json(header)
    return text + b" " * (-len(text) % _LENGTH_BYTES)


_EDGE = 2
"""Columns after the last that still see the clip: a window is 2.5 steps wide, and centered."""

_MASK = "feature_attention_mask"


def trimmed(features: Features, item: PlacedMedium) -> Features:
    """Return the features to store: the columns of a clip that are not padding; all others
    unchanged.

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
    """Return a copy of a clip's features with ``num_columns`` columns, at least its own; other
    media are unchanged.

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
    spectrogram = np.full(
        (*columns.shape[:-1], num_columns), stored["padding"][0], dtype=columns.dtype
    )
    spectrogram[..., : columns.shape[-1]] = columns
    mask = np.zeros((len(columns), num_columns), dtype=np.int32)
    mask[:, : item.num_mel_frames] = 1
    return {"input_features": spectrogram, _MASK: mask}


def metadata_of(
    item: PlacedMedium, fingerprint: Fingerprint, settings: Fingerprint
) -> dict[str, str]:
    """Return the metadata of a block: kind and fingerprint of the medium, and fingerprint of the
    settings.
    """
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
            raise BadMediumError(
                f"its features belong to another medium in {item.medium.path}: write the packs "
                "again"
            )
    if metadata.get("settings") != settings:
        raise SettingsError(
            "its features were made with another processor, or other settings of it: give the "
            "processor that the packs were made with, or none"
        )
    return restored(features, item)

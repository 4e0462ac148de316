"""The samples under test: what the collator is given, and what must come out of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from brimful.encode import EncodedSample
from brimful.errors import SettingsError
from brimful.shards import Pack
from brimful.tokenised import read_tokenised
from brimful.typing import IGNORE_INDEX, Int64Array

__all__ = ["Case", "Feature", "Segment"]

Feature: TypeAlias = Pack | EncodedSample | Mapping[str, Any]
"""A pack or a plain sample."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One sample as the model should see it: alone.

    Attributes:
        name: how messages call it.
        ids: ``int64[n]``.
        labels: ``int64[n]``, not shifted; the first is ``IGNORE_INDEX``, as nothing predicts it.
        feature: index of the feature that holds it.
        positions: ``int64[rows, n]`` where the sample brings its own (mRoPE), else None.
    """

    name: str
    ids: Int64Array
    labels: Int64Array
    feature: int
    positions: Int64Array | None = None

    @property
    def num_targets(self) -> int:
        """Tokens that the loss counts."""
        return int(np.count_nonzero(self.labels != IGNORE_INDEX))


class Case:
    """Features for a collator, with the segments that they hold.

    A feature is a ``Pack`` or a plain sample: a mapping with ``input_ids`` and perhaps ``labels`` (without: every token is
    a target), ``seq_lengths`` (several samples in one row) and what else ``read_tokenised`` reads, or an ``EncodedSample``.
    The features are never handed out, only copies.

    >>> case = Case([{"input_ids": [5, 6, 7], "labels": [-100, 6, 7]}, {"input_ids": [8, 9]}])
    >>> [segment.labels.tolist() for segment in case.segments]
    [[-100, 6, 7], [-100, 9]]
    >>> case.copies({1: np.array([5, 5])})[1]
    {'input_ids': [5, 5]}
    """

    def __init__(self, features: Sequence[Feature]) -> None:
        if not features:
            raise SettingsError("there is nothing to verify: give at least two samples, or one pack of several")
        self._features = list(features)
        self.segments = [segment for index, feature in enumerate(self._features) for segment in _read(index, feature)]

    def __len__(self) -> int:
        return len(self._features)

    @property
    def num_tokens(self) -> int:
        """Tokens of all samples."""
        return sum(len(segment.ids) for segment in self.segments)

    @property
    def num_targets(self) -> int:
        """Targets of all samples."""
        return sum(segment.num_targets for segment in self.segments)

    @property
    def brings_labels(self) -> bool:
        """Whether the samples say what is to be predicted; where none does, every token is a target."""
        return any(isinstance(one, Pack) or one.get("labels") is not None for one in self._features)

    def part(self, start: int, stop: int | None = None) -> Case:
        """Some of the features."""
        return Case(self._features[start:stop])

    def copies(self, replaced: Mapping[int, Int64Array] | None = None) -> list[Any]:
        """Fresh features, with other tokens in some segments: ``{segment: int64[n]}``."""
        by_feature: dict[int, list[Int64Array]] = {}
        for index, segment in enumerate(self.segments):
            ids = segment.ids if replaced is None else replaced.get(index, segment.ids)
            by_feature.setdefault(segment.feature, []).append(ids)
        return [_rebuild(feature, by_feature[index]) for index, feature in enumerate(self._features)]

    def changed(self, features: Sequence[Any]) -> list[tuple[int, str]]:
        """Feature and key of everything that differs from what ``copies`` handed out."""
        found = []
        for index, (before, after) in enumerate(zip(self._features, features, strict=True)):
            old, new = _fields(before), _fields(after)
            found += [(index, key) for key in sorted({*old, *new}) if not _same(old.get(key), new.get(key))]
        return found


def _read(index: int, feature: Feature) -> Iterator[Segment]:
    if isinstance(feature, Pack):
        names = [f"sample {sample}" for sample in feature.sample_ids.tolist()]
        ids, labels, bounds = feature.input_ids.astype(np.int64), feature.labels, feature.cu_seqlens.tolist()
        positions = None
    else:
        read = read_tokenised(feature, f"sample {index}")
        ids, bounds = read.input_ids.astype(np.int64), read.cu_seqlens.tolist()
        labels = np.where(read.loss_mask, ids, IGNORE_INDEX)
        count = len(bounds) - 1
        names = [f"sample {index}" if count == 1 else f"sample {index}.{part}" for part in range(count)]
        says_something = read.rope_positions is not None or read.position_start
        positions = read.positions if says_something else None
    for name, start, stop in zip(names, bounds[:-1], bounds[1:], strict=True):
        own = labels[start:stop].copy()
        own[0] = IGNORE_INDEX
        yield Segment(name, ids[start:stop], own, index, None if positions is None else positions[:, start:stop])


def _array(values: Any) -> Int64Array:
    return np.asarray(values, dtype=np.int64)


def _rebuild(feature: Feature, segments: Sequence[Int64Array]) -> Any:
    ids = np.concatenate(segments)
    if isinstance(feature, Pack):
        return Pack(
            ids.astype(np.int32),
            feature.loss_mask.copy(),
            feature.cu_seqlens.copy(),
            feature.sample_ids.copy(),
            feature.starts.copy(),
        )
    if not isinstance(feature, Mapping):
        return replace(feature, input_ids=ids.astype(np.int32), loss_mask=feature.loss_mask.copy())
    copied = {key: _copy(value) for key, value in feature.items()}
    old = _array(feature["input_ids"])
    new = old.copy()
    new[read_tokenised(feature, "the sample").places] = ids  # padding stays where it was
    copied["input_ids"] = _like(feature["input_ids"], new)
    if feature.get("labels") is not None and not np.array_equal(old, new):
        labels = _array(feature["labels"])
        copied["labels"] = _like(feature["labels"], np.where(labels == old, new, labels))
    return copied


def _like(example: Any, values: Int64Array) -> Any:
    """The values in the type of the example: list, array or tensor."""
    if isinstance(example, np.ndarray):
        return values.astype(example.dtype)
    if hasattr(example, "new_tensor"):
        return example.new_tensor(values.tolist())
    return values.tolist()


def _copy(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.copy()
    if hasattr(value, "clone"):
        return value.clone()
    return list(value) if isinstance(value, list) else value


def _fields(feature: Any) -> dict[str, Any]:
    if isinstance(feature, Mapping):
        return dict(feature)
    names = ("input_ids", "loss_mask", "cu_seqlens", "sample_ids")
    return {name: getattr(feature, name) for name in names if hasattr(feature, name)}


def _same(one: Any, other: Any) -> bool:
    if one is None or other is None:
        return one is other
    try:
        return np.array_equal(np.asarray(one), np.asarray(other))
    except (TypeError, ValueError):
        return bool(one is other)

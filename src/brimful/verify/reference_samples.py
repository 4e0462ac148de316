"""Samples under test: input of the collator, and the tokens and labels that its batch must hold."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from brimful.base.tokenized import TARGET_MASKS, read_tokenized
from brimful.base.typing import IGNORE_INDEX, AnyArray, Int64Array
from brimful.base.wording import setting
from brimful.collate.extras import PackExtras
from brimful.encode import EncodedSample
from brimful.errors import SettingsError
from brimful.media import PlacedMedium
from brimful.store.shards import Pack, assemble_pack

Feature: TypeAlias = Pack | EncodedSample | Mapping[str, Any]
"""A pack or a plain sample."""

MediaMaker: TypeAlias = Callable[[Pack], PackExtras]
"""Maker of the features of a pack's media, such as ``MediaFeatures``."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One sample as the model should see it: alone.

    Attributes:
        name: its name in messages.
        ids: ``int64[n]``.
        labels: ``int64[n]``, not shifted; the first is ``IGNORE_INDEX``, as nothing predicts it.
        feature: index of the feature that holds it.
        positions: ``int64[rows, n]`` if the sample brings its own (mRoPE), else None.
        media: images, videos and audio, placed in the sample.
        features: inputs of the towers, made of this sample alone, by argument of the model.
    """

    name: str
    ids: Int64Array
    labels: Int64Array
    feature: int
    positions: Int64Array | None = None
    media: tuple[PlacedMedium, ...] = ()
    features: Mapping[str, AnyArray] = field(default_factory=dict)

    @property
    def num_targets(self) -> int:
        """Tokens that the loss counts."""
        return int(np.count_nonzero(self.labels != IGNORE_INDEX))


@dataclass(frozen=True, slots=True)
class Change:
    """Other tokens or other media in one segment.

    Attributes:
        segment: its index.
        ids: ``int64[n]``: its tokens; None if the values of its media change their sign instead.
    """

    segment: int
    ids: Int64Array | None = None

    @property
    def new_ids(self) -> dict[int, Int64Array]:
        """The other tokens by segment."""
        return {} if self.ids is None else {self.segment: self.ids}


UNCHANGED = Change(-1)


def without_tree(pack: Pack) -> Pack:
    """Return a pack; refuse one whose segments are not samples.

    Raises:
        SettingsError: a pack of trees.
    """
    if pack.tree is not None:
        raise SettingsError(
            f"these are packs of trees, whose segments are not samples, and verify compares samples: "
            f"give it flat packs of the same samples, {setting('share', 'none')}"
        )
    return pack


class ReferenceSamples:
    """Features for a collator, with the segments that they hold.

    A feature is a ``Pack``, an ``EncodedSample`` or a plain sample: a mapping with ``input_ids``
    and perhaps ``labels`` (without: every token is a target), ``seq_lengths`` (several samples in
    one row) and more of ``read_tokenized``. The features are never handed out, only copies.

    Args:
        features: at least one.
        media_maker: makes the towers' inputs from the media of a pack; None refuses packs with
            media.

    >>> samples = ReferenceSamples([{"input_ids": [5, 6, 7], "labels": [-100, 6, 7]}, {"input_ids": [8, 9]}])
    >>> [segment.labels.tolist() for segment in samples.segments]
    [[-100, 6, 7], [-100, 9]]
    >>> samples.copies({1: np.array([5, 5])})[1]
    {'input_ids': [5, 5]}
    """

    def __init__(self, features: Sequence[Feature], media_maker: MediaMaker | None = None) -> None:
        if not features:
            raise SettingsError(
                "nothing to verify: give at least two samples, or one pack of several"
            )
        self._features = [
            without_tree(feature) if isinstance(feature, Pack) else feature for feature in features
        ]
        self._media_maker = media_maker
        segments = [
            segment
            for index, feature in enumerate(self._features)
            for segment in _read(index, feature)
        ]
        # If one sample has positions in space, all have: a batch has rows for time, height and
        # width, or none.
        self.segments = list(map(self._with_features, segments)) if self.has_media else segments

    def __len__(self) -> int:
        return len(self._features)

    @property
    def has_media(self) -> bool:
        """True if any sample has images, videos or audio."""
        return any(isinstance(feature, Pack) and feature.media for feature in self._features)

    def _with_features(self, segment: Segment) -> Segment:
        """Return a segment with the inputs of its towers, and with positions in space if the model
        has them.
        """
        if self._media_maker is None:
            raise SettingsError(
                f"{segment.name} has media: give "
                f"{setting('media_maker', python='media_maker=MediaFeatures(…)')} with the "
                "processor of the model, or a PackCollator with media=MediaFeatures(…)"
            )
        ids, mask = segment.ids.astype(np.int32), segment.labels != IGNORE_INDEX
        extras = self._media_maker(assemble_pack([ids], [mask], [0], attachments=[segment.media]))
        arrays = {name: array for media in extras.media for name, array in media.arrays.items()}
        positions = segment.positions if extras.rope_positions is None else extras.rope_positions
        return replace(segment, features=arrays, positions=positions)

    @property
    def num_tokens(self) -> int:
        """Tokens of all samples."""
        return sum(len(segment.ids) for segment in self.segments)

    @property
    def num_targets(self) -> int:
        """Targets of all samples."""
        return sum(segment.num_targets for segment in self.segments)

    @property
    def has_labels(self) -> bool:
        """True if any sample says which tokens to predict; if none does, every token is a
        target.
        """
        return any(
            not isinstance(feature, Mapping)
            or any(feature.get(name) is not None for name in ("labels", *TARGET_MASKS))
            for feature in self._features
        )

    @cached_property
    def token_ids(self) -> Int64Array:
        """``int64[K]``: every token that occurs in the samples, once, in rising order."""
        return np.unique(np.concatenate([segment.ids for segment in self.segments]))

    def next_tokens(
        self, ids: Int64Array, steps: int = 1, *, exclude: Collection[int] = ()
    ) -> Int64Array:
        """Replace each token by the one that comes ``steps`` later among ``token_ids``; the first
        follows the last.

        Only ids that occur are used, so that no special token comes in that would change more than
        content.

        Args:
            ids: ``int64[n]``.
            steps: at least 1.
            exclude: tokens that replace no other.
        """
        candidates = self.token_ids[~np.isin(self.token_ids, list(exclude))]
        return candidates[(np.searchsorted(candidates, ids) + steps) % len(candidates)]

    def changed(self, new_ids: Mapping[int, Int64Array]) -> list[Segment]:
        """Return the segments with other tokens in some, by index."""
        return [
            replace(segment, ids=new_ids.get(index, segment.ids))
            for index, segment in enumerate(self.segments)
        ]

    def part(self, start: int, stop: int | None = None) -> ReferenceSamples:
        """Return some of the features."""
        return ReferenceSamples(self._features[start:stop], self._media_maker)

    def copies(self, new_ids: Mapping[int, Int64Array] = UNCHANGED.new_ids) -> list[Any]:
        """Return fresh features, with other tokens in some segments, by index."""
        parts: list[list[Int64Array]] = [[] for _ in self._features]
        for segment in self.changed(new_ids):
            parts[segment.feature].append(segment.ids)
        return [
            _rebuild(feature, np.concatenate(ids))
            for feature, ids in zip(self._features, parts, strict=True)
        ]


def _read(index: int, feature: Feature) -> Iterator[Segment]:
    """Yield the segments of one feature."""
    if isinstance(feature, Pack):
        names = [f"sample {sample}" for sample in feature.sample_ids.tolist()]
        ids, labels, bounds = (
            feature.input_ids.astype(np.int64),
            feature.labels,
            feature.cu_seqlens.tolist(),
        )
        positions = None
    else:
        # The collator reads plain samples by the same function, so both mean the same tokens and
        # targets.
        sample = read_tokenized(feature, f"sample {index}")
        if sample.media:
            raise SettingsError(
                f"sample {index} has features of media, which nothing here can make again, to "
                "compare: verify packs of its media, with media_maker=MediaFeatures(…)"
            )
        ids, bounds = sample.input_ids.astype(np.int64), sample.cu_seqlens.tolist()
        labels = np.where(sample.loss_mask, ids, IGNORE_INDEX)
        count = len(bounds) - 1
        names = [
            f"sample {index}" if count == 1 else f"sample {index}.{part}" for part in range(count)
        ]
        # Positions that begin at 0 and rise by 1 are the model's own: only others have to be
        # brought.
        has_own_positions = sample.rope_positions is not None or sample.position_start
        positions = sample.positions if has_own_positions else None
    for number, (name, (start, stop)) in enumerate(zip(names, pairwise(bounds), strict=True)):
        segment_labels = labels[start:stop].copy()
        segment_labels[0] = IGNORE_INDEX
        segment_positions = None if positions is None else positions[:, start:stop]
        media = feature.media if isinstance(feature, Pack) else ()
        own = tuple(
            replace(item, start=item.start - start, segment=0)
            for item in media
            if item.segment == number
        )
        yield Segment(name, ids[start:stop], segment_labels, index, segment_positions, own)


def _rebuild(feature: Feature, ids: Int64Array) -> Any:
    """Copy a feature and put these tokens into it."""
    if not isinstance(feature, Mapping):
        arrays = {name: array.copy() for name, array in fields_of(feature).items()}
        return replace(feature, **{**arrays, "input_ids": ids.astype(np.int32)})
    # Copied with everything in it, so that no collator can write into the original.
    copies = {
        key: value.clone() if hasattr(value, "clone") else deepcopy(value)
        for key, value in feature.items()
    }
    row = np.asarray(feature["input_ids"], dtype=np.int64)
    new_row = row.copy()
    new_row[read_tokenized(feature, "the sample").places] = ids  # padding keeps its places
    copies["input_ids"] = _in_type_of(feature["input_ids"], new_row)
    if feature.get("labels") is not None and not np.array_equal(row, new_row):
        # A label is its own token or IGNORE_INDEX, so labels follow their tokens.
        labels = np.asarray(feature["labels"], dtype=np.int64)
        copies["labels"] = _in_type_of(feature["labels"], np.where(labels == row, new_row, labels))
    return copies


def _in_type_of(example: Any, values: Int64Array) -> Any:
    """Convert values into the type of the example: list, array or tensor."""
    if isinstance(example, np.ndarray):
        return values.astype(example.dtype)
    if hasattr(example, "new_tensor"):
        return example.new_tensor(values.tolist())
    return values.tolist()


def fields_of(feature: Any) -> dict[str, Any]:
    """Return the values of a plain sample, or the arrays of a pack, by name."""
    if isinstance(feature, Mapping):
        return dict(feature)
    values = {item.name: getattr(feature, item.name) for item in fields(feature)}
    return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}

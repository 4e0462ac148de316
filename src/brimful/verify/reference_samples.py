"""Samples under test: input of the collator, and the tokens and labels that its batch must hold."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from brimful.base.typing import IGNORE_INDEX, TARGET_MASKS, AnyArray, Int64Array
from brimful.base.wording import counted, first_few, setting
from brimful.collate.extras import PackExtras
from brimful.doctor.batch.rewrite import next_tokens
from brimful.encode import EncodedSample
from brimful.errors import SettingsError
from brimful.media import PlacedMedium
from brimful.serve.tokenized import read_tokenized
from brimful.store.shards import Pack, assemble_pack
from brimful.trees.pack_tree import PackTree, tree_of

Feature: TypeAlias = Pack | EncodedSample | Mapping[str, Any]
"""A pack or a plain sample."""

MediaMaker: TypeAlias = Callable[[Pack], PackExtras]
"""Maker of the features of a pack's media, such as ``MediaFeatures``."""


@dataclass(frozen=True, slots=True)
class ReferenceSample:
    """One sample as the model should see it: alone.

    Attributes:
        name: its name in messages.
        ids: ``int64[n]``.
        labels: ``int64[n]``, not shifted; the first is ``IGNORE_INDEX``, as nothing predicts it.
        feature: index of the feature that holds it.
        index: its own among the samples.
        positions: ``int64[rows, n]`` if the sample brings its own (mRoPE), else None.
        media: images, videos and audio, placed in the sample.
        features: inputs of the towers, made of this sample alone, by argument of the model.
        parts: indices of the parts that it consists of, in their order: itself, or its path in a
            tree.
    """

    name: str
    ids: Int64Array
    labels: Int64Array
    feature: int
    positions: Int64Array | None = None
    media: tuple[PlacedMedium, ...] = ()
    features: Mapping[str, AnyArray] = field(default_factory=dict)
    parts: tuple[int, ...] = ()
    index: int = 0

    @property
    def num_targets(self) -> int:
        """Tokens that the loss counts."""
        return int(np.count_nonzero(self.labels != IGNORE_INDEX))


@dataclass(frozen=True, slots=True)
class Change:
    """Other tokens or other media in one part: a sample, or a segment of a tree.

    Attributes:
        part: its index.
        ids: ``int64[n]``: its tokens; None if the values of its media change their sign instead.
    """

    part: int
    ids: Int64Array | None = None

    @property
    def new_ids(self) -> dict[int, Int64Array]:
        """The other tokens by part."""
        return {} if self.ids is None else {self.part: self.ids}


UNCHANGED = Change(-1)


class ReferenceSamples:
    """Features for a collator, with the segments that they hold.

    A feature is a ``Pack``, an ``EncodedSample`` or a plain sample: a mapping with ``input_ids``
    and perhaps ``labels`` (without: every token is a target), ``seq_lengths`` (several samples in
    one row) and more of ``read_tokenized``. The features are never handed out, only copies.

    A part is what changes at once: a sample, or in trees a segment, which is part of all samples
    that share it::

        samples    5 6 7 · 5 6 8 9        parts    5 6 · 7 · 8 9       paths    0 1 · 0 2

    Args:
        features: at least one.
        media_maker: makes the towers' inputs from the media of a pack; None refuses packs with
            media.
        trees: the collator makes trees of the samples; packs of trees have theirs.

    Attributes:
        segments: the samples.
        parts: ``int64[n]`` of each part: its tokens.
        has_trees: true if samples share parts, or may.

    >>> samples = ReferenceSamples([{"input_ids": [5, 6, 7], "labels": [-100, 6, 7]}, {"input_ids": [8, 9]}])
    >>> [segment.labels.tolist() for segment in samples.segments]
    [[-100, 6, 7], [-100, 9]]
    >>> samples.copies({1: np.array([5, 5])})[1]
    {'input_ids': [5, 5]}
    """

    def __init__(
        self,
        features: Sequence[Feature],
        media_maker: MediaMaker | None = None,
        *,
        trees: bool = False,
    ) -> None:
        if not features:
            raise SettingsError(
                "nothing to verify: give at least two samples, or one pack of several"
            )
        self._features = list(features)
        self._media_maker = media_maker
        segments = [
            segment
            for index, feature in enumerate(self._features)
            for segment in _read(index, feature)
        ]
        self._trees = trees
        self.has_trees = trees or any(_tree_of(feature) is not None for feature in self._features)
        self.parts, paths, self._feature_parts = _parts_of(self._features, segments, trees=trees)
        segments = [
            replace(segment, parts=path, index=index)
            for index, (segment, path) in enumerate(zip(segments, paths, strict=True))
        ]
        # If one sample has positions in space, all have: a batch has rows for time, height and
        # width, or none.
        self.segments = list(map(self._with_features, segments)) if self.has_media else segments

    def __len__(self) -> int:
        return len(self._features)

    @property
    def has_media(self) -> bool:
        """True if any sample has images, videos or audio."""
        return any(isinstance(feature, Pack) and feature.attachments for feature in self._features)

    def _with_features(self, segment: ReferenceSample) -> ReferenceSample:
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
        arrays = {name: array for media in extras.attached for name, array in media.arrays.items()}
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
        """Replace each token by the one that comes ``steps`` later among ``token_ids``."""
        return next_tokens(ids, self.token_ids, steps, exclude=exclude)

    def packs(self) -> list[Pack]:
        """Return copies of the features; none if they are not all packs."""
        copies = self.copies()
        return copies if all(isinstance(copy, Pack) for copy in copies) else []

    def samples_of(self, part: int) -> list[int]:
        """Return the samples that have a part."""
        return [index for index, segment in enumerate(self.segments) if part in segment.parts]

    def depth_of(self, part: int, sample: int) -> int | None:
        """Return the place of a part's first token in a sample; None if the sample has no such
        part.
        """
        path = self.segments[sample].parts
        if part not in path:
            return None
        return sum(len(self.parts[one]) for one in path[: path.index(part)])

    def part_at(self, sample: int, place: int) -> int:
        """Return the part of a sample that has this token of it."""
        path = self.segments[sample].parts
        ends = np.cumsum([len(self.parts[part]) for part in path])
        return path[int(np.searchsorted(ends, place, side="right"))]

    def begins_like_sibling(self, part: int, token: int) -> bool:
        """Return true if another part with the same trunk begins with a token."""
        sample = self.segments[self.samples_of(part)[0]]
        trunk = sample.parts[: sample.parts.index(part)]
        siblings = {
            segment.parts[len(trunk)]
            for segment in self.segments
            if self.has_trees and segment.parts[: len(trunk)] == trunk and segment.parts != trunk
        }
        return token in [
            int(self.parts[one][0]) for one in siblings - {part} if len(self.parts[one])
        ]

    def name_of(self, part: int) -> str:
        """Return the name of a part in messages: of its sample, or which samples share it."""
        if not self.has_trees:
            return self.segments[part].name
        samples, size = self.samples_of(part), counted(len(self.parts[part]), "token")
        names = [self.segments[sample].name.removeprefix("sample ") for sample in samples]
        if len(names) == 1:
            return f"the branch of sample {names[0]} ({size})"
        return f"the trunk of samples {first_few(names, len(names))} ({size})"

    def changed(self, new_ids: Mapping[int, Int64Array]) -> list[ReferenceSample]:
        """Return the segments with other tokens in some parts, by index of the part."""
        parts = [new_ids.get(index, ids) for index, ids in enumerate(self.parts)]
        return [
            replace(segment, ids=np.concatenate([parts[part] for part in segment.parts]))
            for segment in self.segments
        ]

    def part(self, start: int, stop: int | None = None) -> "ReferenceSamples":
        """Return some of the features."""
        return ReferenceSamples(self._features[start:stop], self._media_maker, trees=self._trees)

    def copies(self, new_ids: Mapping[int, Int64Array] = UNCHANGED.new_ids) -> list[Any]:
        """Return fresh features, with other tokens in some parts, by index."""
        parts = [new_ids.get(index, ids) for index, ids in enumerate(self.parts)]
        return [
            _rebuild(feature, np.concatenate([parts[part] for part in own_parts]))
            for feature, own_parts in zip(self._features, self._feature_parts, strict=True)
        ]


def _tree_of(feature: Feature) -> PackTree | None:
    return tree_of(feature) if isinstance(feature, Pack) and feature.sharing else None


_Paths: TypeAlias = list[tuple[int, ...]]
"""Indices of parts, in the order of their tokens."""


def _parts_of(
    features: Sequence[Feature], segments: Sequence[ReferenceSample], *, trees: bool
) -> tuple[list[Int64Array], _Paths, _Paths]:
    """Return the parts of all samples, the path of each sample, and the parts of each feature."""
    parts: list[Int64Array] = []
    paths: _Paths = []
    feature_parts: _Paths = []
    cuts = _cuts(segments) if trees else [[len(segment.ids)] for segment in segments]
    by_tokens: dict[bytes, int] = {}
    for index, feature in enumerate(features):
        if isinstance(feature, Pack) and (tree := _tree_of(feature)) is not None:
            first = len(parts)
            parts += np.split(feature.input_ids.astype(np.int64), feature.cu_seqlens[1:-1])
            paths += [
                tuple((first + tree.paths().row(sample)).tolist())
                for sample in range(tree.num_samples)
            ]
            feature_parts.append(tuple(range(first, len(parts))))
            continue
        first_path = len(paths)
        for segment, ends in zip(segments[first_path:], cuts[first_path:], strict=True):
            if segment.feature != index:
                break
            path = []
            for start, end in pairwise([0, *ends]):
                # Samples that share all tokens so far share the part.
                key = segment.ids[:end].tobytes() if trees else b"%d" % len(parts)
                if key not in by_tokens:
                    by_tokens[key] = len(parts)
                    parts.append(segment.ids[start:end])
                path.append(by_tokens[key])
            paths.append(tuple(path))
        feature_parts.append(tuple(part for path in paths[first_path:] for part in path))
    return parts, paths, feature_parts


def _cuts(segments: Sequence[ReferenceSample]) -> list[list[int]]:
    """Return where each sample parts from any other, and its end."""
    return [
        sorted({_num_shared(segment.ids, other.ids) for other in segments} - {0})
        for segment in segments
    ]


def _num_shared(first: Int64Array, second: Int64Array) -> int:
    """Return the tokens with which both begin."""
    size = min(len(first), len(second))
    differs = first[:size] != second[:size]
    return int(differs.argmax()) if differs.any() else size


def _read(index: int, feature: Feature) -> Iterator[ReferenceSample]:
    """Yield the segments of one feature."""
    if isinstance(feature, Pack):
        feature = feature.flat()
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
        if sample.attached:
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
        media = feature.attachments if isinstance(feature, Pack) else ()
        own = tuple(
            replace(item, start=item.start - start, segment=0)
            for item in media
            if item.segment == number
        )
        yield ReferenceSample(name, ids[start:stop], segment_labels, index, segment_positions, own)


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
    new_row[read_tokenized(feature, "the sample").indices] = ids  # padding keeps its places
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

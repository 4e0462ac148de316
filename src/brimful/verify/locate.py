"""Places of samples in a batch that any collator made, found by markers and tokens and not by the
collator's claims.

Tokens alone do not always tell: ``a b`` + ``a b`` next to ``a b a b`` can be cut in two ways, a
sample of one token may stand inside another, and a sample of one repeated token looks like padding.
So the collator is also given the same samples with a token of its own at every place. A collator
that does not look at tokens lays both out alike::

    samples    7 7 · 7 7 7        batch     7 7 7 7 7 | 7 7        where is which, and what is padding?
    marked     0 1 · 2 3 4                  0 1 2 3 4 | 7 7        certain
"""

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count, islice
from typing import Any

import numpy as np
import torch

from brimful.base.typing import IGNORE_INDEX, BoolArray, Int64Array
from brimful.errors import CollateError
from brimful.verify.reference_samples import ReferenceSamples, Segment

_MAX_TRIES = 20_000
"""Places that one search tries: samples that need more are too much alike for a certain answer."""

_MAX_SEARCHED_SAMPLES = 400
"""Samples that one search takes: it recurses once for each of them."""


@dataclass(frozen=True, slots=True)
class Place:
    """Row and columns of a sample."""

    row: int
    start: int
    stop: int

    @property
    def index(self) -> tuple[int, slice]:
        """Index of the sample's tokens in an array of ``[B, T]``."""
        return self.row, slice(self.start, self.stop)


@dataclass(frozen=True)
class SampleLayout:
    """Places of all samples in a batch.

    Attributes:
        places: of each segment; None for one that is not in the batch as a whole.
        repeated: segments that the batch holds more than once.
        fragments: ``bool[B, T]``: tokens that certainly belong to samples, but lie in no place.
        certain: true if the samples cannot be laid out in another way.
    """

    places: tuple[Place | None, ...]
    repeated: tuple[int, ...]
    fragments: BoolArray
    certain: bool


def lay_out_markers(
    collate_ids: Callable[[list[Any]], Int64Array],
    samples: ReferenceSamples,
    *,
    media_ids: Collection[int],
    reserved_tokens: Collection[int],
) -> SampleLayout | None:
    """Collate the samples with a token of its own at every place.

    Args:
        collate_ids: from features to ``input_ids`` of their batch, ``int64[B, T]``.
        samples: the samples.
        media_ids: tokens that stay unchanged, as collators look for them (images).
        reserved_tokens: tokens that may mean something: tokens of the batch, special tokens.

    Returns:
        None if the collator refuses such tokens, or if a sample has none but media tokens.
    """
    fresh_tokens = (token for token in count() if token not in {*media_ids, *reserved_tokens})
    marked_ids: list[Int64Array] = []
    for segment in samples.segments:
        ids = segment.ids.copy()
        may_change = ~np.isin(ids, list(media_ids))
        if not may_change.any():
            return None
        ids[may_change] = list(islice(fresh_tokens, int(may_change.sum())))
        marked_ids.append(ids)
    try:
        rows = collate_ids(samples.copies(dict(enumerate(marked_ids))))
    except Exception:  # a collator may refuse foreign tokens in any way it likes
        return None
    # A marker occurs once in the samples. Only a whole segment has a place; the markers of a part,
    # or of a repeat, stay among the fragments.
    fragments = np.isin(rows, np.concatenate(marked_ids)) & ~np.isin(rows, list(media_ids))
    places: list[Place | None] = []
    repeats = []
    for index, ids in enumerate(marked_ids):
        occurrences = _occurrences(rows, ids)
        places.append(occurrences[0] if occurrences else None)
        if occurrences:
            fragments[occurrences[0].index] = False
        if len(occurrences) > 1:
            repeats.append(index)
    return SampleLayout(tuple(places), tuple(repeats), fragments, True)


def locate_with_markers(
    rows: Int64Array, segments: Sequence[Segment], markers: SampleLayout | None
) -> SampleLayout:
    """Return the layout that the markers show if the batch agrees with it; else search for the
    tokens.

    A collator may look at tokens, and then lay markers out in another way. So the markers are
    believed if every sample is found with its own tokens at its markers' place. If some are
    missing, a complete layout is preferred.

    Args:
        rows: ``int64[B, T]``: tokens of the batch.
        segments: of the samples in this batch.
        markers: layout of a batch of markers; None if the collator refuses them.
    """
    is_believed = (
        markers is not None
        and markers.fragments.shape == rows.shape
        and all(
            place is None or np.array_equal(rows[place.index], segment.ids)
            for place, segment in zip(markers.places, segments, strict=True)
        )
    )
    if markers is not None and is_believed and None not in markers.places:
        return markers
    # Segments that differ in labels or positions alone are not interchangeable: the batch treats
    # them differently.
    identities = [
        (item.ids.tobytes(), item.labels.tobytes(), str(item.positions)) for item in segments
    ]
    layout = locate(rows, [segment.ids for segment in segments], identities)
    return markers if markers is not None and is_believed and None in layout.places else layout


def locate(
    rows: Int64Array,
    segment_ids: Sequence[Int64Array],
    identities: Sequence[Hashable] | None = None,
) -> SampleLayout:
    """Search for each segment's tokens in the rows, each token claimed once, with one kind of token
    as the remainder::

        rows      5 6 7 | 8 9 | 0 0        segments  5 6 7 · 8 9
        places    row 0, 0 to 3 · row 0, 3 to 5      remainder: the two zeros

    Args:
        rows: ``int64[B, T]``.
        segment_ids: ``int64[n]`` of each segment.
        identities: segments with equal values here may change places, as nothing tells them apart;
            by tokens if None.

    Returns:
        Without places if there is no such layout.

    >>> def describe(layout):
    ...     return [place and (place.start, place.stop) for place in layout.places], layout.certain
    >>> describe(locate(np.array([[5, 6, 7, 8, 9, 0, 0]]), [np.array([5, 6, 7]), np.array([8, 9])]))
    ([(0, 3), (3, 5)], True)
    >>> row, ab = np.array([[1, 2, 1, 2, 1, 2, 1, 2]]), np.array([1, 2])
    >>> describe(locate(row, [ab, ab, np.tile(ab, 2)]))[1]
    False
    """
    if identities is None:
        identities = [ids.tobytes() for ids in segment_ids]
    layouts = _complete_layouts(rows, segment_ids, identities)
    places = layouts[0] if layouts else (None,) * len(segment_ids)
    return SampleLayout(places, (), np.zeros(rows.shape, dtype=bool), len(layouts) == 1)


def _occurrences(rows: Int64Array, ids: Int64Array) -> list[Place]:
    """Return every place that holds the tokens."""
    if rows.shape[1] < len(ids):
        return []
    windows = np.lib.stride_tricks.sliding_window_view(rows, len(ids), axis=1)
    return [
        Place(row, start, start + len(ids))
        for row, start in np.argwhere((windows == ids).all(axis=-1)).tolist()
    ]


def _complete_layouts(
    rows: Int64Array, segment_ids: Sequence[Int64Array], identities: Sequence[Hashable]
) -> list[tuple[Place | None, ...]]:
    """Return up to two layouts of all segments whose remainder is of one kind; two if the search
    takes too long.
    """
    count = len(segment_ids)
    candidates = [_occurrences(rows, ids) for ids in segment_ids]
    if count > _MAX_SEARCHED_SAMPLES or not all(candidates):
        return []
    # The segment with the fewest candidates decides first, which cuts the tree of tries near its
    # root.
    order = sorted(
        range(count), key=lambda index: (len(candidates[index]), -len(segment_ids[index]), index)
    )
    free = np.ones(rows.shape, dtype=bool)
    places: list[Place | None] = [None] * count
    placed_twins: dict[Hashable, list[Place]] = {}
    layouts: list[tuple[Place | None, ...]] = []
    num_tries = 0

    def place_from(depth: int) -> None:
        nonlocal num_tries
        if depth == count:
            if len(np.unique(rows[free])) <= 1:
                layouts.append(tuple(places))
            return
        index = order[depth]
        twins = placed_twins.setdefault(identities[index], [])
        for place in candidates[index]:
            # Interchangeable segments lie in the order of the batch, so exchanging them is not a
            # second layout.
            if twins and (place.row, place.start) < (twins[-1].row, twins[-1].start):
                continue
            num_tries += 1
            if len(layouts) > 1 or num_tries > _MAX_TRIES:
                return
            if not free[place.index].all():
                continue
            # Undone after the recursion: each try sees the tokens that the segments above it claim,
            # and no others.
            free[place.index] = False
            places[index] = place
            twins.append(place)
            place_from(depth + 1)
            twins.pop()
            free[place.index] = True

    place_from(0)
    # A search that was cut short has not ruled out a second layout.
    return layouts * 2 if num_tries > _MAX_TRIES else layouts


@dataclass(frozen=True)
class CollatedBatch:
    """A batch with the places of its samples.

    Attributes:
        kwargs: keyword arguments of the model.
        ids: ``int64[B, T]``.
        layout: places of the samples.
    """

    kwargs: dict[str, Any]
    ids: Int64Array
    layout: SampleLayout

    @property
    def shifted(self) -> bool:
        """True if the labels came as ``shift_labels``."""
        return self.kwargs.get("shift_labels") is not None

    @cached_property
    def targets(self) -> Int64Array | None:
        """``int64[B, T]``: the token that the logits of each position are trained to predict; None
        without labels. Labels of ``labels`` are shifted by the model, ``shift_labels`` are shifted
        already.
        """
        if self.shifted:
            return self.per_token("shift_labels")
        if (labels := self.per_token("labels")) is None:
            return None
        # The model compares the logits of each position with the label of the next one.
        return np.pad(labels[:, 1:], ((0, 0), (0, 1)), constant_values=IGNORE_INDEX)

    @cached_property
    def free(self) -> BoolArray:
        """``bool[B, T]``: tokens in no sample's place."""
        free = np.ones(self.ids.shape, dtype=bool)
        for _, place in self.located:
            free[place.index] = False
        return free

    @property
    def located(self) -> list[tuple[int, Place]]:
        """Index and place of each segment that is in the batch as a whole."""
        return [
            (index, place) for index, place in enumerate(self.layout.places) if place is not None
        ]

    @property
    def padding(self) -> BoolArray:
        """``bool[B, T]``: tokens of no sample, if all are the same; none otherwise, as that is not
        padding.
        """
        remainder = self.free & ~self.layout.fragments
        return remainder if len(np.unique(self.ids[remainder])) <= 1 else np.zeros_like(remainder)

    @property
    def num_targets(self) -> int:
        """Targets of the batch."""
        return 0 if self.targets is None else int(np.count_nonzero(self.targets != IGNORE_INDEX))

    def per_token(self, name: str) -> Int64Array | None:
        """Return a keyword argument that has one number for each token.

        Args:
            name: such as ``position_ids``; one row serves all rows of the batch.

        Returns:
            ``int64[B, T]``, or ``int64[rows, B, T]`` if it has three dimensions; None if the batch
            does not have it.

        Raises:
            CollateError: another shape than ``input_ids``.
        """
        if (value := self.kwargs.get(name)) is None:
            return None
        numbers, shape = as_integers(value), self.ids.shape
        try:
            return np.broadcast_to(numbers, (*numbers.shape[:-2], *shape))
        except ValueError:
            raise CollateError(
                f"{name} of the batch have the shape {numbers.shape} and input_ids {shape}"
            ) from None


def as_integers(value: Any) -> Int64Array:
    """Convert a tensor, an array or a list to ``int64`` in host memory."""
    numbers = value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
    return numbers.astype(np.int64)


def as_rows(value: Any) -> Int64Array:
    """Convert a tensor of one or two dimensions to ``int64[B, T]``."""
    return np.atleast_2d(as_integers(value))

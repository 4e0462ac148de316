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
from itertools import count, islice
from typing import Any

import numpy as np

from brimful.base.typing import BoolArray, Int64Array
from brimful.verify.reference_samples import ReferenceSample, ReferenceSamples

_MAX_TRIES = 20_000
"""Places that one search tries: samples that need more are too much alike for a certain answer."""

_MAX_SEARCHED_SAMPLES = 400
"""Samples that one search takes: it recurses once for each of them."""


@dataclass(frozen=True, slots=True)
class Place:
    """Row and columns of a sample: from ``start`` to ``stop``, or the ones of its path in a tree.

    Attributes:
        row: of the batch.
        start, stop: its first column, and the column after its last.
        path: ``int64[n]``: the column of each of its tokens; None if they lie side by side.
    """

    row: int
    start: int
    stop: int
    path: Int64Array | None = None

    @property
    def index(self) -> tuple[int, slice | Int64Array]:
        """Index of the sample's tokens in an array of ``[B, T]``."""
        return self.row, slice(self.start, self.stop) if self.path is None else self.path

    @property
    def columns(self) -> Int64Array:
        """``int64[n]``: the column of each token."""
        return np.arange(self.start, self.stop) if self.path is None else self.path


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
    marked_parts: dict[int, Int64Array] = {}
    for index, part in enumerate(samples.parts):
        ids = part.copy()
        may_change = ~np.isin(ids, list(media_ids))
        ids[may_change] = list(islice(fresh_tokens, int(may_change.sum())))
        marked_parts[index] = ids
    marked_ids = [segment.ids for segment in samples.changed(marked_parts)]
    if any(np.isin(ids, list(media_ids)).all() for ids in marked_ids):
        return None
    try:
        rows = collate_ids(samples.copies(marked_parts))
    except Exception:  # a collator may refuse foreign tokens in any way it likes
        return None
    if samples.has_trees:
        return _lay_out_paths(rows, samples, marked_ids, media_ids)
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


def _lay_out_paths(
    rows: Int64Array,
    samples: ReferenceSamples,
    marked_ids: Sequence[Int64Array],
    media_ids: Collection[int],
) -> SampleLayout:
    """Find each sample's path by its markers, the last one first, in a row of trees or of samples.

    A marker may occur several times: a branch may repeat the last token of its trunk, and samples
    that share a trunk may lie one by one. The nearest before the next token of the sample is its
    own.
    """
    width, flat = rows.shape[1], rows.reshape(-1)
    order = np.argsort(flat, kind="stable")
    sorted_ids, media = flat[order], list(media_ids)
    places: list[Place | None] = [None] * len(marked_ids)
    is_used = np.zeros(len(flat), dtype=bool)
    # If samples lie one by one, the end of a short one is a token of longer ones too.
    for index in sorted(range(len(marked_ids)), key=lambda index: -len(marked_ids[index])):
        segment, ids = samples.segments[index], marked_ids[index]
        path = np.full(len(ids), -1, dtype=np.int64)
        next_place = -1
        for number in np.flatnonzero(~np.isin(ids, media))[::-1].tolist():
            copies = order[slice(*np.searchsorted(sorted_ids, [ids[number], ids[number] + 1]))]
            if not len(copies):
                break
            if next_place < 0:
                next_place = next((place for place in copies if not is_used[place]), copies[0])
            else:
                nearest = max(0, int(np.searchsorted(copies, next_place)) - 1)
                next_place = copies[nearest]
            path[number] = next_place
        else:
            _place_media(path, ids, flat, [len(samples.parts[part]) for part in segment.parts])
        is_whole = (path >= 0).all() and (path // width == path[0] // width).all()
        if is_whole and np.array_equal(flat[path], ids):
            is_used[path] = True
            columns = path % width
            row = int(path[0] // width)
            places[index] = Place(row, int(columns[0]), int(columns[-1]) + 1, columns)
    fragments = np.isin(flat, np.concatenate(marked_ids)) & ~np.isin(flat, media) & ~is_used
    repeats = [
        index
        for index, (place, ids) in enumerate(zip(places, marked_ids, strict=True))
        if place is not None and np.isin(flat[fragments], ids[-1:]).any()
    ]
    return SampleLayout(tuple(places), tuple(repeats), fragments.reshape(rows.shape), True)


def _place_media(path: Int64Array, ids: Int64Array, flat: Int64Array, sizes: Sequence[int]) -> None:
    """Place the tokens of media in a path, in the same part as a marked token before or after them.

    Args:
        path: ``int64[n]``: -1 at tokens of media.
        ids: ``int64[n]``: tokens of the sample.
        flat: tokens of the batch.
        sizes: tokens of each part of the sample.
    """
    for end, size in zip(np.cumsum(sizes).tolist(), sizes, strict=True):
        numbers = np.arange(end - size, end)
        anchors = numbers[path[numbers] >= 0]
        for number in numbers[path[numbers] < 0].tolist():
            # A token before it is nearer than one after it, which a branch may repeat.
            neighbors = [*anchors[anchors < number][-1:], *anchors[anchors > number][:1]]
            for neighbor in [*neighbors, number - 1]:
                place = path[neighbor] + number - neighbor
                if path[neighbor] >= 0 and 0 <= place < len(flat) and flat[place] == ids[number]:
                    path[number] = place
                    break


def locate_with_markers(
    rows: Int64Array,
    segments: Sequence[ReferenceSample],
    markers: SampleLayout | None,
    visible: BoolArray | None = None,
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
        visible: ``bool[T, T]``: tokens that each token of a row of trees sees, as the batch says
            it; None for other rows.
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
    if visible is not None:
        layout = _locate_paths(rows, segments, visible)
        return markers if markers is not None and is_believed and None in layout.places else layout
    # Segments that differ in labels or positions alone are not interchangeable: the batch treats
    # them differently.
    identities = [
        (item.ids.tobytes(), item.labels.tobytes(), str(item.positions)) for item in segments
    ]
    layout = locate(rows, [segment.ids for segment in segments], identities)
    return markers if markers is not None and is_believed and None in layout.places else layout


def _locate_paths(
    rows: Int64Array, segments: Sequence[ReferenceSample], visible: BoolArray
) -> SampleLayout:
    """Find each sample as what one token of a row sees."""
    width = rows.shape[1]
    paths: dict[bytes, Int64Array] = {}
    for position in range(width):
        path = np.flatnonzero(visible[position])
        paths.setdefault(rows[0, path].tobytes(), path)
    places: list[Place | None] = []
    for segment in segments:
        columns = paths.get(segment.ids.tobytes())
        place = (
            None if columns is None else Place(0, int(columns[0]), int(columns[-1]) + 1, columns)
        )
        places.append(place)
    return SampleLayout(tuple(places), (), np.zeros(rows.shape, dtype=bool), len(rows) == 1)


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

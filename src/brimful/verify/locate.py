"""Places of samples in a batch that any collator made, found by markers and tokens and not by the collator's claims."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from brimful.ragged import starts_of
from brimful.typing import BoolArray, Int64Array
from brimful.verify.reference_samples import Segment

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


def locate_with_markers(
    rows: Int64Array, segments: Sequence[Segment], segment_ids: Sequence[Int64Array], markers: SampleLayout | None
) -> SampleLayout:
    """Return the layout that the markers show if the batch agrees with it; else search for the tokens.

    A collator may look at tokens, and then lay markers out in another way. So the markers are believed if every
    sample is found with its own tokens at its markers' place. If some are missing, a complete layout is preferred.

    Args:
        rows: ``int64[B, T]``: tokens of the batch.
        segments: of the samples.
        segment_ids: tokens of each segment in this batch, which may be others than the segment's own.
        markers: layout of a batch of markers; None if the collator refuses them.
    """
    # Segments that differ in labels or positions alone are not interchangeable: the batch treats them differently.
    identities = [
        (ids.tobytes(), segment.labels.tobytes(), None if segment.positions is None else segment.positions.tobytes())
        for segment, ids in zip(segments, segment_ids, strict=True)
    ]
    if markers is None or not _agrees(rows, segment_ids, markers):
        return locate(rows, segment_ids, identities)
    if None not in markers.places:
        return markers
    search_layout = locate(rows, segment_ids, identities)
    return markers if None in search_layout.places else search_layout


def _agrees(rows: Int64Array, segment_ids: Sequence[Int64Array], markers: SampleLayout) -> bool:
    """Return true if each segment's tokens lie at its markers' place."""
    return markers.fragments.shape == rows.shape and all(
        place is None or np.array_equal(rows[place.index], ids)
        for place, ids in zip(markers.places, segment_ids, strict=True)
    )


def locate(
    rows: Int64Array, segment_ids: Sequence[Int64Array], identities: Sequence[Hashable] | None = None
) -> SampleLayout:
    """Search for each segment's tokens in the rows, each token claimed once, with one kind of token as the remainder::

        rows      5 6 7 | 8 9 | 0 0        segments  5 6 7 · 8 9
        places    row 0, 0 to 3 · row 0, 3 to 5      remainder: the two zeros

    Without such a layout, the longest segments are placed first, each nearest to its place in the segments'
    concatenation.

    Args:
        rows: ``int64[B, T]``.
        segment_ids: ``int64[n]`` of each segment.
        identities: segments with equal values here may change places, as nothing tells them apart; by tokens if None.

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
    candidates = [_occurrences(rows, ids) for ids in segment_ids]
    layouts = _complete_layouts(rows, segment_ids, identities, candidates)
    if layouts:
        return SampleLayout(layouts[0], (), np.zeros(rows.shape, dtype=bool), len(layouts) == 1)
    return _greedy_layout(rows, segment_ids, candidates)


def _occurrences(rows: Int64Array, ids: Int64Array) -> list[Place]:
    """Return every place that holds the tokens."""
    if rows.shape[1] < len(ids):
        return []
    windows = np.lib.stride_tricks.sliding_window_view(rows, len(ids), axis=1)
    return [Place(row, start, start + len(ids)) for row, start in np.argwhere((windows == ids).all(axis=-1)).tolist()]


def _complete_layouts(
    rows: Int64Array,
    segment_ids: Sequence[Int64Array],
    identities: Sequence[Hashable],
    candidates: Sequence[list[Place]],
) -> list[tuple[Place | None, ...]]:
    """Return up to two layouts of all segments whose remainder is of one kind; two if the search takes too long."""
    count = len(segment_ids)
    if count > _MAX_SEARCHED_SAMPLES or not all(candidates):
        return []
    # The segment with the fewest candidates decides first, which cuts the tree of tries near its root.
    order = sorted(range(count), key=lambda index: (len(candidates[index]), -len(segment_ids[index]), index))
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
            # Interchangeable segments lie in the order of the batch, so exchanging them is not a second layout.
            if twins and (place.row, place.start) < (twins[-1].row, twins[-1].start):
                continue
            num_tries += 1
            if len(layouts) > 1 or num_tries > _MAX_TRIES:
                return
            if not free[place.index].all():
                continue
            # Undone after the recursion: each try sees the tokens that the segments above it claim, and no others.
            free[place.index] = False
            places[index] = place
            twins.append(place)
            place_from(depth + 1)
            twins.pop()
            free[place.index] = True

    place_from(0)
    # A search that was cut short has not ruled out a second layout.
    return layouts * 2 if num_tries > _MAX_TRIES else layouts


def _greedy_layout(
    rows: Int64Array, segment_ids: Sequence[Int64Array], candidates: Sequence[list[Place]]
) -> SampleLayout:
    """Place the longest segments first, each at the nearest of the candidates that are still free."""
    free = np.ones(rows.shape, dtype=bool)
    places: list[Place | None] = [None] * len(segment_ids)
    width = rows.shape[1]
    expected_starts = starts_of(np.array([len(ids) for ids in segment_ids])).tolist()
    for index in sorted(range(len(segment_ids)), key=lambda index: -len(segment_ids[index])):
        free_places = [place for place in candidates[index] if free[place.index].all()]
        if free_places:
            nearest = min(free_places, key=lambda place: abs(place.row * width + place.start - expected_starts[index]))
            free[nearest.index] = False
            places[index] = nearest
    # Tokens that no segment claimed keep their value; the others match nothing.
    remainder = np.where(free, rows, np.iinfo(np.int64).min)
    repeats = tuple(index for index, ids in enumerate(segment_ids) if places[index] and _occurrences(remainder, ids))
    # A repeat explains why a segment fits in two places; a repeat of one token could as well be padding.
    certain = all(len(options) <= 1 or index in repeats for index, options in enumerate(candidates))
    certain &= not any(len(np.unique(segment_ids[index])) == 1 for index in repeats)
    return SampleLayout(tuple(places), repeats, np.zeros(rows.shape, dtype=bool), certain)

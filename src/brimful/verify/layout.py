"""Where the samples lie in a batch that any collator made: found by markers and tokens, whatever the collator says."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from brimful.errors import CollateError
from brimful.typing import IGNORE_INDEX, BoolArray, Int64Array
from brimful.verify.case import Case, Segment
from brimful.verify.markers import Marked, Place

__all__ = ["Collated", "Found", "Place", "as_rows", "collate", "expected_targets", "locate"]

_MOST_TRIES, _MOST_SEARCHED = 20_000, 400
"""Of the search for a layout: places tried, as samples that need more look so much alike that nothing would be certain,
and samples, as it goes as deep as there are samples."""


@dataclass(frozen=True)
class Found:
    """Where samples lie.

    Attributes:
        places: of each segment; None for one that is not in the batch as a whole.
        repeated: segments that are there more than once.
        pieces: ``bool[B, T]``: tokens that are certainly of samples, and in no place.
        certain: there is no other way to lay them out.
    """

    places: tuple[Place | None, ...]
    repeated: tuple[int, ...]
    pieces: BoolArray
    certain: bool


@dataclass(frozen=True)
class Collated:
    """A batch, and where its samples are.

    Attributes:
        kwargs: what the model is called with.
        ids: ``int64[B, T]``.
        targets: ``int64[B, T]``: what the logits there are trained to predict; None without labels. Labels of
            ``labels`` are shifted by the model, those of ``shift_labels`` are already.
        shifted: the labels came as ``shift_labels``.
        found: where its samples are.
        free: ``bool[B, T]``: tokens of no sample, or of one that is in its place already.
    """

    kwargs: dict[str, Any]
    ids: Int64Array
    targets: Int64Array | None
    shifted: bool
    found: Found
    free: BoolArray

    @property
    def places(self) -> tuple[Place | None, ...]:
        """Of each segment; None for one that is not in the batch as a whole."""
        return self.found.places

    @property
    def padding(self) -> BoolArray:
        """``bool[B, T]``: tokens of no sample, if all of them are the same; else none, for they are no padding."""
        rest = self.free & ~self.found.pieces
        return rest if len(np.unique(self.ids[rest])) <= 1 else np.zeros_like(rest)

    def samples_in_row(self, row: int) -> int:
        """Samples that share the row."""
        return sum(place is not None and place.row == row for place in self.places)

    @property
    def packed(self) -> bool:
        """Whether any row holds more than one sample."""
        return any(self.samples_in_row(row) > 1 for row in range(len(self.ids)))


def collate(
    collator: Callable[[list[Any]], Mapping[str, Any]],
    case: Case,
    *,
    device: Any,
    marked: Marked | None,
    replaced: Mapping[int, Int64Array] | None = None,
) -> Collated:
    """Call the collator with copies of the case, and find the samples in what it returns.

    Args:
        collator: as in ``verify_packing``.
        case: the samples.
        device: of the model.
        marked: where the collator puts markers; None if it refuses them.
        replaced: other tokens of some segments.

    Raises:
        CollateError: the batch is no mapping, or has no ``input_ids``.
    """
    import torch

    made = collator(case.copies(replaced))
    if not isinstance(made, Mapping) or "input_ids" not in made:
        returned = sorted(map(str, made)) if isinstance(made, Mapping) else type(made).__name__
        raise CollateError(f"the collator must return a mapping with 'input_ids' and returned {returned}")
    kwargs: dict[str, Any] = {}
    for key, value in made.items():
        value = torch.from_numpy(value) if isinstance(value, np.ndarray) else value
        kwargs[str(key)] = value.to(device) if isinstance(value, torch.Tensor) else value
    if not isinstance(kwargs["input_ids"], torch.Tensor):
        raise CollateError(f"input_ids of the batch must be a tensor and are a {type(kwargs['input_ids']).__name__}")
    ids = as_rows(kwargs["input_ids"])
    segments = [
        segment.ids if replaced is None else replaced.get(index, segment.ids)
        for index, segment in enumerate(case.segments)
    ]
    found = _place(ids, segments, _twins(case.segments, segments), marked)
    free = np.ones(ids.shape, dtype=bool)
    for place in found.places:
        if place is not None:
            free[place.row, place.start : place.stop] = False
    shifted = kwargs.get("shift_labels") is not None
    targets = None
    if shifted:
        targets = as_rows(kwargs["shift_labels"])
    elif kwargs.get("labels") is not None:
        labels = as_rows(kwargs["labels"])
        targets = np.full_like(labels, IGNORE_INDEX)
        targets[:, :-1] = labels[:, 1:]
    if targets is not None and targets.shape != ids.shape:
        raise CollateError(f"labels of the batch have the shape {targets.shape} and input_ids {ids.shape}")
    return Collated(kwargs, ids, targets, shifted, found, free)


def as_rows(tensor: Any) -> Int64Array:
    """A tensor of one or two dimensions as ``int64[B, T]``."""
    values = tensor.detach().cpu().numpy() if hasattr(tensor, "detach") else np.asarray(tensor)
    return np.atleast_2d(values.astype(np.int64))


def _place(rows: Int64Array, wanted: Sequence[Int64Array], twins: Sequence[Hashable], marked: Marked | None) -> Found:
    """Places as the markers say, where the batch agrees with them; else by searching for the tokens.

    A collator may look at tokens, and then lay markers out in another way. So the markers are believed where every
    sample is found with its own tokens at its markers' place; where some are missing, a complete layout goes before.
    """
    agrees = marked is not None and marked.shape == rows.shape
    if marked is not None and agrees:
        agrees = all(
            place is None or np.array_equal(rows[place.row, place.start : place.stop], ids)
            for place, ids in zip(marked.places, wanted, strict=True)
        )
        if agrees and None not in marked.places:
            return Found(marked.places, marked.repeated, marked.pieces, True)
    searched = locate(rows, wanted, twins)
    if marked is not None and agrees and None in searched.places:
        return Found(marked.places, marked.repeated, marked.pieces, True)
    return searched


def locate(rows: Int64Array, wanted: Sequence[Int64Array], twins: Sequence[Hashable] | None = None) -> Found:
    """Search for each segment's tokens in the rows, each token claimed once, with one kind of token left over::

        rows      5 6 7 | 8 9 | 0 0        segments  5 6 7 · 8 9
        places    row 0, 0 to 3 · row 0, 3 to 5      left over: the two zeros

    Where there is no such layout, the longest segments are placed first, each nearest to where it would lie if all
    stood behind each other.

    Args:
        rows: ``int64[B, T]``.
        wanted: ``int64[n]`` of each segment.
        twins: segments with equal values here may change places, as nothing tells them apart; by tokens if None.

    >>> def show(found):
    ...     return [place and (place.start, place.stop) for place in found.places], found.certain
    >>> show(locate(np.array([[5, 6, 7, 8, 9, 0, 0]]), [np.array([5, 6, 7]), np.array([8, 9])]))
    ([(0, 3), (3, 5)], True)
    >>> row, ab = np.array([[1, 2, 1, 2, 1, 2, 1, 2]]), np.array([1, 2])
    >>> show(locate(row, [ab, ab, np.tile(ab, 2)]))[1]
    False
    """
    names = [ids.tobytes() for ids in wanted] if twins is None else list(twins)
    options = [_occurrences(rows, ids) for ids in wanted]
    layouts = _layouts(rows, wanted, names, options)
    if layouts:
        return Found(layouts[0], (), np.zeros(rows.shape, dtype=bool), len(layouts) == 1)
    return _nearest(rows, wanted, options)


def _occurrences(rows: Int64Array, ids: Int64Array) -> list[Place]:
    """Every place where the tokens stand."""
    if rows.shape[1] < len(ids):
        return []
    windows = np.lib.stride_tricks.sliding_window_view(rows, len(ids), axis=1)
    return [Place(row, start, start + len(ids)) for row, start in np.argwhere((windows == ids).all(axis=-1)).tolist()]


def _layouts(
    rows: Int64Array, wanted: Sequence[Int64Array], twins: Sequence[Hashable], options: Sequence[list[Place]]
) -> list[tuple[Place | None, ...]]:
    """Up to two ways to place every segment so that what is left over is of one kind; two if it takes too long to tell."""
    if len(wanted) > _MOST_SEARCHED or not all(options):
        return []
    order = sorted(range(len(wanted)), key=lambda index: (len(options[index]), -len(wanted[index]), index))
    free = np.ones(rows.shape, dtype=bool)
    chosen: list[Place | None] = [None] * len(wanted)
    last: dict[Hashable, list[Place]] = {}
    layouts: list[tuple[Place | None, ...]] = []
    tries = 0

    def go_on(depth: int) -> None:
        nonlocal tries
        if depth == len(order):
            if len(np.unique(rows[free])) <= 1:
                layouts.append(tuple(chosen))
            return
        index = order[depth]
        before = last.setdefault(twins[index], [])
        for place in options[index]:
            if before and (place.row, place.start) < (before[-1].row, before[-1].start):
                continue
            tries += 1
            if len(layouts) > 1 or tries > _MOST_TRIES:
                return
            here = (place.row, slice(place.start, place.stop))
            if not free[here].all():
                continue
            free[here] = False
            chosen[index] = place
            before.append(place)
            go_on(depth + 1)
            before.pop()
            free[here] = True

    go_on(0)
    return layouts * 2 if tries > _MOST_TRIES else layouts


def _nearest(rows: Int64Array, wanted: Sequence[Int64Array], options: Sequence[list[Place]]) -> Found:
    """The longest first, each at the nearest of the places that are still free."""
    free = np.ones(rows.shape, dtype=bool)
    places: list[Place | None] = [None] * len(wanted)
    width = rows.shape[1]
    expected = np.concatenate([[0], np.cumsum([len(ids) for ids in wanted])]).tolist()
    for index in sorted(range(len(wanted)), key=lambda index: -len(wanted[index])):
        left = [place for place in options[index] if free[place.row, place.start : place.stop].all()]
        if left:
            best = min(left, key=lambda place: abs(place.row * width + place.start - expected[index]))
            free[best.row, best.start : best.stop] = False
            places[index] = best
    left_over = np.where(free, rows, np.iinfo(np.int64).min)
    repeated = tuple(index for index, ids in enumerate(wanted) if places[index] and _occurrences(left_over, ids))
    certain = all(len(found) <= 1 or index in repeated for index, found in enumerate(options))
    certain &= not any(len(np.unique(wanted[index])) == 1 for index in repeated)
    return Found(tuple(places), repeated, np.zeros(rows.shape, dtype=bool), certain)


def _twins(segments: Sequence[Segment], wanted: Sequence[Int64Array]) -> list[Hashable]:
    """What tells segments apart: tokens, labels and positions."""
    return [
        (ids.tobytes(), segment.labels.tobytes(), None if segment.positions is None else segment.positions.tobytes())
        for segment, ids in zip(segments, wanted, strict=True)
    ]


def expected_targets(batch: Collated, segments: list[Segment]) -> Int64Array:
    """``int64[B, T]``: what every position should be trained to predict."""
    wanted = np.full(batch.ids.shape, IGNORE_INDEX, dtype=np.int64)
    for segment, place in zip(segments, batch.places, strict=True):
        if place is not None:
            wanted[place.row, place.start : place.stop - 1] = segment.labels[1:]
    return wanted

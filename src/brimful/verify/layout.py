"""Where the samples lie in a batch that any collator made: found by their tokens, whatever the collator says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from brimful.errors import CollateError
from brimful.typing import IGNORE_INDEX, BoolArray, Int64Array
from brimful.verify.case import Case, Segment

__all__ = ["Collated", "Place", "collate", "locate"]


@dataclass(frozen=True, slots=True)
class Place:
    """Row and columns of a sample."""

    row: int
    start: int
    stop: int


@dataclass(frozen=True)
class Collated:
    """A batch, and where its samples are.

    Attributes:
        kwargs: what the model is called with.
        ids: ``int64[B, T]``.
        targets: ``int64[B, T]``: what the logits there are trained to predict; None without labels. Labels of
            ``labels`` are shifted by the model, those of ``shift_labels`` are already.
        shifted: the labels came as ``shift_labels``.
        places: of each segment; None for one that is not in the batch as a whole.
        free: ``bool[B, T]``: tokens of no sample.
    """

    kwargs: dict[str, Any]
    ids: Int64Array
    targets: Int64Array | None
    shifted: bool
    places: list[Place | None]
    free: BoolArray

    @property
    def padding(self) -> BoolArray:
        """``bool[B, T]``: tokens of no sample, if all of them are the same; else none, for they are no padding."""
        values = np.unique(self.ids[self.free])
        return self.free if len(values) <= 1 else np.zeros_like(self.free)

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
    replaced: Mapping[int, Int64Array] | None = None,
) -> Collated:
    """Call the collator with copies of the case, and find the samples in what it returns.

    Raises:
        CollateError: the batch is no mapping, or has no ``input_ids``.
    """
    import torch

    made = collator(case.copies(replaced))
    if not isinstance(made, Mapping) or "input_ids" not in made:
        found = sorted(map(str, made)) if isinstance(made, Mapping) else type(made).__name__
        raise CollateError(f"the collator must return a mapping with 'input_ids' and returned {found}")
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
    places, free = locate(ids, segments)
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
    return Collated(kwargs, ids, targets, shifted, places, free)


def as_rows(tensor: Any) -> Int64Array:
    """A tensor of one or two dimensions as ``int64[B, T]``."""
    return np.atleast_2d(tensor.detach().cpu().numpy().astype(np.int64))


def locate(rows: Int64Array, segments: list[Int64Array]) -> tuple[list[Place | None], BoolArray]:
    """Find each segment's tokens in the rows, each token claimed once.

    Longest first, so that a short one does not claim a piece of a long one; of several occurrences the nearest to
    where it would lie if all segments stood behind each other::

        rows      5 6 7 | 8 9 | 0 0        segments  5 6 7 · 8 9
        places    row 0, 0 to 3 · row 0, 3 to 5      free  the two zeros

    Args:
        rows: ``int64[B, T]``.
        segments: ``int64[n]`` each.

    Returns:
        Places, None where nothing was found, and ``bool[B, T]`` of what nobody claimed.

    >>> places, free = locate(np.array([[5, 6, 7, 8, 9, 0, 0]]), [np.array([5, 6, 7]), np.array([8, 9])])
    >>> [(place.start, place.stop) for place in places], free.sum()
    ([(0, 3), (3, 5)], np.int64(2))
    """
    free = np.ones(rows.shape, dtype=bool)
    places: list[Place | None] = [None] * len(segments)
    width = rows.shape[1]
    expected = np.concatenate([[0], np.cumsum([len(segment) for segment in segments])])
    for index in sorted(range(len(segments)), key=lambda index: -len(segments[index])):
        wanted = segments[index]
        best: Place | None = None
        for row in range(len(rows)):
            for start in np.flatnonzero(rows[row, : max(0, width - len(wanted) + 1)] == wanted[0]).tolist():
                stop = start + len(wanted)
                if not free[row, start:stop].all() or not np.array_equal(rows[row, start:stop], wanted):
                    continue
                away = abs(row * width + start - int(expected[index]))
                if best is None or away < abs(best.row * width + best.start - int(expected[index])):
                    best = Place(row, start, stop)
        if best is not None:
            free[best.row, best.start : best.stop] = False
        places[index] = best
    return places, free


def expected_targets(batch: Collated, segments: list[Segment]) -> Int64Array:
    """``int64[B, T]``: what every position should be trained to predict."""
    wanted = np.full(batch.ids.shape, IGNORE_INDEX, dtype=np.int64)
    for segment, place in zip(segments, batch.places, strict=True):
        if place is not None:
            wanted[place.row, place.start : place.stop - 1] = segment.labels[1:]
    return wanted

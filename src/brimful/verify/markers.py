"""Where a collator puts each sample, shown with tokens that occur once.

Tokens alone do not always tell: ``a b`` + ``a b`` beside ``a b a b`` can be cut in two ways, a sample of one token may
stand inside another, and a sample of one repeated token looks like padding. So the collator is also given the same
samples with a token of its own at every place. A collator that does not look at tokens lays both out alike::

    samples    7 7 · 7 7 7        batch     7 7 7 7 7 | 7 7        where is which, and what is padding?
    marked     0 1 · 2 3 4                  0 1 2 3 4 | 7 7        certain
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

import numpy as np

from brimful.typing import BoolArray, Int64Array
from brimful.verify.case import Case

__all__ = ["Marked", "Place", "lay_out_markers"]


@dataclass(frozen=True, slots=True)
class Place:
    """Row and columns of a sample."""

    row: int
    start: int
    stop: int


@dataclass(frozen=True)
class Marked:
    """The layout of a batch of markers.

    Attributes:
        shape: rows and columns.
        places: of each segment; None for one that is not in the batch as a whole.
        repeated: segments that are there more than once.
        pieces: ``bool[B, T]``: tokens of samples that lie in no place: repeats and fragments.
    """

    shape: tuple[int, ...]
    places: tuple[Place | None, ...]
    repeated: tuple[int, ...]
    pieces: BoolArray


def lay_out_markers(
    collator: Callable[[list[Any]], Mapping[str, Any]],
    case: Case,
    *,
    kept: Collection[int],
    avoided: Collection[int],
    read: Callable[[Any], Int64Array],
) -> Marked | None:
    """Collate the case with a token of its own at every place.

    Args:
        collator: as in ``verify_packing``.
        case: the samples.
        kept: tokens that stay what they are, as collators look for them (images).
        avoided: tokens that may mean something: those of the batch, the special ones.
        read: from ``input_ids`` of a batch to ``int64[B, T]``.

    Returns:
        None where the collator refuses such tokens, or where a sample has none but kept ones.
    """
    wanted, owners = _markers(case, kept, avoided)
    if any(owners.keys().isdisjoint(ids.tolist()) for ids in wanted):
        return None
    try:
        rows = read(collator(case.copies(dict(enumerate(wanted))))["input_ids"])
    except Exception:  # a collator may refuse foreign tokens in any way it likes; samples are searched then
        return None
    places: list[Place | None] = [None] * len(wanted)
    repeated: list[int] = []
    owned = np.isin(rows, list(owners))
    pieces = owned.copy()
    for row, column in np.argwhere(owned).tolist():
        segment, offset = owners[int(rows[row, column])]
        start, stop = column - offset, column - offset + len(wanted[segment])
        known = places[segment]
        if known is not None and known.row == row and known.start <= column < known.stop:
            continue
        if start < 0 or not np.array_equal(rows[row, start:stop], wanted[segment]):
            continue
        if known is None:
            places[segment] = Place(row, start, stop)
            pieces[row, start:stop] = False
        elif segment not in repeated:
            repeated.append(segment)
    return Marked(rows.shape, tuple(places), tuple(repeated), pieces)


def _markers(
    case: Case, kept: Collection[int], avoided: Collection[int]
) -> tuple[list[Int64Array], dict[int, tuple[int, int]]]:
    """Marked tokens of each segment, and for each marker its segment and its place in it."""
    banned = {*kept, *avoided}
    fresh = (token for token in count() if token not in banned)
    wanted: list[Int64Array] = []
    owners: dict[int, tuple[int, int]] = {}
    for index, segment in enumerate(case.segments):
        ids = segment.ids.copy()
        free = np.flatnonzero(~np.isin(ids, list(kept)))
        ids[free] = list(islice(fresh, len(free)))
        owners |= {int(ids[offset]): (index, int(offset)) for offset in free.tolist()}
        wanted.append(ids)
    return wanted, owners

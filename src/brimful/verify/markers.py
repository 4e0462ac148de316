"""Places of samples in a batch, seen with tokens that occur once.

Tokens alone do not always tell: ``a b`` + ``a b`` next to ``a b a b`` can be cut in two ways, a sample of one token may
stand inside another, and a sample of one repeated token looks like padding. So the collator is also given the same
samples with a token of its own at every place. A collator that does not look at tokens lays both out alike::

    samples    7 7 · 7 7 7        batch     7 7 7 7 7 | 7 7        where is which, and what is padding?
    marked     0 1 · 2 3 4                  0 1 2 3 4 | 7 7        certain
"""

from collections.abc import Callable, Collection
from itertools import count, islice
from typing import Any

import numpy as np

from brimful.typing import Int64Array
from brimful.verify.locate import Place, SampleLayout
from brimful.verify.reference_samples import ReferenceSamples


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
    excluded_tokens = {*media_ids, *reserved_tokens}
    fresh_tokens = (token for token in count() if token not in excluded_tokens)
    marked_ids: list[Int64Array] = []
    owners: dict[int, tuple[int, int]] = {}
    # A fresh token at every place that may change: its owner is its segment, and its place in it.
    for index, segment in enumerate(samples.segments):
        ids = segment.ids.copy()
        offsets = np.flatnonzero(~np.isin(ids, list(media_ids)))
        ids[offsets] = list(islice(fresh_tokens, len(offsets)))
        owners |= {int(ids[offset]): (index, offset) for offset in offsets.tolist()}
        marked_ids.append(ids)
    if any(owners.keys().isdisjoint(ids.tolist()) for ids in marked_ids):
        return None
    try:
        rows = collate_ids(samples.copies(dict(enumerate(marked_ids))))
    except Exception:  # a collator may refuse foreign tokens in any way it likes; samples are searched then
        return None
    places: list[Place | None] = [None] * len(marked_ids)
    repeats: list[int] = []
    is_marker = np.isin(rows, list(owners))
    fragments = is_marker.copy()
    # A marker occurs once in the samples, so its value alone gives the segment and the place of a token.
    for row, column in np.argwhere(is_marker).tolist():
        index, offset = owners[int(rows[row, column])]
        start, stop = column - offset, column - offset + len(marked_ids[index])
        place = places[index]
        if place is not None and place.row == row and place.start <= column < place.stop:
            continue
        # Only a whole segment has a place; the markers of a part stay among the fragments.
        if start < 0 or not np.array_equal(rows[row, start:stop], marked_ids[index]):
            continue
        if place is None:
            places[index] = Place(row, start, stop)
            fragments[row, start:stop] = False
        elif index not in repeats:
            repeats.append(index)
    return SampleLayout(tuple(places), tuple(repeats), fragments, True)

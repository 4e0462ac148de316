"""Counting sort of lengths: stable, longest first."""

import numpy as np

from brimful.base.compiling import compiled
from brimful.base.ragged import positions_type, ranges
from brimful.base.typing import AnyIntArray, Int64Array
from brimful.plan.counts.histogram import DENSE_LENGTHS, Histogram

_CHUNK_ITEMS = 1 << 18
"""Minimum number of items that NumPy sorts at a time: their keys and positions stay in the
cache.
"""


def decreasing_order(lengths: AnyIntArray, items: Histogram | None = None) -> AnyIntArray:
    """Sort the positions of the lengths, longest first, equal lengths in order of position.

    Args:
        lengths: each at least 0.
        items: their histogram, if it is known.

    Returns:
        ``int32[num_items]``, or int64 if the positions need it.

    >>> decreasing_order(np.array([3, 3, 5, 1])).tolist()
    [2, 0, 1, 3]
    """
    dtype = positions_type(len(lengths))
    if len(lengths) == 0:
        return np.empty(0, dtype=dtype)
    items = Histogram.of(lengths) if items is None else items
    longest = int(items.lengths[-1])
    kernel = compiled(_sort, len(lengths))
    if longest >= DENSE_LENGTHS or (kernel is None and len(lengths) <= _CHUNK_ITEMS):
        return _radix_order(lengths, longest).astype(dtype, copy=False)
    # The first place of each length in the sorted order: after all longer items.
    next_place = np.zeros(longest + 1, dtype=np.int64)
    next_place[items.lengths] = items.num_items - np.cumsum(items.counts)
    order = np.empty(len(lengths), dtype=dtype)
    if kernel is not None:
        kernel(lengths, next_place, order)
    else:
        _sort_in_chunks(lengths, longest, next_place, order)
    return order


def _sort(lengths: AnyIntArray, next_place: Int64Array, order: AnyIntArray) -> None:
    """Write each item to the next place of its length; to be compiled."""
    for item in range(len(lengths)):
        length = np.uint64(lengths[item])  # unsigned: a signed index costs a tenth more
        place = next_place[length]
        order[np.uint64(place)] = item
        next_place[length] = place + 1


def _sort_in_chunks(
    lengths: AnyIntArray, longest: int, next_place: Int64Array, order: AnyIntArray
) -> None:
    """Sort chunk by chunk in NumPy, and move the runs of equal lengths to their places."""
    # Each chunk counts in a table with an entry for each length: a chunk should not be smaller than
    # this table.
    chunk_items = max(_CHUNK_ITEMS, longest)
    for begin in range(0, len(lengths), chunk_items):
        chunk = lengths[begin : begin + chunk_items]
        counts = np.bincount(chunk, minlength=longest + 1)
        present = np.flatnonzero(counts)[::-1]
        order[ranges(next_place[present], counts[present])] = _radix_order(chunk, longest) + begin
        next_place[present] += counts[present]


def _radix_order(lengths: AnyIntArray, longest: int) -> AnyIntArray:
    """Sort by 16-bit keys, which NumPy's stable sort handles by radix; wider keys take two passes,
    low half first.
    """
    if longest < 1 << 16:
        return np.argsort(np.uint16(longest) - lengths.astype(np.uint16), kind="stable")
    keys = longest - lengths
    low = np.argsort((keys & 0xFFFF).astype(np.uint16), kind="stable")
    high = np.argsort((keys >> 16).astype(np.uint16)[low], kind="stable")
    order: AnyIntArray = low[high]
    return order

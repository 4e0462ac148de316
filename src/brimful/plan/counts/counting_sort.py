"""Counting sort of lengths: stable, longest first."""

import numpy as np

from brimful.base.compiling import compiled
from brimful.base.ragged import positions_type
from brimful.base.typing import AnyIntArray, Int64Array
from brimful.plan.counts.histogram import DENSE_LENGTHS, Histogram


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
    if kernel is None or longest >= DENSE_LENGTHS:
        return _radix_order(lengths, longest).astype(dtype, copy=False)
    # The first place of each length in the sorted order: after all longer items.
    next_slot = np.zeros(longest + 1, dtype=np.int64)
    next_slot[items.lengths] = items.num_items - np.cumsum(items.counts)
    order = np.empty(len(lengths), dtype=dtype)
    kernel(lengths, next_slot, order)
    return order


def _sort(lengths: AnyIntArray, next_slot: Int64Array, order: AnyIntArray) -> None:
    """Write each item to the next place of its length; to be compiled."""
    for item in range(len(lengths)):
        length = np.uint64(lengths[item])  # unsigned: a signed index costs a tenth more
        slot = next_slot[length]
        order[np.uint64(slot)] = item
        next_slot[length] = slot + 1


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

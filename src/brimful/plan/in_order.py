"""What the algorithms that take items in their given order share: the pack of each item, and packs from that."""

from __future__ import annotations

import numpy as np

from brimful.plan.histogram import decreasing_order
from brimful.plan.packing import Packing
from brimful.typing import AnyIntArray, Lengths

__all__ = ["as_items", "most_packs", "packs_of_items", "unplaced"]


def as_items(lengths: AnyIntArray) -> Lengths:
    """``int32[num_items]``: one type, so that each algorithm is compiled once. No capacity needs more."""
    return np.ascontiguousarray(lengths, dtype=np.int32)


def most_packs(lengths: AnyIntArray, *, capacity: int) -> int:
    """Packs that suffice for any algorithm that opens one only where the one before has no room.

    Two packs in a row hold more than one capacity between them, else the second had not been opened.

    >>> most_packs(np.array([1, 7, 1]), capacity=7)  # as many as next fit takes
    3
    """
    return min(len(lengths), 2 * int(lengths.sum(dtype=np.int64)) // capacity + 1)


def unplaced(num_items: int) -> AnyIntArray:
    """``int32[num_items]``, or int64 where positions need it, to be filled with the pack of each item."""
    return np.empty(num_items, dtype=np.int32) if num_items < 2**31 else np.empty(num_items, dtype=np.int64)


def packs_of_items(pack_of: AnyIntArray, num_packs: int) -> Packing:
    """Packs in the order of their numbers, and in each the items in order of position.

    Args:
        pack_of: ``int[num_items]``, the pack that each item is in.
        num_packs: how many there are; none is empty.

    >>> packs_of_items(np.array([0, 1, 0]), 2).as_lists()
    [[0, 2], [1]]
    """
    offsets = np.zeros(num_packs + 1, dtype=np.int64)
    np.cumsum(np.bincount(pack_of, minlength=num_packs), out=offsets[1:])
    return Packing(offsets, decreasing_order(num_packs - 1 - pack_of))

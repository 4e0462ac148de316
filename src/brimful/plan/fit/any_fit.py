"""Parts that the algorithms on items in their order share."""

from collections.abc import Callable
from typing import Any

import numpy as np

from brimful.compiling import compiled
from brimful.plan.counts.counting_sort import decreasing_order
from brimful.plan.packing import Packing
from brimful.ragged import offsets_of
from brimful.typing import AnyIntArray, Lengths


def as_int32(lengths: AnyIntArray) -> Lengths:
    """Return ``int32[num_items]``: one type, so that each algorithm is compiled once. No capacity needs more."""
    return np.ascontiguousarray(lengths, dtype=np.int32)


def positions_type(num_items: int) -> type[np.signedinteger[Any]]:
    """Return the narrower of int32 and int64 that holds the positions of items."""
    return np.int32 if num_items < 2**31 else np.int64


def compiled_fit(function: Callable[..., Any], num_items: int) -> Callable[..., Any] | None:
    """Return the compiled form of a loop over items, if that pays for all calls until now together."""
    return compiled(function, num_items, sum_calls=True)


def next_fit_upper_bound(lengths: AnyIntArray, *, capacity: int) -> int:
    """Return a number of packs that suffices for any algorithm that opens one only where the last has no room.

    Two packs in a row hold more than one capacity between them, else the second had not been opened.

    >>> next_fit_upper_bound(np.array([1, 7, 1]), capacity=7)  # next fit takes all three
    3
    """
    return min(len(lengths), 2 * int(lengths.sum(dtype=np.int64)) // capacity + 1)


def empty_assignment(num_items: int) -> AnyIntArray:
    """Return ``int[num_items]``, to be filled with the pack of each item."""
    return np.empty(num_items, dtype=positions_type(num_items))


def packs_of_items(pack_of: AnyIntArray, num_packs: int) -> Packing:
    """Group items by their pack: packs in the order of their numbers, in each the items in order of position.

    Args:
        pack_of: ``int[num_items]``, the pack of each item.
        num_packs: number of packs; none is empty.

    >>> packs_of_items(np.array([0, 1, 0]), 2).as_lists()
    [[0, 2], [1]]
    """
    offsets = offsets_of(np.bincount(pack_of, minlength=num_packs))
    return Packing(offsets, decreasing_order(num_packs - 1 - pack_of))

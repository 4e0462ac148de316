"""Shared parts of the algorithms that take items in their order."""

from collections.abc import Callable
from typing import Any

import numpy as np

from brimful.base.compiling import compiled
from brimful.base.ragged import offsets_of, positions_type
from brimful.base.typing import AnyIntArray, Lengths
from brimful.plan.counts.counting_sort import decreasing_order
from brimful.plan.packing import Packing


def as_int32(lengths: AnyIntArray) -> Lengths:
    """Return ``int32[num_items]``: one type, so that each algorithm is compiled once. No capacity needs more."""
    return np.ascontiguousarray(lengths, dtype=np.int32)


def fit_in_order(
    loop: Callable[..., int], plain_loop: Callable[..., int], lengths: AnyIntArray, *options: Any
) -> Packing:
    """Pack items by a loop that writes the pack of each item and returns the number of packs.

    Args:
        loop: the loop on arrays; compiled once that pays for the total of all calls so far.
        plain_loop: the same loop on lists, which plain Python reads faster.
        lengths: first argument of the loop.
        options: further arguments of the loop, numbers and arrays; the last one is ``pack_of``, the result.
    """
    items = as_int32(lengths)
    kernel = compiled(loop, len(items), sum_calls=True)
    if kernel is not None:
        pack_of: AnyIntArray = np.empty(len(items), dtype=positions_type(len(items)))
        return packs_of_items(pack_of, kernel(items, *options, pack_of))
    packs = [0] * len(items)
    options = tuple(option.tolist() if isinstance(option, np.ndarray) else option for option in options)
    num_packs = plain_loop(items.tolist(), *options, packs)
    return packs_of_items(np.array(packs, dtype=np.int64), num_packs)


def next_fit_upper_bound(lengths: AnyIntArray, *, capacity: int) -> int:
    """Return a number of packs that suffices for any algorithm that opens a pack only if the last one has no room.

    Two consecutive packs together hold more than one capacity; otherwise the second would not have been opened.

    >>> next_fit_upper_bound(np.array([1, 7, 1]), capacity=7)  # next fit takes all three
    3
    """
    return min(len(lengths), 2 * int(lengths.sum(dtype=np.int64)) // capacity + 1)


def packs_of_items(pack_of: AnyIntArray, num_packs: int) -> Packing:
    """Group items by their pack: packs in the order of their numbers, items of a pack in order of position.

    Args:
        pack_of: ``int[num_items]``, the pack of each item.
        num_packs: number of packs; no pack is empty.

    >>> packs_of_items(np.array([0, 1, 0]), 2).as_lists()
    [[0, 2], [1]]
    """
    offsets = offsets_of(np.bincount(pack_of, minlength=num_packs))
    return Packing(offsets, decreasing_order(num_packs - 1 - pack_of))

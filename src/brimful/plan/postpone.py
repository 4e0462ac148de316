"""Least fills: packs that hold too little are packed again, and come last if they still do. Nothing is dropped."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from brimful.plan.budgets import loads_of
from brimful.plan.packing import Packing
from brimful.plan.vector_packing import pack_vectors
from brimful.typing import Int64Array

__all__ = ["Postponed", "in_pack_order", "postpone"]


@dataclass(frozen=True)
class Postponed:
    """Packs in order, those that hold too little last.

    Attributes:
        packing: items by pack, the same items as before.
        postponed: packs that held too little at first.
        short: packs that hold too little in the end: the last ones.
    """

    packing: Packing
    postponed: int
    short: int


def in_pack_order(packing: Packing, order: Int64Array) -> Packing:
    """The same packs in another order; items stay as they are within a pack.

    >>> in_pack_order(Packing(np.array([0, 2, 3]), np.array([4, 0, 2])), np.array([1, 0])).as_lists()
    [[2], [4, 0]]
    """
    counts = np.diff(packing.offsets)[order]
    offsets = np.concatenate([[0], np.cumsum(counts)])
    place = np.arange(int(offsets[-1]))
    place += np.repeat(packing.offsets[:-1][order] - offsets[:-1], counts)
    return Packing(offsets, packing.items[place])


def postpone(
    packing: Packing, sizes: Int64Array, *, capacities: Int64Array, min_fill: Int64Array, seed: int = 0
) -> Postponed:
    """Pack again, once, what lies in packs that hold too little; put those that still do last.

    ::

        capacity 10, least fill 8         0 1: 9     2: 6     3 4: 8     5: 2
        held too little                              2: 6                5: 2
        packed again                                 2 5: 8
        in the end                        0 1: 9     3 4: 8   2 5: 8            none is short

    Packing again is taken if it makes fewer short packs, and no more packs in all; else those packs stay as they were.
    Packs that hold enough keep their order; after them come those that hold enough now, then the short ones.

    Pure: no I/O; the same arguments give the same packs.

    Args:
        packing: items by pack.
        sizes: ``int64[num_items, num_budgets]``, as they were packed.
        capacities: ``int64[num_budgets]``.
        min_fill: ``int64[num_budgets]``: least that a pack should hold of each budget; 0 asks for nothing.
        seed: as for ``pack_vectors``.
    """
    little = (loads_of(packing, sizes) < min_fill).any(axis=1)
    held_little = int(np.count_nonzero(little))
    if held_little == 0:
        return Postponed(packing, 0, 0)
    enough = in_pack_order(packing, np.flatnonzero(~little))
    rest = in_pack_order(packing, np.flatnonzero(little))
    own = np.ascontiguousarray(sizes[rest.items])
    again = pack_vectors(own, capacities=capacities, seed=seed).packing
    short = (loads_of(again, own) < min_fill).any(axis=1)
    again = Packing(again.offsets, rest.items[again.items])
    if len(again) > len(rest) or int(np.count_nonzero(short)) >= held_little:
        again, short = rest, np.ones(held_little, dtype=bool)
    again = in_pack_order(again, np.argsort(short, kind="stable"))
    offsets = np.concatenate([enough.offsets, enough.offsets[-1] + again.offsets[1:]])
    items = np.concatenate([enough.items, again.items])
    return Postponed(Packing(offsets, items), held_little, int(np.count_nonzero(short)))

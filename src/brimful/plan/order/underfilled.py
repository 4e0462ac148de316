"""Packs that are not full enough: their items are packed again, and these packs come last."""

from collections.abc import Callable
from math import ceil

import numpy as np

from brimful.base.typing import AnyIntArray, BoolArray, Int64Array
from brimful.plan.packing import Packing, loads_of, tokens_of


def repack_underfilled(
    packing: Packing,
    sizes: AnyIntArray,
    *,
    capacities: Int64Array,
    min_fill: float,
    repack: Callable[[AnyIntArray], Packing],
) -> tuple[Packing, tuple[int, int]]:
    """Pack the items of packs below a minimum fill again; packs that are still below it come last.

    ::

        capacity 10, min_fill 0.7       6 · 9 · 5 · 3 1 · 8
        below: 6, 5, 3 1                taken apart: 6 5 3 1
        packed again                    6 3 1 · 5
        result                          9 · 8 · 6 3 1 · 5          5 comes last: nothing is dropped

    A pack is as full as its fullest budget: a pack that is full of images cannot take more text. Packing again helps
    if items were packed in their order or in phases; after a decreasing algorithm it changes little except the order:
    steps begin with full packs, and the few others are together.

    Pure if ``repack`` is.

    Args:
        packing: packs of the items.
        sizes: ``int[num_items]`` or ``int[num_items, num_budgets]``.
        capacities: ``int64[num_budgets]``.
        min_fill: share of a capacity, from 0 to 1.
        repack: packs items, given their sizes.

    Returns:
        Every item, in at most as many packs as before; and how many packs are below the fill, before and in the result.

    >>> from brimful.plan.fit.first_fit import first_fit
    >>> sizes = np.array([6, 9, 5, 3, 1, 8])
    >>> packs = Packing(np.array([0, 1, 2, 3, 5, 6]), np.arange(6))
    >>> repack = lambda some_sizes: first_fit(some_sizes, capacity=10)
    >>> result, below = repack_underfilled(packs, sizes, capacities=np.array([10]), min_fill=0.7, repack=repack)
    >>> result.as_lists(), below
    ([[1], [5], [0, 3, 4], [2]], (3, 1))
    """
    thresholds = np.array([ceil(tokens_of(min_fill, capacity)) for capacity in capacities.tolist()])

    def is_below(some_packs: Packing, some_sizes: AnyIntArray) -> BoolArray:
        loads = loads_of(some_packs, some_sizes)
        below: BoolArray = np.asarray((loads.reshape(-1, len(thresholds)) < thresholds).all(axis=1))
        return below

    underfilled = is_below(packing, sizes)
    num_underfilled = int(np.count_nonzero(underfilled))
    if num_underfilled == 0:
        return packing, (0, 0)
    candidates = packing.take(np.flatnonzero(underfilled))
    candidate_sizes = sizes[candidates.items]
    repacked = repack(candidate_sizes)
    num_repacked_below = int(np.count_nonzero(is_below(repacked, candidate_sizes)))
    if len(repacked) <= num_underfilled and num_repacked_below < num_underfilled:
        candidates = Packing(repacked.offsets, candidates.items[repacked.items])
    still_below = is_below(candidates, sizes)
    full = packing.take(np.flatnonzero(~underfilled))
    result = full.joined(candidates.take(np.argsort(still_below, kind="stable")))
    return result, (num_underfilled, int(np.count_nonzero(still_below)))

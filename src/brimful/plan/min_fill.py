"""Packs that are not full enough wait: packed once more among themselves, and then they come last."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from brimful.plan.budgets import loads_of
from brimful.plan.packing import Packing
from brimful.typing import AnyIntArray, Int64Array

__all__ = ["Postponed", "least_load", "postpone"]


@dataclass(frozen=True)
class Postponed:
    """Packs, those below the target last.

    Attributes:
        packing: every item of before; never more packs.
        packs_below: packs that were below the target.
        packs_left_below: those that still are, at the end.
    """

    packing: Packing
    packs_below: int
    packs_left_below: int


def postpone(
    packing: Packing,
    sizes: Int64Array,
    *,
    capacities: Int64Array,
    min_fill: float,
    pack: Callable[[Int64Array], Packing],
) -> Postponed:
    """Take packs below a fill apart and pack their items together; what is still below comes last.

    ::

        capacity 10, min_fill 0.7       6 · 9 · 5 · 3 1 · 8
        below: 6, 5, 3 1                taken apart: 6 5 3 1
        packed once more                6 3 1 · 5
        result                          9 · 8 · 6 3 1 · 5          5 is emitted in the end: nothing is dropped

    A pack is as full as its fullest budget is: one that is full of images cannot take more text. Packing again helps
    where items were packed in their order or in phases; behind a decreasing algorithm it changes little, and the
    order remains: steps begin with full packs, and the few others are together.

    Pure if ``pack`` is.

    Args:
        packing: of the items.
        sizes: ``int64[num_items, num_budgets]``.
        capacities: ``int64[num_budgets]``.
        min_fill: share of a capacity, from 0 to 1.
        pack: packs some items, given their sizes.

    >>> from brimful.plan.first_fit import first_fit
    >>> sizes = np.array([[6], [9], [5], [3], [1], [8]])
    >>> packs = Packing(np.array([0, 1, 2, 3, 5, 6]), np.arange(6))
    >>> again = lambda some: first_fit(some[:, 0], capacity=10)
    >>> result = postpone(packs, sizes, capacities=np.array([10]), min_fill=0.7, pack=again)
    >>> result.packing.as_lists(), result.packs_below, result.packs_left_below
    ([[1], [5], [0, 3, 4], [2]], 3, 1)
    """
    below = _is_below(packing, sizes, capacities, min_fill)
    number = int(np.count_nonzero(below))
    if number == 0:
        return Postponed(packing, 0, 0)
    rest = packing.reordered(np.flatnonzero(below))
    found = pack(sizes[rest.items])
    found_below = _is_below(found, sizes[rest.items], capacities, min_fill)
    if len(found) <= number and int(np.count_nonzero(found_below)) < number:
        rest = Packing(found.offsets, rest.items[found.items])
    still = _is_below(rest, sizes, capacities, min_fill)
    kept = packing.reordered(np.flatnonzero(~below))
    joined = _joined(kept, rest.reordered(np.argsort(still, kind="stable")))
    return Postponed(joined, number, int(np.count_nonzero(still)))


def least_load(min_fill: float, capacity: int) -> int:
    """The least whole load that is at least that share of a capacity, as the share is written: 0.55 of 100 is 55.

    >>> least_load(0.55, 100), least_load(0.96, 4096)
    (55, 3933)
    """
    share = Fraction(str(float(min_fill)))
    return -(-share.numerator * capacity // share.denominator)


def _is_below(packing: Packing, sizes: Int64Array, capacities: Int64Array, min_fill: float) -> AnyIntArray:
    least = np.array([least_load(min_fill, int(most)) for most in capacities])
    return np.asarray((loads_of(packing, sizes) < least).all(axis=1))


def _joined(one: Packing, other: Packing) -> Packing:
    offsets = np.concatenate([one.offsets, one.offsets[-1] + other.offsets[1:]])
    return Packing(offsets, np.concatenate([one.items, other.items]))

"""Best fit decreasing: longest first, each where the least room is left."""

from __future__ import annotations

from brimful.plan.counted_best_fit import counted_best_fit_decreasing
from brimful.plan.histogram import Histogram, Placements
from brimful.plan.kernels import kernels

__all__ = ["best_fit_decreasing"]

_COMPILED_CAPACITY = 1 << 24
"""The compiled form keeps a table with an entry for each room that a pack can have."""


def best_fit_decreasing(items: Histogram, *, capacity: int) -> Placements:
    """Place items, longest first, each in the fullest pack that still has room.

    ::

        capacity 7     6        5        3        3        1        1
        pack 0       6 ------ 6 ------ 6 ------ 6 ------ 6 1      6 1
        pack 1                5 ------ 5 ------ 5 ------ 5 ------ 5         fill 19/21
        pack 2                         3 ------ 3 3 ---- 3 3 ---- 3 3 1

    Equal items go in order of position, and of equally full packs the one that was opened first is taken, so the
    result is a function of the arguments. It is item-level best fit decreasing, run by run: once an item went
    into the fullest pack with room, that pack is still the fullest for the next equal item, so a run of equal
    packs with room ``r`` takes ``r // length`` copies each before the next run is looked at.

    Pure: no I/O, no randomness.

    Args:
        items: how many there are of each length, none longer than the capacity.
        capacity: most that a pack holds, at least 1.

    Returns:
        The runs; ``fill`` names the items.

    Cost: O(d·p) for d different lengths and p different patterns, whatever the number of items.
    Source: best fit decreasing is Johnson (1973); on counts, Krell et al. (2021).
    """
    compiled = kernels(items.num_items)
    if compiled is not None and capacity <= _COMPILED_CAPACITY:
        table, num_packs = compiled.best_fit(items.lengths, items.counts, capacity)
        return Placements.of_table(table, int(num_packs))
    # No pack holds more items than tokens, so as a limit the capacity is none.
    return counted_best_fit_decreasing(items, capacity=capacity, most=capacity)

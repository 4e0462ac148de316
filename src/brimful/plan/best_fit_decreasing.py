"""Best fit decreasing: longest first, each where the least room is left."""

from __future__ import annotations

from bisect import bisect_left, insort
from heapq import heappop, heappush

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
    return _best_fit_decreasing(items, capacity)


def _best_fit_decreasing(items: Histogram, capacity: int) -> Placements:
    placed: list[tuple[int, int, int, int, int]] = []
    num_packs = 0
    rooms: list[int] = []  # rooms that some packs have, ascending
    runs: dict[int, list[tuple[int, int, int]]] = {}  # of each room: (first, packs, slot), first opened first

    def leave(room: int, first: int, packs: int, slot: int) -> None:
        if room == 0:
            return
        there = runs.get(room)
        if not there:
            insort(rooms, room)
            runs[room] = there = []
        heappush(there, (first, packs, slot))

    for length, left in zip(items.lengths[::-1].tolist(), items.counts[::-1].tolist(), strict=True):
        while left:
            at = bisect_left(rooms, length)
            if at == len(rooms):
                room, first, packs, slot = capacity, num_packs, -(-left // (capacity // length)), 0
                num_packs += packs
            else:
                room = rooms[at]
                first, packs, slot = heappop(runs[room])
                if not runs[room]:
                    del rooms[at]
            copies = room // length
            full = min(packs, left // copies)
            if full:
                placed.append((length, first, full, copies, slot))
                leave(room - copies * length, first, full, slot + copies)
                left -= full * copies
            if full < packs and left:
                placed.append((length, first + full, 1, left, slot))
                leave(room - left * length, first + full, 1, slot + left)
                full, left = full + 1, 0
            if full < packs:
                leave(room, first + full, packs - full, slot)
    return Placements.of_runs(placed, num_packs)

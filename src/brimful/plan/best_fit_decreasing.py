"""Best fit decreasing: longest first, each where the least room is left."""

from __future__ import annotations

from bisect import bisect_left, insort
from heapq import heappop, heappush

import numpy as np

from brimful.plan.histogram import Placements
from brimful.typing import Int64Array

__all__ = ["best_fit_decreasing"]


def best_fit_decreasing(counts: Int64Array, *, capacity: int) -> Placements:
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
        counts: ``int64[capacity + 1]``, number of items of each length; ``counts[0]`` is 0.
        capacity: most that a pack holds, at least 1.

    Returns:
        The runs; ``fill`` names the items.

    Cost: O(d·p) for d different lengths and p different patterns, whatever the number of items.
    Source: best fit decreasing is Johnson (1973); on counts, Krell et al. (2021).
    """
    placements = Placements()
    rooms: list[int] = []
    runs: dict[int, list[tuple[int, int, int]]] = {}

    def leave(room: int, first: int, packs: int, slot: int) -> None:
        if room == 0:
            return
        there = runs.get(room)
        if not there:
            insort(rooms, room)
            runs[room] = there = []
        heappush(there, (first, packs, slot))

    for length in np.flatnonzero(counts)[::-1].tolist():
        left = int(counts[length])
        while left:
            at = bisect_left(rooms, length)
            if at == len(rooms):
                room, first, packs, slot = capacity, placements.num_packs, -(-left // (capacity // length)), 0
                placements.num_packs += packs
            else:
                room = rooms[at]
                first, packs, slot = heappop(runs[room])
                if not runs[room]:
                    del rooms[at]
            copies = room // length
            full = min(packs, left // copies)
            if full:
                placements.add(first, full, copies, slot)
                leave(room - copies * length, first, full, slot + copies)
                left -= full * copies
            if full < packs and left:
                placements.add(first + full, 1, left, slot)
                leave(room - left * length, first + full, 1, slot + left)
                full, left = full + 1, 0
            if full < packs:
                leave(room, first + full, packs - full, slot)
    return placements

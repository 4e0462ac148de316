"""Best fit decreasing with a limit on the items of a pack."""

from __future__ import annotations

from bisect import bisect_left, insort
from heapq import heappop, heappush

from brimful.plan.histogram import Histogram, Placements

__all__ = ["counted_best_fit_decreasing"]


def counted_best_fit_decreasing(items: Histogram, *, capacity: int, most: int) -> Placements:
    """Place items, longest first, each in the fullest pack that has room and fewer than ``most`` items.

    ::

        capacity 7     6        5        3        3        1        1
        most 2
        pack 0       6 ------ 6 ------ 6 ------ 6 ------ 6 1                closed: two items
        pack 1                5 ------ 5 ------ 5 ------ 5 ------ 5 1
        pack 2                         3 ------ 3 3                         closed: two items

    As ``best_fit_decreasing``, run by run; a run of packs that hold ``most`` items is closed. As good as can be while
    few packs meet the limit; where most of them would, long items should be spread, and ``pack_vectors`` does.

    Pure: no I/O, no randomness.

    Args:
        items: how many there are of each length, none longer than the capacity.
        capacity: most that a pack holds, at least 1.
        most: most items that a pack holds, at least 1.

    Cost: O(d·p) for d different lengths and p different patterns, in plain Python: some ten milliseconds.
    Source: bin packing with a limit on cardinality is Krause, Shen and Schwetman (1975).

    >>> items = Histogram.of_dense([0, 2, 0, 2, 0, 1, 1])  # 6 5 3 3 1 1
    >>> from brimful.plan.counts.patterns import patterns_of
    >>> dict(patterns_of(counted_best_fit_decreasing(items, capacity=7, most=2)))
    {((6, 1), (1, 1)): 1, ((5, 1), (1, 1)): 1, ((3, 2),): 1}
    """
    placed: list[tuple[int, int, int, int, int]] = []
    num_packs = 0
    rooms: list[int] = []  # rooms that some open packs have, ascending
    runs: dict[int, list[tuple[int, int, int]]] = {}  # of each room: (first, packs, slot), first opened first

    def leave(room: int, first: int, packs: int, slot: int) -> None:
        if room == 0 or slot == most:
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
                each = min(capacity // length, most)
                room, first, packs, slot = capacity, num_packs, -(-left // each), 0
                num_packs += packs
            else:
                room = rooms[at]
                first, packs, slot = heappop(runs[room])
                if not runs[room]:
                    del rooms[at]
            copies = min(room // length, most - slot)
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

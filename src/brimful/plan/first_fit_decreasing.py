"""First fit decreasing: longest first, each in the first pack that has room."""

from __future__ import annotations

import numpy as np

from brimful.plan.histogram import Histogram, Placements

__all__ = ["first_fit_decreasing"]


def first_fit_decreasing(items: Histogram, *, capacity: int) -> Placements:
    """Place items, longest first, each in the first opened pack that has room.

    ::

        capacity 7     6        5        3        3        1        1
        pack 0       6 ------ 6 ------ 6 ------ 6 ------ 6 1      6 1
        pack 1                5 ------ 5 ------ 5 ------ 5 ------ 5 1       fill 19/21
        pack 2                         3 ------ 3 3 ---- 3 3 ---- 3 3

    Runs of equal packs are kept in order of opening; an item scans them for the first with room. As in best fit
    decreasing, a pack that was the first with room stays so for the next equal item until it is full.

    Pure: no I/O, no randomness.

    Args:
        items: how many there are of each length, none longer than the capacity.
        capacity: most that a pack holds, at least 1.

    Returns:
        The runs; ``fill`` names the items.

    Cost: O(d·p) for d different lengths and p runs of packs, as vectorised scans.
    Source: Johnson (1973).
    """
    placed: list[tuple[int, int, int, int, int]] = []
    num_packs = 0
    room = np.empty(0, dtype=np.int64)  # of each run of packs, in order of opening
    first = np.empty(0, dtype=np.int64)
    packs = np.empty(0, dtype=np.int64)
    slot = np.empty(0, dtype=np.int64)
    for length, left in zip(items.lengths[::-1].tolist(), items.counts[::-1].tolist(), strict=True):
        for run in np.flatnonzero(room >= length).tolist():
            copies = int(room[run]) // length
            full = min(int(packs[run]), left // copies)
            if full:
                placed.append((length, int(first[run]), full, copies, int(slot[run])))
                left -= full * copies
            rest = int(packs[run]) - full
            if rest and (full or left):
                # The run falls apart: filled packs, one that takes what is left, untouched packs.
                some = min(rest, 1 if left else 0)
                if some:
                    placed.append((length, int(first[run]) + full, 1, left, int(slot[run])))
                sizes = [full, some, rest - some]
                taken = [copies, left, 0]
                parts = [number for number in range(3) if sizes[number]]
                room, first, packs, slot = (
                    np.concatenate([array[:run], np.array(new, dtype=np.int64), array[run + 1 :]])
                    for array, new in (
                        (room, [int(room[run]) - taken[k] * length for k in parts]),
                        (first, [int(first[run]) + sum(sizes[:k]) for k in parts]),
                        (packs, [sizes[k] for k in parts]),
                        (slot, [int(slot[run]) + taken[k] for k in parts]),
                    )
                )
                left = 0
            elif full:
                room[run] -= copies * length
                slot[run] += copies
            if not left:
                break
        if left:
            copies = capacity // length
            full, rest = divmod(left, copies)
            for size, held in ((full, copies), (1 if rest else 0, rest)):
                if size:
                    placed.append((length, num_packs, size, held, 0))
                    room = np.append(room, capacity - held * length)
                    first = np.append(first, num_packs)
                    packs = np.append(packs, size)
                    slot = np.append(slot, held)
                    num_packs += size
        useful = room > 0
        if not useful.all():
            room, first, packs, slot = room[useful], first[useful], packs[useful], slot[useful]
    return Placements.of_runs(placed, num_packs)

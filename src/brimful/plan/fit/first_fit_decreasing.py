"""First fit decreasing: longest first, each in the first pack that has room."""

import numpy as np

from brimful.plan.counts.histogram import Histogram
from brimful.plan.counts.runs import PackRuns


def first_fit_decreasing(items: Histogram, *, capacity: int) -> PackRuns:
    """Place items, longest first, each in the first opened pack that has room.

    ::

        capacity 7     6        5        3        3        1        1
        pack 0       6 ------ 6 ------ 6 ------ 6 ------ 6 1      6 1
        pack 1                5 ------ 5 ------ 5 ------ 5 ------ 5 1       fill 19/21
        pack 2                         3 ------ 3 3 ---- 3 3 ---- 3 3

    Runs of equal packs are kept in order of opening and scanned for the first with room. As in best
    fit decreasing, the first pack with room remains the first for the next equal item until it is
    full.

    Pure: no I/O, no randomness.

    Args:
        items: number of items of each length, none longer than the capacity.
        capacity: maximum tokens of a pack, at least 1.

    Returns:
        The runs; ``assign`` adds the items.

    Cost: O(d·p) for d distinct lengths and p runs of packs, as vectorized scans.
    Source: Johnson (1973).
    """
    table: list[tuple[int, int, int, int, int]] = []
    num_packs = 0
    # Runs of equal packs with room, in order of opening: rows of (room, first_pack, packs,
    # items_before).
    runs = np.empty((0, 4), dtype=np.int64)
    for length, num_left in zip(
        items.lengths[::-1].tolist(), items.counts[::-1].tolist(), strict=True
    ):
        for index in (*np.flatnonzero(runs[:, 0] >= length).tolist(), len(runs)):
            if index < len(runs):
                room, first_pack, packs, items_before = runs[index].tolist()
            else:  # new packs for all remaining items
                room, first_pack, packs, items_before = (
                    capacity,
                    num_packs,
                    -(-num_left // (capacity // length)),
                    0,
                )
                num_packs += packs
            copies = room // length
            num_full = min(packs, num_left // copies)
            num_left -= num_full * copies
            # The run is divided: packs that take all copies, one that takes the remaining items,
            # untouched packs.
            num_partial = 1 if num_full < packs and num_left else 0
            pieces = []
            first = first_pack
            for count, placed in (
                (num_full, copies),
                (num_partial, num_left),
                (packs - num_full - num_partial, 0),
            ):
                if count:
                    pieces.append((room - placed * length, first, count, items_before + placed))
                    if placed:
                        table.append((length, first, count, placed, items_before))
                first += count
            # Only the last run of a length is divided into several parts, so no later index is read
            # again.
            runs = np.concatenate(
                [runs[:index], np.array(pieces, dtype=np.int64), runs[index + 1 :]]
            )
            if num_partial or not num_left:
                break
        runs = runs[runs[:, 0] > 0]
    return PackRuns.of_table(table, num_packs)

"""Best fit decreasing: longest first, each in the fullest pack with room."""

from bisect import bisect_left, insort
from heapq import heappop, heappush

import numpy as np

from brimful.base.compiling import compiled
from brimful.base.typing import Int64Array
from brimful.plan.counts.histogram import Histogram
from brimful.plan.counts.runs import PackRuns

_MAX_COMPILED_CAPACITY = 1 << 24
"""Capacity up to which the compiled form runs: it keeps a table with an entry for each room."""


def best_fit_decreasing(
    items: Histogram, *, capacity: int, max_items: int | None = None
) -> PackRuns:
    """Place items, longest first, each in the fullest pack that still has room.

    ::

        capacity 7     6        5        3        3        1        1
        pack 0       6 ------ 6 ------ 6 ------ 6 ------ 6 1      6 1
        pack 1                5 ------ 5 ------ 5 ------ 5 ------ 5         fill 19/21
        pack 2                         3 ------ 3 3 ---- 3 3 ---- 3 3 1

    Equal items are placed in order of position, and of equally full packs the one that was opened
    first is taken, so the result is a function of the arguments. It equals item-level best fit
    decreasing, run by run: once an item went into the fullest pack with room, this pack is still
    the fullest for the next equal item, so each pack in a run of equal packs with room ``r`` takes
    ``r // length`` copies before the next run is considered.

    With ``max_items`` it is the cardinality-constrained form (Krause, Shen and Schwetman, 1975): a
    pack with that many items is closed. The result is close to the bound if few packs reach the
    limit. If most of them would, long items should be spread, as ``pack_vectors`` does::

        capacity 7     6        5        3        3        1        1
        max_items 2
        pack 0       6 ------ 6 ------ 6 ------ 6 ------ 6 1                closed: two items
        pack 1                5 ------ 5 ------ 5 ------ 5 ------ 5 1
        pack 2                         3 ------ 3 3                         closed: two items

    Pure: no I/O, no randomness.

    Args:
        items: number of items of each length, none longer than the capacity.
        capacity: maximum tokens of a pack, at least 1.
        max_items: maximum items of a pack, at least 1; None for no limit.

    Returns:
        The runs; ``assign`` adds the items.

    Cost: O(d·p) for d distinct lengths and p distinct patterns, independent of the number of items;
    tens of milliseconds in plain Python.
    Source: best fit decreasing is Johnson (1973); on counts, Krell et al. (2021).

    >>> import numpy as np
    >>> items = Histogram.of(np.array([3, 3, 5, 6, 1, 1]))
    >>> best_fit_decreasing(items, capacity=7, max_items=2).num_packs
    3
    """
    if max_items is None and capacity <= _MAX_COMPILED_CAPACITY:
        kernel = compiled(place_decreasing, int(items.counts.sum()), sum_calls=True)
        if kernel is not None:
            rows, num_packs = kernel(items.lengths, items.counts, capacity)
            return PackRuns.of_table(rows, int(num_packs))
    # A pack never holds more items than tokens, so a limit of ``capacity`` items has no effect.
    max_items = capacity if max_items is None else max_items
    table: list[tuple[int, int, int, int, int]] = []
    num_packs = 0
    # Open packs by their room: heaps of runs (first_pack, num_packs, items_before), the one opened
    # first on top.
    rooms: list[int] = []  # ascending
    open_runs: dict[int, list[tuple[int, int, int]]] = {}

    def leave_open(room: int, first_pack: int, packs: int, items_before: int) -> None:
        if room == 0 or items_before == max_items:
            return
        if not open_runs.get(room):
            insort(rooms, room)
            open_runs[room] = []
        heappush(open_runs[room], (first_pack, packs, items_before))

    for length, num_left in zip(
        items.lengths[::-1].tolist(), items.counts[::-1].tolist(), strict=True
    ):
        while num_left:
            # The fullest packs with room: least room that is at least ``length``, or new packs.
            index = bisect_left(rooms, length)
            if index == len(rooms):
                room, first_pack, items_before = capacity, num_packs, 0
                packs = -(-num_left // min(capacity // length, max_items))
                num_packs += packs
            else:
                room = rooms[index]
                first_pack, packs, items_before = heappop(open_runs[room])
                if not open_runs[room]:
                    del rooms[index]
            # The run is divided: packs that take all copies, one that takes the remaining items,
            # untouched packs.
            copies = min(room // length, max_items - items_before)
            num_full = min(packs, num_left // copies)
            if num_full:
                table.append((length, first_pack, num_full, copies, items_before))
                leave_open(room - copies * length, first_pack, num_full, items_before + copies)
                num_left -= num_full * copies
            if num_full < packs and num_left:
                table.append((length, first_pack + num_full, 1, num_left, items_before))
                leave_open(
                    room - num_left * length, first_pack + num_full, 1, items_before + num_left
                )
                num_full, num_left = num_full + 1, 0
            if num_full < packs:
                leave_open(room, first_pack + num_full, packs - num_full, items_before)
    return PackRuns.of_table(table, num_packs)


def place_decreasing(
    lengths: Int64Array, counts: Int64Array, capacity: int
) -> tuple[Int64Array, int]:
    """Return the rows of ``PackRuns.of_table`` and the number of packs, without a limit of items; to
    be compiled.

    Runs of packs with the same room form a linked list in order of opening. A binary tree over the
    rooms, whose nodes are set if any room below them has a run, finds the least sufficient room.
    """
    num_leaves = 1
    while num_leaves <= capacity:
        num_leaves *= 2
    has_run = np.zeros(2 * num_leaves, dtype=np.bool_)
    first_run = np.full(capacity + 1, -1, dtype=np.int64)  # of each room
    # Enough rows for most data sets: a table that grows is copied, and all its memory pages are
    # new.
    num_rows_expected = 64 + 2 * len(lengths)
    runs = np.empty(
        (num_rows_expected, 4), dtype=np.int64
    )  # rows: first_pack, packs, items_before, next run of the room
    num_runs = 0
    table = np.empty((num_rows_expected, 5), dtype=np.int64)
    num_rows = 0
    num_packs = 0
    for index in range(len(lengths) - 1, -1, -1):
        length = lengths[index]
        num_left = counts[index]
        while num_left > 0:
            # Find the least room of at least ``length``: go up until the right neighbor is set, then
            # down.
            node = num_leaves + length
            if not has_run[node]:
                while node > 1 and (node & 1 or not has_run[node + 1]):
                    node //= 2
                node += 1
            # Take the run that was opened first, or open packs for all remaining items.
            if node == 2:
                room = np.int64(capacity)
                copies = room // length
                first_pack, packs, items_before = num_packs, (num_left + copies - 1) // copies, 0
                num_packs += packs
            else:
                while node < num_leaves:
                    node = 2 * node if has_run[2 * node] else 2 * node + 1
                room = node - num_leaves
                run = first_run[room]
                first_pack, packs, items_before = runs[run, 0], runs[run, 1], runs[run, 2]
                first_run[room] = runs[run, 3]
                if first_run[room] < 0:
                    has_run[node] = False
                    while node > 1 and not has_run[node ^ 1]:
                        node //= 2
                        has_run[node] = False
            if num_rows + 2 > len(table):
                table = np.concatenate((table, np.empty_like(table)))
            if num_runs + 3 > len(runs):
                runs = np.concatenate((runs, np.empty_like(runs)))
            copies = room // length
            num_full = min(packs, num_left // copies)
            num_left -= num_full * copies
            num_partial = 1 if num_full < packs and num_left > 0 else 0
            for piece in range(3):
                # The run is divided: packs that take all copies, one that takes the remaining
                # items, untouched packs.
                if piece == 0:
                    first, count, placed_items = first_pack, num_full, copies
                elif piece == 1:
                    first, count, placed_items = first_pack + num_full, num_partial, num_left
                else:
                    first = first_pack + num_full + num_partial
                    count, placed_items = packs - num_full - num_partial, np.int64(0)
                if count == 0:
                    continue
                if placed_items > 0:
                    table[num_rows, 0] = length
                    table[num_rows, 1], table[num_rows, 2] = first, count
                    table[num_rows, 3], table[num_rows, 4] = placed_items, items_before
                    num_rows += 1
                new_room = room - placed_items * length
                if new_room == 0:
                    continue
                # Insert the part among the runs of its room, in order of opening, and set the nodes
                # above it.
                runs[num_runs, 0], runs[num_runs, 1] = first, count
                runs[num_runs, 2] = items_before + placed_items
                previous = -1
                following = first_run[new_room]
                while following >= 0 and runs[following, 0] < first:
                    previous = following
                    following = runs[following, 3]
                runs[num_runs, 3] = following
                if previous < 0:
                    first_run[new_room] = num_runs
                else:
                    runs[previous, 3] = num_runs
                num_runs += 1
                node = num_leaves + new_room
                while node > 0 and not has_run[node]:
                    has_run[node] = True
                    node //= 2
            if num_partial:
                num_left = np.int64(0)
    return table[:num_rows], num_packs

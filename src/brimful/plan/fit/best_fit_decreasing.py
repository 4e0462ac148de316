"""Best fit decreasing: longest first, each in the fullest pack with room."""

from bisect import bisect_left, insort
from heapq import heappop, heappush

import numpy as np

from brimful.base.compiling import compiled
from brimful.base.typing import Int64Array
from brimful.plan.counts.histogram import Histogram
from brimful.plan.counts.runs import PackRuns

_DE_BRUIJN = np.uint64(0x03F79D71B4CB0A89)
"""A number in which each sequence of six bits occurs once (Leiserson, Prokop and Randall, 1998)."""

_SHIFT = np.uint64(58)
"""Number of bits below the first six of 64."""

_PLACE_OF_BIT = np.zeros(64, dtype=np.int64)
"""Index of the only set bit, by the first six bits of ``_DE_BRUIJN`` shifted by this index."""
_PLACE_OF_BIT[[(0x03F79D71B4CB0A89 << bit & (1 << 64) - 1) >> 58 for bit in range(64)]] = np.arange(64)

_MAX_COMPILED_CAPACITY = 1 << 24
"""Capacity up to which the compiled form runs: it keeps a table with an entry for each room."""


def best_fit_decreasing(items: Histogram, *, capacity: int, max_items: int | None = None) -> PackRuns:
    """Place items, longest first, each in the fullest pack that still has room.

    ::

        capacity 7     6        5        3        3        1        1
        pack 0       6 ------ 6 ------ 6 ------ 6 ------ 6 1      6 1
        pack 1                5 ------ 5 ------ 5 ------ 5 ------ 5         fill 19/21
        pack 2                         3 ------ 3 3 ---- 3 3 ---- 3 3 1

    Equal items are placed in order of position, and of equally full packs the one that was opened first is taken, so
    the result is a function of the arguments. It equals item-level best fit decreasing, run by run: once an item went
    into the fullest pack with room, this pack is still the fullest for the next equal item, so each pack in a run of
    equal packs with room ``r`` takes ``r // length`` copies before the next run is considered.

    With ``max_items`` it is the cardinality-constrained form (Krause, Shen and Schwetman, 1975): a pack with that many
    items is closed. The result is close to the bound if few packs reach the limit. If most of them would, long items
    should be spread, as ``pack_vectors`` does::

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

    Cost: O(d·p) for d distinct lengths and p distinct patterns, independent of the number of items; tens of
    milliseconds in plain Python.
    Source: best fit decreasing is Johnson (1973); on counts, Krell et al. (2021).

    >>> items = Histogram.of(np.array([3, 3, 5, 6, 1, 1]))
    >>> best_fit_decreasing(items, capacity=7, max_items=2).num_packs
    3
    """
    kernel = None
    if max_items is None and capacity <= _MAX_COMPILED_CAPACITY:
        kernel = compiled(_best_fit_decreasing, int(items.counts.sum()), sum_calls=True)
    if kernel is not None:
        table, num_packs = kernel(items.lengths, items.counts, capacity)
        return PackRuns.of_table(table, int(num_packs))
    # A pack never holds more items than tokens, so a limit of ``capacity`` items has no effect.
    return _run_by_run(items, capacity, capacity if max_items is None else max_items)


def _run_by_run(items: Histogram, capacity: int, max_items: int) -> PackRuns:
    """Place run after run, in plain Python."""
    table: list[tuple[int, int, int, int, int]] = []
    num_packs = 0
    # Open packs by their room: heaps of runs (first_pack, num_packs, items_before), the one opened first on top.
    rooms: list[int] = []  # ascending
    open_runs: dict[int, list[tuple[int, int, int]]] = {}

    def leave_open(room: int, first_pack: int, packs: int, items_before: int) -> None:
        if room == 0 or items_before == max_items:
            return
        if not open_runs.get(room):
            insort(rooms, room)
            open_runs[room] = []
        heappush(open_runs[room], (first_pack, packs, items_before))

    for length, remaining in zip(items.lengths[::-1].tolist(), items.counts[::-1].tolist(), strict=True):
        while remaining:
            # The fullest packs with room: least room that is at least ``length``, or new packs.
            index = bisect_left(rooms, length)
            if index == len(rooms):
                room, first_pack, items_before = capacity, num_packs, 0
                packs = -(-remaining // min(capacity // length, max_items))
                num_packs += packs
            else:
                room = rooms[index]
                first_pack, packs, items_before = heappop(open_runs[room])
                if not open_runs[room]:
                    del rooms[index]
            # The run is divided: packs that take all copies, one that takes the remaining items, untouched packs.
            copies = min(room // length, max_items - items_before)
            num_full = min(packs, remaining // copies)
            if num_full:
                table.append((length, first_pack, num_full, copies, items_before))
                leave_open(room - copies * length, first_pack, num_full, items_before + copies)
                remaining -= num_full * copies
            if num_full < packs and remaining:
                table.append((length, first_pack + num_full, 1, remaining, items_before))
                leave_open(room - remaining * length, first_pack + num_full, 1, items_before + remaining)
                num_full, remaining = num_full + 1, 0
            if num_full < packs:
                leave_open(room, first_pack + num_full, packs - num_full, items_before)
    return PackRuns.of_table(table, num_packs)


def _best_fit_decreasing(lengths: Int64Array, counts: Int64Array, capacity: int) -> tuple[Int64Array, int]:
    """Return the rows of ``PackRuns.of_table`` and the number of packs; to be compiled.

    Runs of packs with the same room form a linked list in order of opening. A tree of 64-bit words over the rooms,
    whose bits are set if any room below them has a run, finds the least sufficient room.
    """
    num_levels = 1
    while capacity >> (6 * num_levels) > 0:
        num_levels += 1
    # Bit i of a level stands for word i of the level below, on level 0 for room i; words after the last are 0.
    has_run = np.zeros((num_levels, (capacity >> 6) + 2), dtype=np.uint64)
    one = np.uint64(1)
    head = np.full(capacity + 1, -1, dtype=np.int64)  # first run of each room
    # Enough rows for most data sets: a table that grows is copied, and all its memory pages are new.
    num_rows_expected = 64 + 2 * len(lengths)
    runs = np.empty(
        (num_rows_expected, 4), dtype=np.int64
    )  # rows: first_pack, packs, items_before, next run of the room
    num_runs = 0
    table = np.empty((num_rows_expected, 5), dtype=np.int64)
    num_rows = 0
    num_packs = 0
    for number in range(len(lengths) - 1, -1, -1):
        length = lengths[number]
        remaining = counts[number]
        while remaining > 0:
            # Find the least room of at least ``length``: go up until a word has a bit at or after it, then down.
            room = length
            level = 0
            word = np.uint64(0)
            while level < num_levels:
                word = has_run[level, room >> 6] >> np.uint64(room & 63)
                if word != 0:
                    break
                room = (room >> 6) + 1
                level += 1
            # Take the run that was opened first, or open packs for all remaining items.
            if level == num_levels:
                room = capacity
                copies = capacity // length
                first_pack, packs, items_before = num_packs, (remaining + copies - 1) // copies, 0
                num_packs += packs
            else:
                room += _PLACE_OF_BIT[((word & (~word + one)) * _DE_BRUIJN) >> _SHIFT]
                while level > 0:
                    level -= 1
                    word = has_run[level, room]
                    room = (room << 6) + _PLACE_OF_BIT[((word & (~word + one)) * _DE_BRUIJN) >> _SHIFT]
                run = head[room]
                first_pack, packs, items_before = runs[run, 0], runs[run, 1], runs[run, 2]
                head[room] = runs[run, 3]
                if head[room] < 0:
                    place = room
                    for upper in range(num_levels):
                        has_run[upper, place >> 6] &= ~(one << np.uint64(place & 63))
                        place >>= 6
                        if has_run[upper, place] != 0:
                            break
            if num_rows + 2 > len(table):
                table = np.concatenate((table, np.empty_like(table)))
            if num_runs + 3 > len(runs):
                runs = np.concatenate((runs, np.empty_like(runs)))
            copies = room // length
            num_full = min(packs, remaining // copies)
            remaining -= num_full * copies
            num_partial = 1 if num_full < packs and remaining > 0 else 0
            for part in range(3):
                # The run is divided: packs that take all copies, one that takes the remaining items, untouched packs.
                if part == 0:
                    first, count, placed_items = first_pack, num_full, copies
                elif part == 1:
                    first, count, placed_items = first_pack + num_full, num_partial, remaining
                else:
                    first = first_pack + num_full + num_partial
                    count, placed_items = packs - num_full - num_partial, np.int64(0)
                if count == 0:
                    continue
                if placed_items > 0:
                    table[num_rows, 0], table[num_rows, 1], table[num_rows, 2] = length, first, count
                    table[num_rows, 3], table[num_rows, 4] = placed_items, items_before
                    num_rows += 1
                new_room = room - placed_items * length
                if new_room == 0:
                    continue
                # Insert the part among the runs of its room, in order of opening, and set the bits above it.
                runs[num_runs, 0], runs[num_runs, 1], runs[num_runs, 2] = first, count, items_before + placed_items
                previous = -1
                following = head[new_room]
                while following >= 0 and runs[following, 0] < first:
                    previous = following
                    following = runs[following, 3]
                runs[num_runs, 3] = following
                if previous < 0:
                    head[new_room] = num_runs
                else:
                    runs[previous, 3] = num_runs
                num_runs += 1
                place = new_room
                for upper in range(num_levels):
                    word = has_run[upper, place >> 6]
                    has_run[upper, place >> 6] = word | (one << np.uint64(place & 63))
                    if word != 0:
                        break
                    place >>= 6
            if num_partial:
                remaining = np.int64(0)
    return table[:num_rows], num_packs

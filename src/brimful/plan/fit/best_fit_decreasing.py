"""Best fit decreasing: longest first, each in the fullest pack with room."""

from bisect import bisect_left, insort
from heapq import heappop, heappush

from brimful.base.compiling import compiled
from brimful.plan.counts.histogram import Histogram
from brimful.plan.counts.runs import PackRuns
from brimful.plan.fit.decreasing_kernel import place_decreasing

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
    kernel = None
    if max_items is None and capacity <= _MAX_COMPILED_CAPACITY:
        kernel = compiled(place_decreasing, int(items.counts.sum()), sum_calls=True)
    if kernel is not None:
        table, num_packs = kernel(items.lengths, items.counts, capacity)
        return PackRuns.of_table(table, int(num_packs))
    # A pack never holds more items than tokens, so a limit of ``capacity`` items has no effect.
    return _run_by_run(items, capacity, capacity if max_items is None else max_items)


def _run_by_run(items: Histogram, capacity: int, max_items: int) -> PackRuns:
    """Place run after run, in plain Python."""
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

"""The passes over all samples, compiled if numba is installed.

Each has a NumPy form with the same result. Compiled code pays from a few hundred thousand samples on; below that, and
without numba, the NumPy forms run.

Algorithms that take one item after the other are compiled where they stand (``brimful.compiling.compiled``): the
function in the algorithm's own file is plain Python and plain Python runs it where compiling does not pay.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from brimful.compiling import compiled_form, pays
from brimful.typing import AnyIntArray, Int64Array

__all__ = ["Kernels", "kernels"]


class Kernels:
    """Compiled functions; made once by ``kernels``."""

    def __init__(self) -> None:
        self.count: Any = compiled_form(_count)
        self.sort: Any = compiled_form(_sort)
        self.fill: Any = compiled_form(_fill)
        self.deal: Any = compiled_form(_deal)
        self.count_up: Any = compiled_form(_count_up)
        self.begin_in_order: Any = compiled_form(_begin_in_order)
        self.best_fit: Any = compiled_form(_best_fit)


@cache
def _compiled() -> Kernels | None:
    return None if compiled_form(_count) is None else Kernels()


def kernels(num_items: int) -> Kernels | None:
    """The compiled passes if they pay for that many items, else None."""
    return _compiled() if pays(num_items) else None


def _count(lengths: AnyIntArray, counts: Int64Array) -> None:
    for length in lengths:
        counts[length] += 1


def _sort(lengths: AnyIntArray, place: Int64Array, order: AnyIntArray) -> None:
    """The second half of a counting sort, stable: ``place`` says where the first item of each length goes."""
    for item in range(len(lengths)):
        length = lengths[item]
        order[place[length]] = item
        place[length] += 1


def _fill(
    first: Int64Array,
    packs: Int64Array,
    copies: Int64Array,
    slot: Int64Array,
    begins: AnyIntArray,
    order: AnyIntArray,
    items: AnyIntArray,
) -> None:
    at = 0
    for run in range(len(first)):
        each = copies[run]
        behind = slot[run]
        for pack in range(first[run], first[run] + packs[run]):
            target = begins[pack] + behind
            for copy in range(each):
                items[target + copy] = order[at]
                at += 1


def _deal(
    lengths: AnyIntArray,
    start: Int64Array,
    stride: Int64Array,
    copies: Int64Array,
    packs: Int64Array,
    turn: Int64Array,
    chunk: AnyIntArray,
    dealt: AnyIntArray,
) -> None:
    """A counting sort chunk by chunk, whose runs of equal lengths go to stretches of packs (``plan.stretches``).

    ``turn`` says for each length which stretch is its first, and then which is next; ``chunk`` is room for items.
    """
    top = len(turn) - 1
    full = np.zeros(top + 1, dtype=np.int64)  # packs that are complete in the stretch whose turn it is
    slot = np.zeros(top + 1, dtype=np.int64)  # copies that the pack behind them has
    ends = np.zeros(top + 1, dtype=np.int64)
    for begin in range(0, len(lengths), len(chunk)):
        stop = min(begin + len(chunk), len(lengths))
        ends[:] = 0
        for item in range(begin, stop):
            ends[lengths[item]] += 1
        before = np.int64(0)
        for length in range(top + 1):
            count = ends[length]
            ends[length] = before
            before += count
        for item in range(begin, stop):
            length = lengths[item]
            chunk[ends[length]] = item
            ends[length] += 1
        at = np.int64(0)
        for length in range(top + 1):
            end = ends[length]
            if at == end:
                continue
            stretch = turn[length]
            pack = full[length]
            while at < end:
                far = stride[stretch]
                each = copies[stretch]
                if each == 1:
                    count = min(end - at, packs[stretch] - pack)
                    target = start[stretch] + pack * far
                    for number in range(at, at + count):
                        dealt[target] = chunk[number]
                        target += far
                    at += count
                    pack += count
                else:
                    held = slot[length]
                    while at < end and pack < packs[stretch]:
                        count = min(end - at, each - held)
                        target = start[stretch] + pack * far + held
                        for number in range(count):
                            dealt[target + number] = chunk[at + number]
                        at += count
                        held += count
                        if held == each:
                            held = np.int64(0)
                            pack += 1
                    slot[length] = held
                if pack == packs[stretch]:
                    stretch += 1
                    pack = np.int64(0)
            turn[length] = stretch
            full[length] = pack


def _count_up(sizes: Int64Array, widths: Int64Array, offsets: Int64Array) -> None:
    """Items before each pack, but the first: level after level of packs of one size."""
    at = 0
    items = np.int64(0)
    for level in range(len(sizes)):
        for _ in range(widths[level]):
            items += sizes[level]
            at += 1
            offsets[at] = items


def _begin_in_order(sizes: AnyIntArray, pack_order: AnyIntArray, begins: AnyIntArray, offsets: Int64Array) -> None:
    """Where packs begin that come in another order, and the offsets of that order: one look at each pack."""
    items = np.int64(0)
    for place in range(len(pack_order)):
        pack = pack_order[place]
        begins[pack] = items
        items += np.int64(sizes[pack])
        offsets[place + 1] = items


def _best_fit(lengths: Int64Array, counts: Int64Array, capacity: int) -> tuple[Int64Array, int]:
    """Best fit decreasing on counts: rows of (length, first, packs, copies, slot), and the number of packs.

    Runs of packs with the same room form a list in order of opening. A binary tree over the rooms, whose nodes say
    whether any room below them is taken, finds the least room that suffices.
    """
    leaves = 1
    while leaves < capacity + 2:
        leaves *= 2
    taken = np.zeros(2 * leaves, dtype=np.bool_)
    head = np.full(capacity + 1, -1, dtype=np.int64)
    size = 1024
    node = np.empty((size, 4), dtype=np.int64)  # first, packs, slot, next
    nodes = 0
    placed = np.empty((size, 5), dtype=np.int64)
    runs = 0
    num_packs = 0
    for number in range(len(lengths) - 1, -1, -1):
        length = lengths[number]
        left = counts[number]
        while left > 0:
            # The least taken room of at least ``length``.
            at = leaves + length
            if not taken[at]:
                while at > 1 and (at % 2 == 1 or not taken[at + 1]):
                    at //= 2
                if at > 1:
                    at += 1
                    while at < leaves:
                        at = 2 * at if taken[2 * at] else 2 * at + 1
            if at <= 1:
                room = capacity
                each = capacity // length
                first, packs, slot = num_packs, (left + each - 1) // each, 0
                num_packs += packs
            else:
                room = at - leaves
                top = head[room]
                first, packs, slot = node[top, 0], node[top, 1], node[top, 2]
                head[room] = node[top, 3]
                if head[room] < 0:
                    taken[at] = False
                    at //= 2
                    while at >= 1 and not (taken[2 * at] or taken[2 * at + 1]):
                        taken[at] = False
                        at //= 2
            if runs + 2 > len(placed):
                placed = np.concatenate((placed, np.empty_like(placed)))
            if nodes + 3 > len(node):
                node = np.concatenate((node, np.empty_like(node)))
            copies = room // length
            full = min(packs, left // copies)
            left -= full * copies
            some = 1 if full < packs and left > 0 else 0
            for part in range(3):
                # The run falls apart: filled packs, one that takes what is left, untouched packs.
                if part == 0:
                    begin, count, held = first, full, copies
                elif part == 1:
                    begin, count, held = first + full, some, left
                else:
                    begin, count, held = first + full + some, packs - full - some, np.int64(0)
                if count == 0:
                    continue
                if held > 0:
                    placed[runs, 0], placed[runs, 1], placed[runs, 2] = length, begin, count
                    placed[runs, 3], placed[runs, 4] = held, slot
                    runs += 1
                rest = room - held * length
                if rest == 0:
                    continue
                node[nodes, 0], node[nodes, 1], node[nodes, 2] = begin, count, slot + held
                before = -1
                after = head[rest]
                while after >= 0 and node[after, 0] < begin:
                    before = after
                    after = node[after, 3]
                node[nodes, 3] = after
                if before < 0:
                    head[rest] = nodes
                else:
                    node[before, 3] = nodes
                nodes += 1
                up = leaves + rest
                while up >= 1 and not taken[up]:
                    taken[up] = True
                    up //= 2
            if some:
                left = np.int64(0)
    return placed[:runs], num_packs

"""Lengths as counts: what the decreasing algorithms see.

Packs that hold the same lengths are one pattern. An algorithm that works on counts places whole runs of
equal lengths into whole runs of equal packs, so its cost depends on the number of different lengths and not
on the number of samples. Krell et al., "Efficient sequence packing without cross-contamination" (2021), pack
histograms for BERT this way; here the runs also say which sample goes where, in the order item-level
algorithms would choose.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from brimful.plan.packing import Packing
from brimful.typing import AnyIntArray, Int64Array

__all__ = ["Placements", "decreasing_order", "histogram"]

_CHUNK_ITEMS = 1 << 20


def histogram(lengths: AnyIntArray, *, capacity: int) -> Int64Array:
    """Number of items of each length: ``int64[capacity + 1]``. Histograms of parts add up to that of the whole.

    >>> histogram(np.array([3, 1, 3]), capacity=4).tolist()
    [0, 1, 0, 2, 0]
    """
    return np.bincount(lengths, minlength=capacity + 1).astype(np.int64, copy=False)


def decreasing_order(lengths: AnyIntArray) -> AnyIntArray:
    """Positions of the lengths, longest first, equal ones in order of position: ``int[num_items]``.

    >>> decreasing_order(np.array([3, 3, 5, 1])).tolist()
    [2, 0, 1, 3]
    """
    if len(lengths) == 0:
        return np.empty(0, dtype=np.int32)
    top = int(lengths.max())
    # A stable sort of 16-bit keys is a radix sort in NumPy; wider keys take two passes of it, low half first.
    falling = top - lengths
    dtype = np.int32 if len(lengths) < 2**31 else np.int64
    if top < 1 << 16:
        return np.argsort(falling.astype(np.uint16), kind="stable").astype(dtype, copy=False)
    low = np.argsort((falling & 0xFFFF).astype(np.uint16), kind="stable")
    high = np.argsort((falling >> 16).astype(np.uint16)[low], kind="stable")
    return low[high].astype(dtype, copy=False)


@dataclass
class Placements:
    """Runs of equal items put into runs of equal packs, longest items first.

    Run ``r`` puts ``copies[r]`` items of one length into each of the packs ``first[r] … first[r] + packs[r] - 1``,
    behind the ``slot[r]`` items that each of them holds already.

    Lengths ``3 3 5 6 1 1``, capacity 7, best fit decreasing::

        run   items   first packs copies slot
        0     6         0     1     1      0      pack 0: 6
        1     5         1     1     1      0      pack 1: 5
        2     3 3       2     1     2      0      pack 2: 3 3
        3     1         0     1     1      1      pack 0: 6 1
        4     1         2     1     1      2      pack 2: 3 3 1
    """

    first: list[int] = field(default_factory=list)
    packs: list[int] = field(default_factory=list)
    copies: list[int] = field(default_factory=list)
    slot: list[int] = field(default_factory=list)
    num_packs: int = 0

    def add(self, first: int, packs: int, copies: int, slot: int) -> None:
        """One more run."""
        self.first.append(first)
        self.packs.append(packs)
        self.copies.append(copies)
        self.slot.append(slot)

    def fill(self, order: AnyIntArray) -> Packing:
        """Name the items: those of ``order`` (longest first) go to the runs in turn.

        Args:
            order: ``int[num_items]``, as ``decreasing_order`` gives it.
        """
        first = np.array(self.first, dtype=np.int64)
        packs = np.array(self.packs, dtype=np.int64)
        copies = np.array(self.copies, dtype=np.int64)
        slot = np.array(self.slot, dtype=np.int64)
        offsets = self._offsets(first, packs, copies)
        items = np.empty_like(order)
        ends = np.cumsum(packs * copies)
        begin = 0
        while begin < len(ends):
            # Whole runs, together about a million items, so that the temporary arrays stay small.
            before = int(ends[begin - 1]) if begin else 0
            stop = max(int(np.searchsorted(ends, before + _CHUNK_ITEMS, side="right")), begin + 1)
            self._fill_runs(
                first[begin:stop],
                packs[begin:stop],
                copies[begin:stop],
                slot[begin:stop],
                offsets,
                order[before : int(ends[stop - 1])],
                items,
            )
            begin = stop
        return Packing(offsets, items)

    def _offsets(self, first: Int64Array, packs: Int64Array, copies: Int64Array) -> Int64Array:
        change = np.zeros(self.num_packs + 1, dtype=np.int64)
        np.add.at(change, first, copies)
        np.subtract.at(change, first + packs, copies)
        offsets = np.zeros(self.num_packs + 1, dtype=np.int64)
        np.cumsum(np.cumsum(change[:-1]), out=offsets[1:])
        return offsets

    @staticmethod
    def _fill_runs(
        first: Int64Array,
        packs: Int64Array,
        copies: Int64Array,
        slot: Int64Array,
        offsets: Int64Array,
        run_items: AnyIntArray,
        items: AnyIntArray,
    ) -> None:
        sizes = packs * copies
        for start in range(0, len(run_items), _CHUNK_ITEMS):  # a single run may be longer than a chunk
            part = run_items[start : start + _CHUNK_ITEMS]
            if len(part) == len(run_items):
                run = np.repeat(np.arange(len(sizes)), sizes)
            else:
                run = np.searchsorted(np.cumsum(sizes), np.arange(start, start + len(part)), side="right")
            within = np.arange(start, start + len(part)) - (np.cumsum(sizes) - sizes)[run]
            each = copies[run]
            pack, copy = np.divmod(within, each)
            items[offsets[first[run] + pack] + slot[run] + copy] = part

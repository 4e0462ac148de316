"""Lengths as counts: what the decreasing algorithms see.

Packs that hold the same lengths are one pattern. An algorithm that works on counts places whole runs of
equal lengths into whole runs of equal packs, so its cost depends on the number of different lengths and not
on the number of samples. Krell et al., "Efficient sequence packing without cross-contamination" (2021), pack
histograms for BERT this way; here the runs also say which sample goes where, in the order item-level
algorithms would choose.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from brimful.plan.kernels import kernels
from brimful.plan.packing import Packing
from brimful.plan.stretches import Stretches
from brimful.typing import AnyIntArray, Int64Array, Offsets

__all__ = ["Histogram", "Placements", "decreasing_order", "radix_order"]

_CHUNK_ITEMS = 1 << 20
"""Items that NumPy works on at a time: what it needs beside them stays small, and in the cache."""
_DENSE = 1 << 24
"""Lengths below this are counted in a table with an entry for each; longer ones are sorted."""


@dataclass(frozen=True)
class Histogram:
    """Distinct lengths and how many items have each. Histograms of parts add up to that of the whole.

    Attributes:
        lengths: ``int64[d]``, ascending, each at least 1.
        counts: ``int64[d]``, each at least 1.

    >>> Histogram.of(np.array([3, 1, 3])) + Histogram.of(np.array([7, 1]))
    Histogram({1: 2, 3: 2, 7: 1})
    """

    lengths: Int64Array
    counts: Int64Array

    @classmethod
    def of(cls, lengths: AnyIntArray, *, longest: int | None = None) -> Histogram:
        """Count the items of an array; each length at least 1. Say what the longest is to save a look at all."""
        if len(lengths) == 0:
            return cls(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
        top = int(lengths.max()) if longest is None else longest
        if top >= _DENSE:
            distinct, numbers = np.unique(lengths, return_counts=True)
            return cls(distinct.astype(np.int64), numbers.astype(np.int64))
        compiled = kernels(len(lengths))
        if compiled is not None:
            dense = np.zeros(top + 1, dtype=np.int64)
            compiled.count(lengths, dense)
        else:
            dense = np.zeros(top + 1, dtype=np.int64)
            for begin in range(0, len(lengths), _CHUNK_ITEMS):  # bincount works on a copy of 8 bytes an item
                dense += np.bincount(lengths[begin : begin + _CHUNK_ITEMS], minlength=top + 1)
        return cls.of_dense(dense)

    @classmethod
    def of_dense(cls, counts: AnyIntArray) -> Histogram:
        """From counts by length: entry ``i`` is the number of items of length ``i``."""
        lengths = np.flatnonzero(counts)
        return cls(lengths, np.asarray(counts)[lengths].astype(np.int64))

    @classmethod
    def of_counts(cls, lengths: AnyIntArray, counts: AnyIntArray) -> Histogram:
        """From lengths in any order, of which some may stand more than once, and how many items each entry is for.

        >>> Histogram.of_counts(np.array([4, 8, 4]), np.array([1, 2, 3]))
        Histogram({4: 4, 8: 2})
        """
        distinct, place = np.unique(lengths, return_inverse=True)
        numbers = np.zeros(len(distinct), dtype=np.int64)
        np.add.at(numbers, place, counts)
        return cls(distinct.astype(np.int64, copy=False), numbers)

    def __add__(self, other: Histogram) -> Histogram:
        return Histogram.of_counts(
            np.concatenate([self.lengths, other.lengths]), np.concatenate([self.counts, other.counts])
        )

    @property
    def num_items(self) -> int:
        """Items in all."""
        return int(self.counts.sum())

    @property
    def total(self) -> int:
        """Sum of all lengths."""
        return int((self.lengths * self.counts).sum())

    def __repr__(self) -> str:
        shown = ", ".join(f"{length}: {count}" for length, count in zip(self.lengths[:8], self.counts[:8], strict=True))
        return f"Histogram({{{shown}{', …' if len(self.lengths) > 8 else ''}}})"


def decreasing_order(lengths: AnyIntArray, items: Histogram | None = None) -> AnyIntArray:
    """Positions of the lengths, longest first, equal ones in order of position.

    Args:
        lengths: each at least 0.
        items: their histogram, if it is known already.

    Returns:
        ``int32[num_items]``, or int64 where the positions need it.

    >>> decreasing_order(np.array([3, 3, 5, 1])).tolist()
    [2, 0, 1, 3]
    """
    dtype: type[np.signedinteger[Any]] = np.int32 if len(lengths) < 2**31 else np.int64
    if len(lengths) == 0:
        return np.empty(0, dtype=dtype)
    items = Histogram.of(lengths) if items is None else items
    top = int(items.lengths[-1])
    compiled = kernels(len(lengths))
    if top >= _DENSE or (compiled is None and len(lengths) <= _CHUNK_ITEMS):
        return radix_order(lengths, top).astype(dtype, copy=False)
    place = np.zeros(top + 1, dtype=np.int64)
    place[items.lengths] = items.num_items - np.cumsum(items.counts)
    order = np.empty(len(lengths), dtype=dtype)
    if compiled is not None:
        compiled.sort(lengths, place, order)
    else:
        _sort(lengths, top, place, order)
    return order


def _sort(lengths: AnyIntArray, top: int, place: Int64Array, order: AnyIntArray) -> None:
    """Counting sort in NumPy: a million items are sorted, then their runs of equal lengths moved into place."""
    numbers = np.arange(_CHUNK_ITEMS)
    for begin in range(0, len(lengths), _CHUNK_ITEMS):
        part = lengths[begin : begin + _CHUNK_ITEMS]
        within = radix_order(part, top)
        counts = np.bincount(part, minlength=top + 1)
        present = np.flatnonzero(counts)[::-1]
        each = counts[present]
        target = np.repeat(place[present] - (np.cumsum(each) - each), each)
        target += numbers[: len(part)]
        within += begin
        order[target] = within
        place[present] += each


def radix_order(lengths: AnyIntArray, top: int) -> AnyIntArray:
    """Positions of the lengths, longest first, equal ones in order of position; ``top`` is at least the longest.

    A stable sort of 16-bit keys is a radix sort in NumPy; wider keys take two passes of it, low half first.
    """
    if top < 1 << 16:
        return np.argsort(np.uint16(top) - lengths.astype(np.uint16), kind="stable")
    falling = top - lengths
    low = np.argsort((falling & 0xFFFF).astype(np.uint16), kind="stable")
    high = np.argsort((falling >> 16).astype(np.uint16)[low], kind="stable")
    wide: AnyIntArray = low[high]
    return wide


@dataclass(frozen=True)
class Placements:
    """Runs of equal items put into runs of equal packs, longest items first.

    Run ``r`` puts ``copies[r]`` items of ``length[r]`` into each of the packs ``first[r] … first[r] + packs[r] - 1``,
    behind the ``slot[r]`` items that each of them holds already.

    Lengths ``3 3 5 6 1 1``, capacity 7, best fit decreasing::

        run   length  first packs copies slot
        0     6         0     1     1      0      pack 0: 6
        1     5         1     1     1      0      pack 1: 5
        2     3         2     1     2      0      pack 2: 3 3
        3     1         0     1     1      1      pack 0: 6 1
        4     1         2     1     1      2      pack 2: 3 3 1

    All arrays are ``int64[num_runs]``.
    """

    length: Int64Array
    first: Int64Array
    packs: Int64Array
    copies: Int64Array
    slot: Int64Array
    num_packs: int

    @classmethod
    def of_runs(cls, runs: Sequence[tuple[int, int, int, int, int]], num_packs: int) -> Placements:
        """From (length, first, packs, copies, slot), longest first."""
        return cls.of_table(np.array(runs, dtype=np.int64).reshape(-1, 5), num_packs)

    @classmethod
    def of_table(cls, table: Int64Array, num_packs: int) -> Placements:
        """The same from ``int64[num_runs, 5]``."""
        length, first, packs, copies, slot = np.ascontiguousarray(table.T)
        return cls(length, first, packs, copies, slot, num_packs)

    @classmethod
    def of_patterns(cls, patterns: Iterable[tuple[Sequence[int], int]]) -> Placements:
        """From patterns and how many packs have each: ``([6, 1], 3)`` is three packs of a 6 and a 1.

        >>> Placements.of_patterns([([3, 3, 1], 1), ([6, 1], 1)]).fill(np.array([3, 0, 1, 4, 5])).as_lists()
        [[0, 1, 4], [3, 5]]
        """
        runs: list[tuple[int, int, int, int, int]] = []
        num_packs = 0
        for pattern, multiplicity in patterns:
            lengths, copies = np.unique(np.asarray(pattern, dtype=np.int64), return_counts=True)
            slot = 0
            for length, count in zip(lengths[::-1].tolist(), copies[::-1].tolist(), strict=True):
                runs.append((length, num_packs, multiplicity, count, slot))
                slot += count
            num_packs += multiplicity
        runs.sort(key=lambda run: (-run[0], run[1]))
        return cls.of_runs(runs, num_packs)

    def stretches(self) -> Stretches:
        """The same runs, cut where the size of packs changes."""
        return Stretches.of(first=self.first, packs=self.packs, copies=self.copies, slot=self.slot)

    def offsets(self) -> Offsets:
        """``int64[num_packs + 1]``: items before each pack."""
        return self.stretches().offsets()

    def fill(self, order: AnyIntArray, pack_order: AnyIntArray | None = None) -> Packing:
        """Name the items: those of ``order`` (longest first) go to the runs in turn.

        Args:
            order: ``int[num_items]``, as ``decreasing_order`` gives it.
            pack_order: ``int[num_packs]``, which pack comes first, second, …; as they were opened if None.
        """
        begins: AnyIntArray
        if pack_order is None:
            offsets = self.offsets()
            begins = offsets[:-1]
        else:
            sizes = self.stretches().pack_sizes()
            offsets = np.zeros(self.num_packs + 1, dtype=np.int64)
            begins = np.empty(self.num_packs, dtype=order.dtype)
            rank = kernels(self.num_packs)
            if rank is not None:
                rank.begin_in_order(sizes, pack_order, begins, offsets)
            else:
                np.cumsum(sizes[pack_order], dtype=np.int64, out=offsets[1:])
                begins[pack_order] = offsets[:-1]
        items = np.empty_like(order)
        compiled = kernels(len(order))
        if compiled is not None:
            compiled.fill(self.first, self.packs, self.copies, self.slot, begins, order, items)
        else:
            self._fill(begins, order, items)
        return Packing(offsets, items)

    def _fill(self, begins: AnyIntArray, order: AnyIntArray, items: AnyIntArray) -> None:
        """In NumPy, some million items at a time so that the temporary arrays stay small."""
        runs = self._short_runs()
        ends = np.cumsum(runs.packs * runs.copies)
        at = 0
        while at < len(ends):
            before = int(ends[at - 1]) if at else 0
            stop = max(int(np.searchsorted(ends, before + _CHUNK_ITEMS, side="right")), at + 1)
            part = slice(at, stop)
            targets = _targets(runs.first[part], runs.packs[part], runs.copies[part], runs.slot[part], begins, order)
            items[targets.astype(np.intp)] = order[before : int(ends[stop - 1])]
            at = stop

    def _short_runs(self) -> Placements:
        """The same runs, those longer than a chunk cut into several."""
        pieces = -(-(self.packs * self.copies) // _CHUNK_ITEMS)
        if not len(pieces) or int(pieces.max()) <= 1:
            return self
        runs: list[tuple[int, int, int, int, int]] = []
        rows = zip(self.length, self.first, self.packs, self.copies, self.slot, strict=True)
        for length, first, packs, copies, slot in rows:
            each = max(1, _CHUNK_ITEMS // int(copies))
            for begin in range(0, int(packs), each):
                runs.append((int(length), int(first) + begin, min(each, int(packs) - begin), int(copies), int(slot)))
        return Placements.of_runs(runs, self.num_packs)


def _targets(
    first: Int64Array, packs: Int64Array, copies: Int64Array, slot: Int64Array, begins: AnyIntArray, order: AnyIntArray
) -> AnyIntArray:
    """Where each item of some runs goes, in the order of the items."""
    dtype = order.dtype  # as narrow as positions are: half the memory to move
    before = np.cumsum(packs) - packs
    pack = np.arange(int(packs.sum()), dtype=dtype)
    pack += np.repeat((first - before).astype(dtype), packs)
    target: AnyIntArray = begins[pack].astype(dtype)
    target += np.repeat(slot.astype(dtype), packs)
    if int(copies.max()) == 1:
        return target
    each = np.repeat(copies.astype(dtype), packs)
    number = np.cumsum(each, dtype=dtype)
    target -= number - each
    items: AnyIntArray = np.arange(int(number[-1]), dtype=dtype)
    items += np.repeat(target, each)
    return items

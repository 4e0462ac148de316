"""Packs of counts: runs of equal items in runs of equal packs.

Packs that hold the same lengths are one pattern. An algorithm on counts places whole runs of equal lengths into whole
runs of equal packs, so its cost depends on the number of distinct lengths and not on the number of samples. Krell et al.,
"Efficient sequence packing without cross-contamination" (2021), pack histograms for BERT this way; here the runs also
say which sample goes where, in the order that item-level algorithms would choose.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from brimful.compiling import compiled
from brimful.plan.counts.counting_sort import decreasing_order
from brimful.plan.counts.histogram import Histogram
from brimful.plan.packing import Packing
from brimful.ragged import positions_type, ranges, starts_of
from brimful.typing import AnyIntArray, Int64Array, Offsets

_TILE_PACKS = 1 << 12
"""Packs that compiled code fills before it goes on to the next ones: their places stay in the cache meanwhile."""

_CHUNK_ITEMS = 1 << 18
"""Items that NumPy assigns at a time: its temporary arrays stay small, and in the cache."""

_PACKS_OF_A_RUN = 4
"""Packs for each run up to which the sizes of packs are counted in a table of all packs."""


@dataclass(frozen=True)
class PackRuns:
    """Runs of equal items put into runs of equal packs, longest items first.

    Run ``r`` puts ``copies_per_pack[r]`` items of ``length[r]`` into each of the packs ``first_pack[r]`` to
    ``first_pack[r] + packs_in_run[r] - 1``, behind the ``items_before[r]`` items that each of them holds.

    Lengths ``3 3 5 6 1 1``, capacity 7, best fit decreasing::

        run   length  first_pack packs_in_run copies_per_pack items_before
        0     6           0           1             1              0          pack 0: 6
        1     5           1           1             1              0          pack 1: 5
        2     3           2           1             2              0          pack 2: 3 3
        3     1           0           1             1              1          pack 0: 6 1
        4     1           2           1             1              2          pack 2: 3 3 1

    All arrays are ``int64[num_runs]``.

    Attributes:
        num_packs: of all runs; none is empty.
    """

    length: Int64Array
    first_pack: Int64Array
    packs_in_run: Int64Array
    copies_per_pack: Int64Array
    items_before: Int64Array
    num_packs: int

    @classmethod
    def of_table(cls, table: Int64Array | Sequence[tuple[int, int, int, int, int]], num_packs: int) -> PackRuns:
        """Make runs of rows (length, first_pack, packs_in_run, copies_per_pack, items_before), longest first."""
        length, first_pack, packs_in_run, copies_per_pack, items_before = np.ascontiguousarray(
            np.asarray(table, dtype=np.int64).reshape(-1, 5).T
        )
        return cls(length, first_pack, packs_in_run, copies_per_pack, items_before, num_packs)

    def pack_sizes(self) -> npt.NDArray[np.unsignedinteger[Any]]:
        """Return the items of each pack, ``[num_packs]``, in the narrowest type: they are looked up at random."""
        if self.num_packs <= _PACKS_OF_A_RUN * len(self.length):
            # Few packs a run: a table of all packs is shorter than sorting the edges. Sums are exact below 2**53.
            begins, ends = (
                np.bincount(packs, weights=self.copies_per_pack, minlength=self.num_packs + 1)
                for packs in (self.first_pack, self.first_pack + self.packs_in_run)
            )
            sizes = np.cumsum(begins - ends)[:-1]
            return sizes.astype(np.min_scalar_type(int(sizes.max(initial=0))))
        edges, edge = np.unique(
            np.concatenate([self.first_pack, self.first_pack + self.packs_in_run]), return_inverse=True
        )
        # The size of packs changes where a run begins or ends, and is the same in between.
        change = np.zeros(len(edges), dtype=np.int64)
        np.add.at(change, edge[: len(self.length)], self.copies_per_pack)
        np.subtract.at(change, edge[len(self.length) :], self.copies_per_pack)
        sizes = np.cumsum(change)[:-1]
        return np.repeat(sizes.astype(np.min_scalar_type(int(sizes.max(initial=0)))), np.diff(edges))

    def assign(self, order: AnyIntArray, pack_order: AnyIntArray | None = None) -> Packing:
        """Assign the items of ``order``, longest first, to the runs one after the other.

        Args:
            order: ``int[num_items]``, as ``decreasing_order`` gives it.
            pack_order: ``int[num_packs]``, the pack that comes first, second, …; the order of opening if None.
        """
        lay, assign = compiled(_lay_packs, self.num_packs), compiled(_assign, len(order))
        offsets, begins = _places_of_packs(self.pack_sizes(), pack_order, order.dtype, lay)
        # Only the places are needed from here on: the items take its memory.
        del pack_order
        items = np.empty_like(order)
        self._write_items(begins, order, items, assign)
        return Packing(offsets, items)

    def assign_by_position(self, lengths: AnyIntArray, parts: Sequence[Histogram]) -> Packing:
        """Assign items longest first, equal ones in order of position: ``assign(decreasing_order(lengths))`` in parts.

        Only the items of a part have positions beside those in packs.

        Args:
            lengths: ``int[num_items]``, of the items that the runs were made for.
            parts: histograms of the first ``num_items`` of them, the next ones, and so on, as of ``Histogram.of_parts``.
        """
        dtype = positions_type(len(lengths))
        lay, assign = compiled(_lay_packs, self.num_packs), compiled(_assign, len(lengths))
        offsets, begins = _places_of_packs(self.pack_sizes(), None, np.dtype(dtype), lay)
        items = np.empty(len(lengths), dtype=dtype)
        # The next item of each length, in the order of all items: behind all longer ones, and the equal ones before.
        distinct, first_run = np.unique(self.length, return_index=True)
        next_item = starts_of(self.packs_in_run * self.copies_per_pack)[first_run]
        begin = 0
        for part in parts:
            end = begin + part.num_items
            order = decreasing_order(lengths[begin:end], part).astype(dtype, copy=False)
            order += dtype(begin)
            classes = np.searchsorted(distinct, part.lengths)
            runs = self if len(parts) == 1 else self._between(next_item[classes][::-1], part.counts[::-1])
            runs._write_items(begins, order, items, assign)
            next_item[classes] += part.counts
            begin = end
        return Packing(offsets, items)

    def _between(self, first_item: Int64Array, num_items: Int64Array) -> PackRuns:
        """Return the runs that put some items into the packs, as pieces of these runs.

        Args:
            first_item: ``int64[k]``, first items of ranges of equal lengths, in the order of all items; ascending.
            num_items: ``int64[k]``, items of each range, at least 1.
        """
        run_items = self.packs_in_run * self.copies_per_pack
        run_begins = starts_of(run_items)
        end_item = first_item + num_items
        first_run = np.searchsorted(run_begins, first_item, side="right") - 1
        num_runs = np.searchsorted(run_begins, end_item, side="left") - first_run
        run = ranges(first_run, num_runs)
        # Items of each run that lie in the range, counted in the run.
        begin = np.maximum(np.repeat(first_item, num_runs) - run_begins[run], 0)
        end = np.minimum(np.repeat(end_item, num_runs) - run_begins[run], run_items[run])
        copies, items_before, first_pack = self.copies_per_pack[run], self.items_before[run], self.first_pack[run]
        # A range begins and ends amid the copies of a pack: a head, whole packs, and a tail.
        first_whole = -(-begin // copies)
        end_whole = np.maximum(end // copies, first_whole)
        head = np.minimum(first_whole * copies, end) - begin
        tail = np.maximum(end - end_whole * copies, 0)
        one = np.ones_like(head)
        # int64[3, 4, num_pieces]: first pack, packs, copies in each and items before, of heads, wholes and tails.
        pieces = np.array(
            [
                [first_pack + begin // copies, one, head, items_before + begin % copies],
                [first_pack + first_whole, end_whole - first_whole, copies, items_before],
                [first_pack + end_whole, one, tail, items_before],
            ]
        )
        has_items = ((pieces[:, 1] > 0) & (pieces[:, 2] > 0)).T
        length = np.repeat(self.length[run], has_items.sum(axis=1))
        first_pack, num_packs, copies, items_before = pieces.transpose(1, 2, 0)[:, has_items]
        return PackRuns(length, first_pack, num_packs, copies, items_before, self.num_packs)

    def _write_items(
        self, begins: AnyIntArray, order: AnyIntArray, items: AnyIntArray, assign: Callable[..., None] | None
    ) -> None:
        """Write the items of ``order`` to the places of their packs, which begin at ``begins`` in ``items``."""
        if assign is not None:
            assign(*self._in_tiles(), begins, order, items)
        else:
            _assign_in_numpy(
                self.first_pack, self.packs_in_run, self.copies_per_pack, self.items_before, begins, order, items
            )

    def _in_tiles(self) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array, Int64Array]:
        """Cut the runs at every ``_TILE_PACKS`` packs, and bring the pieces into the order of their packs.

        Returns:
            First item in the order of items, first pack, packs, copies in each, and items before, of each piece.
        """
        if self.num_packs <= _TILE_PACKS:
            first_item = starts_of(self.packs_in_run * self.copies_per_pack)
            return first_item, self.first_pack, self.packs_in_run, self.copies_per_pack, self.items_before
        first_tile = self.first_pack // _TILE_PACKS
        num_tiles = (self.first_pack + self.packs_in_run - 1) // _TILE_PACKS - first_tile + 1
        tile = ranges(first_tile, num_tiles)
        order = np.argsort(tile, kind="stable")
        tile, run = tile[order], np.repeat(np.arange(len(num_tiles)), num_tiles)[order]
        first_pack = np.maximum(self.first_pack[run], tile * _TILE_PACKS)
        end_pack = np.minimum(self.first_pack[run] + self.packs_in_run[run], (tile + 1) * _TILE_PACKS)
        copies = self.copies_per_pack[run]
        first_item = starts_of(self.packs_in_run * self.copies_per_pack)[run]
        first_item += (first_pack - self.first_pack[run]) * copies
        return first_item, first_pack, end_pack - first_pack, copies, self.items_before[run]


def _places_of_packs(
    sizes: AnyIntArray, pack_order: AnyIntArray | None, dtype: np.dtype[Any], lay: Callable[..., None] | None
) -> tuple[Offsets, AnyIntArray]:
    """Lay packs one behind the other.

    Args:
        sizes: items of each pack, in the order of opening.
        pack_order: as of ``PackRuns.assign``.
        dtype: holds the number of all items.
        lay: ``_lay_packs``, compiled; None for its form in NumPy.

    Returns:
        The offsets of the packs in their new order; and the first place of each, in the order of opening.
    """
    offsets = np.zeros(len(sizes) + 1, dtype=np.int64)
    begins: AnyIntArray = offsets[:-1] if pack_order is None else np.empty(len(sizes), dtype=dtype)
    (lay or _lay_packs_in_numpy)(sizes, pack_order, offsets, begins)
    return offsets, begins


def _lay_packs(sizes: AnyIntArray, pack_order: AnyIntArray | None, offsets: Offsets, begins: AnyIntArray) -> None:
    """Write the offsets, and the begins if there is a pack order (else they are the offsets); to be compiled."""
    num_items = np.int64(0)
    for place in range(len(sizes)):
        if pack_order is None:
            num_items += np.int64(sizes[place])
        else:
            pack = pack_order[place]
            begins[pack] = num_items
            num_items += np.int64(sizes[pack])
        offsets[place + 1] = num_items


def _lay_packs_in_numpy(
    sizes: AnyIntArray, pack_order: AnyIntArray | None, offsets: Offsets, begins: AnyIntArray
) -> None:
    """Write the same in NumPy."""
    sizes_in_order = sizes if pack_order is None else sizes[pack_order]
    for first in range(0, len(sizes), _CHUNK_ITEMS):  # cumsum works on a copy of 8 bytes a pack
        part = slice(first + 1, first + 1 + _CHUNK_ITEMS)
        offsets[part] = np.cumsum(sizes_in_order[first : first + _CHUNK_ITEMS], dtype=np.int64) + offsets[first]
    if pack_order is not None:
        begins[pack_order] = offsets[:-1]


def _assign(
    first_item: Int64Array,
    first_pack: Int64Array,
    packs_in_run: Int64Array,
    copies_per_pack: Int64Array,
    items_before: Int64Array,
    begins: AnyIntArray,
    order: AnyIntArray,
    items: AnyIntArray,
) -> None:
    """Write the items of each piece of a run to the places of its packs; to be compiled.

    Args:
        first_item, first_pack, packs_in_run, copies_per_pack, items_before: of the pieces of runs, as of ``_in_tiles``.
        begins: first place of each pack, in the order of opening.
        order: as of ``PackRuns.assign``.
        items: ``int[num_items]``, written.
    """
    # Pieces lie in the order of their packs, so that a pack is filled while its places are in the cache. Indices are
    # unsigned: those that may be negative are tested at every use, which takes as long as the copying.
    for run in range(len(first_pack)):
        next_item = np.uint64(first_item[run])
        copies = np.uint64(copies_per_pack[run])
        before = items_before[run]
        first = np.uint64(first_pack[run])
        for pack in range(first, first + np.uint64(packs_in_run[run])):
            begin = np.uint64(begins[pack] + before)
            for copy in range(copies):
                items[begin + copy] = order[next_item]
                next_item += np.uint64(1)


def _assign_in_numpy(
    first_pack: Int64Array,
    packs_in_run: Int64Array,
    copies_per_pack: Int64Array,
    items_before: Int64Array,
    begins: AnyIntArray,
    order: AnyIntArray,
    items: AnyIntArray,
) -> None:
    """Write the same in NumPy, chunk by chunk; runs longer than a chunk are cut into several."""
    packs_per_piece = np.maximum(1, _CHUNK_ITEMS // copies_per_pack)
    if bool((packs_in_run > packs_per_piece).any()):
        pieces = -(-packs_in_run // packs_per_piece)
        run = np.repeat(np.arange(len(first_pack)), pieces)
        packs_before = ranges(np.zeros(len(pieces), dtype=np.int64), pieces) * packs_per_piece[run]
        first_pack = first_pack[run] + packs_before
        packs_in_run = np.minimum(packs_in_run[run] - packs_before, packs_per_piece[run])
        copies_per_pack, items_before = copies_per_pack[run], items_before[run]
    ends = np.cumsum(packs_in_run * copies_per_pack)
    piece = 0
    while piece < len(ends):
        begin = int(ends[piece - 1]) if piece else 0
        stop = max(int(np.searchsorted(ends, begin + _CHUNK_ITEMS, side="right")), piece + 1)
        part = slice(piece, stop)
        # The place of the first copy in each pack of these runs; as narrow as the positions are.
        num_packs = packs_in_run[part]
        pack = np.arange(int(num_packs.sum()), dtype=order.dtype)
        pack += np.repeat((first_pack[part] - starts_of(num_packs)).astype(order.dtype), num_packs)
        places: AnyIntArray = begins[pack].astype(order.dtype)
        places += np.repeat(items_before[part].astype(order.dtype), num_packs)
        if int(copies_per_pack[part].max()) > 1:
            # Copies of one pack stand side by side: the place of the first, plus the number of the copy.
            copies = np.repeat(copies_per_pack[part].astype(order.dtype), num_packs)
            places = ranges(places, copies)
        items[places.astype(np.intp)] = order[begin : int(ends[stop - 1])]  # NumPy is faster with its own index type
        piece = stop

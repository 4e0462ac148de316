"""Packs of counts: runs of equal items in runs of equal packs.

Packs that hold the same lengths are one pattern. An algorithm on counts places whole runs of equal lengths into whole
runs of equal packs, so its cost depends on the number of distinct lengths and not on the number of samples. Krell et
al., "Efficient sequence packing without cross-contamination" (2021), pack histograms for BERT this way. Here the runs
also determine the pack of each sample, in the order that item-level algorithms would choose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from brimful.compiling import compiled
from brimful.plan.counts.assigning import assign_pieces, lay_packs, write_items
from brimful.plan.counts.bucketing import TILE_PACKS, bucket_kernels, read_records, write_records
from brimful.plan.counts.counting_sort import decreasing_order
from brimful.plan.counts.histogram import Histogram
from brimful.plan.packing import Packing
from brimful.ragged import positions_type, ranges, starts_of
from brimful.typing import AnyIntArray, Int64Array

_ITEMS_FOR_BUCKETS = 1 << 22
"""Number of items from which packs are reordered through buckets: fewer items are near the cache anyway."""

_PACKS_OF_A_RUN = 4
"""Packs per run up to which the sizes of packs are counted in a table of all packs."""


@dataclass(frozen=True)
class PackRuns:
    """Runs of equal items put into runs of equal packs, longest items first.

    Run ``r`` puts ``copies_per_pack[r]`` items of ``length[r]`` into each of the packs ``first_pack[r]`` to
    ``first_pack[r] + packs_in_run[r] - 1``, after the ``items_before[r]`` items that each pack already holds.

    Lengths ``3 3 5 6 1 1``, capacity 7, best fit decreasing::

        run   length  first_pack packs_in_run copies_per_pack items_before
        0     6           0           1             1              0          pack 0: 6
        1     5           1           1             1              0          pack 1: 5
        2     3           2           1             2              0          pack 2: 3 3
        3     1           0           1             1              1          pack 0: 6 1
        4     1           2           1             1              2          pack 2: 3 3 1

    All arrays are ``int64[num_runs]``.

    Attributes:
        num_packs: number of packs in all runs; no pack is empty.
    """

    length: Int64Array
    first_pack: Int64Array
    packs_in_run: Int64Array
    copies_per_pack: Int64Array
    items_before: Int64Array
    num_packs: int

    @classmethod
    def of_table(cls, table: Int64Array | Sequence[tuple[int, int, int, int, int]], num_packs: int) -> PackRuns:
        """Make runs from rows (length, first_pack, packs_in_run, copies_per_pack, items_before), longest first."""
        length, first_pack, packs_in_run, copies_per_pack, items_before = np.ascontiguousarray(
            np.asarray(table, dtype=np.int64).reshape(-1, 5).T
        )
        return cls(length, first_pack, packs_in_run, copies_per_pack, items_before, num_packs)

    def pack_sizes(self) -> npt.NDArray[np.unsignedinteger[Any]]:
        """Return the number of items of each pack, ``[num_packs]``, in the narrowest type: reads are random."""
        if self.num_packs <= _PACKS_OF_A_RUN * len(self.length):
            # Few packs per run: a table of all packs is cheaper than sorting the edges. Sums are exact below 2**53.
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

    def assign(self, order: AnyIntArray, places: AnyIntArray | None = None) -> Packing:
        """Assign the items of ``order``, longest first, to the runs one after the other.

        Args:
            order: ``int[num_items]``, from ``decreasing_order``. The packing may reuse its memory.
            places: ``int[num_packs]``, the place of each pack in the packing; None for the order of opening.
        """
        sizes = self.pack_sizes()
        if places is not None and len(order) >= _ITEMS_FOR_BUCKETS:
            kernels = bucket_kernels(len(order))
            if kernels is not None:
                records = write_records(self.in_tiles(TILE_PACKS), sizes, places, order, kernels)
                # Only the records are needed from here on: the items reuse the memory of their order.
                del places
                return Packing(read_records(records, len(sizes), order, kernels), order)
        assign = compiled(assign_pieces, len(order))
        offsets, begins = lay_packs(sizes, places, order.dtype)
        # Only the begins are needed from here on: the memory of the places is freed for the items.
        del places
        items = np.empty_like(order)
        write_items(self, begins, order, items, assign)
        return Packing(offsets, items)

    def assign_by_position(self, lengths: AnyIntArray, parts: Sequence[Histogram]) -> Packing:
        """Assign items longest first, equal ones in order of position: ``assign(decreasing_order(lengths))`` in parts.

        Outside of the packs, memory holds positions only for the items of one part.

        Args:
            lengths: ``int[num_items]``, lengths of the items that the runs were made for.
            parts: histograms of consecutive parts of the lengths, from ``Histogram.of_parts``.
        """
        dtype = positions_type(len(lengths))
        assign = compiled(assign_pieces, len(lengths))
        offsets, begins = lay_packs(self.pack_sizes(), None, np.dtype(dtype))
        items = np.empty(len(lengths), dtype=dtype)
        # The next item of each length, in the order of all items: after all longer items and the earlier equal ones.
        distinct, first_run = np.unique(self.length, return_index=True)
        next_item = starts_of(self.packs_in_run * self.copies_per_pack)[first_run]
        begin = 0
        for part in parts:
            end = begin + part.num_items
            order = decreasing_order(lengths[begin:end], part).astype(dtype, copy=False)
            order += dtype(begin)
            classes = np.searchsorted(distinct, part.lengths)
            runs = self if len(parts) == 1 else self._between(next_item[classes][::-1], part.counts[::-1])
            write_items(runs, begins, order, items, assign)
            next_item[classes] += part.counts
            begin = end
        return Packing(offsets, items)

    def _between(self, first_item: Int64Array, num_items: Int64Array) -> PackRuns:
        """Return the runs that put some items into the packs, as pieces of these runs.

        Args:
            first_item: ``int64[k]``, ascending: first items of ranges of equal lengths, in the order of all items.
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
        # A range may begin and end within the copies of a pack: it has a head, whole packs, and a tail.
        first_whole = -(-begin // copies)
        end_whole = np.maximum(end // copies, first_whole)
        head = np.minimum(first_whole * copies, end) - begin
        tail = np.maximum(end - end_whole * copies, 0)
        one = np.ones_like(head)
        # int64[3, 4, num_pieces]: first pack, packs, copies per pack and items before, for heads, wholes and tails.
        pieces = np.array(
            [
                [first_pack + begin // copies, one, head, items_before + begin % copies],
                [first_pack + first_whole, end_whole - first_whole, copies, items_before],
                [first_pack + end_whole, one, tail, items_before],
            ]
        )
        has_items = ((pieces[:, 1] > 0) & (pieces[:, 2] > 0)).T
        length = np.repeat(self.length[run], has_items.sum(axis=1))
        # Contiguous like all other runs: code is compiled for each layout.
        first_pack, num_packs, copies, items_before = np.ascontiguousarray(pieces.transpose(1, 2, 0)[:, has_items])
        return PackRuns(length, first_pack, num_packs, copies, items_before, self.num_packs)

    def in_tiles(self, tile_packs: int) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array, Int64Array]:
        """Cut the runs at every ``tile_packs`` packs, and sort the pieces by their packs.

        Returns:
            For each piece: first item in the order of items, first pack, packs, copies per pack, and items before.
        """
        if self.num_packs <= tile_packs:
            first_item = starts_of(self.packs_in_run * self.copies_per_pack)
            return first_item, self.first_pack, self.packs_in_run, self.copies_per_pack, self.items_before
        first_tile = self.first_pack // tile_packs
        num_tiles = (self.first_pack + self.packs_in_run - 1) // tile_packs - first_tile + 1
        tile = ranges(first_tile, num_tiles)
        order = np.argsort(tile, kind="stable")
        tile, run = tile[order], np.repeat(np.arange(len(num_tiles)), num_tiles)[order]
        first_pack = np.maximum(self.first_pack[run], tile * tile_packs)
        end_pack = np.minimum(self.first_pack[run] + self.packs_in_run[run], (tile + 1) * tile_packs)
        copies = self.copies_per_pack[run]
        first_item = starts_of(self.packs_in_run * self.copies_per_pack)[run]
        first_item += (first_pack - self.first_pack[run]) * copies
        return first_item, first_pack, end_pack - first_pack, copies, self.items_before[run]

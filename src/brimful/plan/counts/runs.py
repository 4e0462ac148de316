"""Packs of counts: runs of equal items in runs of equal packs.

Packs that hold the same lengths are one pattern. An algorithm on counts places whole runs of equal
lengths into whole runs of equal packs, so its cost depends on the number of distinct lengths and
not on the number of samples. Krell et al., "Efficient sequence packing without cross-contamination"
(2021), pack histograms for BERT this way. Here the runs also determine the pack of each sample, in
the order that item-level algorithms would choose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from brimful.base.compiling import compiled
from brimful.base.ragged import ranges
from brimful.base.typing import AnyIntArray, Int64Array
from brimful.plan.packing import Packing


@dataclass(frozen=True)
class PackRuns:
    """Runs of equal items put into runs of equal packs, longest items first.

    Run ``r`` puts ``copies_per_pack[r]`` items of ``length[r]`` into each of the packs
    ``first_pack[r]`` to ``first_pack[r] + packs_in_run[r] - 1``, after the ``items_before[r]``
    items that each pack already holds.

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
    def of_table(
        cls, table: Int64Array | Sequence[tuple[int, int, int, int, int]], num_packs: int
    ) -> PackRuns:
        """Make runs from rows (length, first_pack, packs_in_run, copies_per_pack, items_before),
        longest first.
        """
        length, first_pack, packs_in_run, copies_per_pack, items_before = np.ascontiguousarray(
            np.asarray(table, dtype=np.int64).reshape(-1, 5).T
        )
        return cls(length, first_pack, packs_in_run, copies_per_pack, items_before, num_packs)

    def pack_sizes(self) -> npt.NDArray[np.unsignedinteger[Any]]:
        """Return the number of items of each pack, ``[num_packs]``, in the narrowest type: reads
        are random.
        """
        # The size of packs changes where a run begins or ends, and is the same in between.
        sizes, copies = (
            np.zeros(self.num_packs + 1, dtype=np.int32),
            self.copies_per_pack.astype(np.int32),
        )
        np.add.at(sizes, self.first_pack, copies)
        np.subtract.at(sizes, self.first_pack + self.packs_in_run, copies)
        np.cumsum(sizes, out=sizes)
        return sizes[:-1].astype(np.min_scalar_type(int(sizes.max(initial=0))))

    def assign(self, order: AnyIntArray, pack_indices: AnyIntArray | None = None) -> Packing:
        """Assign the items of ``order``, longest first, to the runs one after the other.

        Args:
            order: ``int[num_items]``, from ``decreasing_order``.
            pack_indices: ``int[num_packs]``, the place of each pack in the packing; None for the order of
                opening.
        """
        sizes = self.pack_sizes()
        target = slice(None) if pack_indices is None else pack_indices
        offsets = np.zeros(len(sizes) + 1, dtype=np.int64)
        offsets[1:][target] = sizes
        np.cumsum(offsets, out=offsets)
        items = np.empty_like(order)
        assign = compiled(assign_runs, len(order)) or _assign_in_numpy
        assign(
            *(self.first_pack, self.packs_in_run, self.copies_per_pack, self.items_before),
            *(offsets[:-1][target], order, items),
        )
        return Packing(offsets, items)


def assign_runs(
    first_pack: Int64Array,
    packs_in_run: Int64Array,
    copies_per_pack: Int64Array,
    items_before: Int64Array,
    pack_starts: AnyIntArray,
    order: AnyIntArray,
    items: AnyIntArray,
) -> None:
    """Write the items of each run to the places of its packs; to be compiled.

    Args:
        first_pack, packs_in_run, copies_per_pack, items_before: columns of ``PackRuns``.
        pack_starts: first item of each pack, in the order of opening.
        order: see ``PackRuns.assign``.
        items: ``int[num_items]``, the output.
    """
    # Indices are unsigned: a signed index is checked at every use for a negative value, which takes
    # as long as the copying.
    next_item = np.uint64(0)
    for run in range(len(first_pack)):
        copies = np.uint64(copies_per_pack[run])
        first = np.uint64(first_pack[run])
        for pack in range(first, first + np.uint64(packs_in_run[run])):
            start = np.uint64(pack_starts[pack] + items_before[run])
            for copy in range(copies):
                items[start + copy] = order[next_item]
                next_item += np.uint64(1)


def _assign_in_numpy(
    first_pack: Int64Array,
    packs_in_run: Int64Array,
    copies_per_pack: Int64Array,
    items_before: Int64Array,
    pack_starts: AnyIntArray,
    order: AnyIntArray,
    items: AnyIntArray,
) -> None:
    """Do the same in NumPy, some runs at a time."""
    start = 0
    for runs in np.array_split(np.arange(len(first_pack)), 1 + (len(order) >> 19)):
        packs, copies = packs_in_run[runs], copies_per_pack[runs]
        indices = pack_starts[ranges(first_pack[runs], packs)] + np.repeat(
            items_before[runs], packs
        )
        # Copies in one pack are contiguous: the place of the first, plus the number of the copy.
        indices = ranges(indices, np.repeat(copies, packs))
        items[indices] = order[start : start + len(indices)]
        start += len(indices)

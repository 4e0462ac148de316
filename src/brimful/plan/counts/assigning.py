"""Items written to the packs of their runs, once the first item of each pack is known."""

from __future__ import annotations

import numpy as np

from brimful.base.ragged import ranges, starts_of
from brimful.base.typing import AnyIntArray, Int64Array

CHUNK_ITEMS = 1 << 18
"""Items that NumPy assigns at a time, so that its temporary arrays stay in the cache."""


def assign_runs(
    first_pack: Int64Array,
    packs_in_run: Int64Array,
    copies_per_pack: Int64Array,
    items_before: Int64Array,
    begins: AnyIntArray,
    order: AnyIntArray,
    items: AnyIntArray,
) -> None:
    """Write the items of each run to the places of its packs; to be compiled.

    Args:
        first_pack, packs_in_run, copies_per_pack, items_before: columns of ``PackRuns``.
        begins: first item of each pack, in the order of opening.
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
            begin = np.uint64(begins[pack] + items_before[run])
            for copy in range(copies):
                items[begin + copy] = order[next_item]
                next_item += np.uint64(1)


def assign_in_numpy(
    first_pack: Int64Array,
    packs_in_run: Int64Array,
    copies_per_pack: Int64Array,
    items_before: Int64Array,
    begins: AnyIntArray,
    order: AnyIntArray,
    items: AnyIntArray,
) -> None:
    """Do the same in NumPy, chunk by chunk; runs longer than a chunk are cut into several."""
    packs_per_piece = np.maximum(1, CHUNK_ITEMS // copies_per_pack)
    if bool((packs_in_run > packs_per_piece).any()):
        parts = -(-packs_in_run // packs_per_piece)
        run = np.repeat(np.arange(len(first_pack)), parts)
        packs_before = ranges(np.zeros(len(parts), dtype=np.int64), parts) * packs_per_piece[run]
        first_pack = first_pack[run] + packs_before
        packs_in_run = np.minimum(packs_in_run[run] - packs_before, packs_per_piece[run])
        copies_per_pack, items_before = copies_per_pack[run], items_before[run]
    ends = np.cumsum(packs_in_run * copies_per_pack)
    piece = 0
    while piece < len(ends):
        begin = int(ends[piece - 1]) if piece else 0
        stop = max(int(np.searchsorted(ends, begin + CHUNK_ITEMS, side="right")), piece + 1)
        part = slice(piece, stop)
        # The place of the first copy in each pack of these runs; as narrow as the positions are.
        num_packs = packs_in_run[part]
        pack = np.arange(int(num_packs.sum()), dtype=order.dtype)
        pack += np.repeat((first_pack[part] - starts_of(num_packs)).astype(order.dtype), num_packs)
        places: AnyIntArray = begins[pack].astype(order.dtype)
        places += np.repeat(items_before[part].astype(order.dtype), num_packs)
        if int(copies_per_pack[part].max()) > 1:
            # Copies in one pack are contiguous: the place of the first, plus the number of the
            # copy.
            copies = np.repeat(copies_per_pack[part].astype(order.dtype), num_packs)
            places = ranges(places, copies)
        items[places.astype(np.intp)] = order[
            begin : int(ends[stop - 1])
        ]  # NumPy is faster with its own index type
        piece = stop

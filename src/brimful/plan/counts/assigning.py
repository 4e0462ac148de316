"""Items written to the packs of their runs, once the first item of each pack is known."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from brimful.base.ragged import ranges, starts_of
from brimful.base.typing import AnyIntArray, Int64Array, Offsets

CHUNK_ITEMS = 1 << 18
"""Items that NumPy assigns at a time, so that its temporary arrays stay in the cache."""


TILE_PACKS = 1 << 12
"""Packs that compiled code fills before it continues with the next ones, so that their places stay
in the cache.
"""


Pieces: TypeAlias = tuple[Int64Array, Int64Array, Int64Array, Int64Array, Int64Array]
"""Pieces of runs: first item in the order of items, first pack, packs, copies per pack, and items
before.
"""


def lay_packs(
    sizes: AnyIntArray, places: AnyIntArray | None, dtype: np.dtype[Any]
) -> tuple[Offsets, AnyIntArray]:
    """Lay packs out one after the other.

    Args:
        sizes: items of each pack, in the order of opening.
        places: see ``PackRuns.assign``.
        dtype: wide enough for the number of all items.

    Returns:
        The offsets of the packs in their new order, and the first item of each pack in the order of
        opening.
    """
    num_packs = len(sizes)
    offsets = np.zeros(num_packs + 1, dtype=np.int64)
    # In parts: NumPy makes an index of 8 bytes a pack.
    parts = [slice(first, first + CHUNK_ITEMS) for first in range(0, num_packs, CHUNK_ITEMS)]
    ends = offsets[1:]
    for part in parts:
        ends[part if places is None else places[part]] = sizes[part]
    np.cumsum(offsets, out=offsets)
    if places is None:
        return offsets, offsets[:-1]
    begins = np.empty(num_packs, dtype=dtype)
    for part in parts:
        begins[part] = offsets[places[part]]
    return offsets, begins


def assign_pieces(
    pieces: Pieces, begins: AnyIntArray, order: AnyIntArray, items: AnyIntArray
) -> None:
    """Write the items of each piece of a run to the places of its packs; to be compiled.

    Args:
        pieces: from ``PackRuns.in_tiles``.
        begins: first item of each pack, in the order of opening.
        order: see ``PackRuns.assign``.
        items: ``int[num_items]``, the output.
    """
    first_item, first_pack, packs_in_run, copies_per_pack, items_before = pieces
    # Pieces are in the order of their packs, so that a pack is filled while its places are in the
    # cache. Indices are unsigned: a signed index is checked at every use for a negative value,
    # which takes as long as the copying.
    for run in range(len(first_pack)):
        next_item = np.uint64(first_item[run])
        copies = np.uint64(copies_per_pack[run])
        before = items_before[run]
        first = np.uint64(first_pack[run])
        if copies == 1:
            for pack in range(np.uint64(packs_in_run[run])):
                items[np.uint64(begins[first + pack] + before)] = order[next_item + pack]
            continue
        for pack in range(first, first + np.uint64(packs_in_run[run])):
            begin = np.uint64(begins[pack] + before)
            for copy in range(copies):
                items[begin + copy] = order[next_item]
                next_item += np.uint64(1)


def assign_in_numpy(
    columns: tuple[Int64Array, ...], begins: AnyIntArray, order: AnyIntArray, items: AnyIntArray
) -> None:
    """Do the same in NumPy, chunk by chunk; runs longer than a chunk are cut into several.

    Args:
        columns: of the runs, as of ``Pieces`` without the first: runs are in the order of their
            items.
        begins, order, items: as for ``assign_pieces``.
    """
    first_pack, packs_in_run, copies_per_pack, items_before = columns
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

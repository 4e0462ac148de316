"""Packs of many items brought into a random order by way of buckets, so that nothing is written all over the memory.

A pack that is written to its place in a random order misses the cache, and the table of pages, at its every item. So packs
are written in the order of opening, each as a record behind the other records of its bucket: the bucket of ``2**shift``
places that follow each other. A bucket fits the cache; there its records are read in the order of their places::

    pack    place   record            bucket 0, of places 0 and 1     bucket 1, of places 2 and 3
    0: 6 1    2     (0, 2) 6 1                                         (0, 2) 6 1
    1: 5      1     (1, 1) 5          (1, 1) 5
    2: 3 3    0     (0, 2) 3 3        (1, 1) 5  (0, 2) 3 3
    3: 1 1    3     (1, 2) 1 1                                         (0, 2) 6 1  (1, 2) 1 1
    items                             3 3 5                            6 1 1 1

This is the first pass of a radix sort by place, from the highest digit on, whose second pass has memory for the whole digit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from brimful.compiling import compiled
from brimful.ragged import offsets_of
from brimful.typing import AnyIntArray, Int64Array, Offsets

BUCKET_WORDS = 1 << 18
"""Words of the records of one bucket, on average: they stay in a cache, and there are few buckets to write to in turn."""

TILE_PACKS = 1 << 9
"""Packs whose records are written before the next ones: their words stay in the first cache meanwhile, or near it."""

STEP = 4
"""Items that are copied together: a loop of a fixed number is not guessed at, which takes longer than most packs."""


@dataclass(frozen=True)
class Records:
    """Records of all packs, by bucket.

    A record is a head and the items of its pack. The head is the place in its bucket, and behind it, in the lowest
    ``size_bits`` bits, the number of items.

    Attributes:
        words: ``int[num_items + num_packs + STEP]``, the records, and room behind them.
        begins: ``int64[num_buckets + 1]``, the first word of each bucket.
        shift: a bucket has ``2**shift`` places.
        size_bits: bits of the largest number of items in a pack.
    """

    words: AnyIntArray
    begins: Int64Array
    shift: int
    size_bits: int


@dataclass(frozen=True)
class BucketKernels:
    """The loops of this module, compiled: written in NumPy, buckets would save nothing."""

    count: Callable[..., None]
    write: Callable[..., None]
    read: Callable[..., None]


def bucket_kernels(num_items: int) -> BucketKernels | None:
    """Return the loops for so many items; None where nothing is compiled."""
    count, write, read = (compiled(function, num_items) for function in (_count_words, _write, _read))
    if count is None or write is None or read is None:
        return None
    return BucketKernels(count, write, read)


def write_records(
    pieces: tuple[Int64Array, Int64Array, Int64Array, Int64Array, Int64Array],
    sizes: AnyIntArray,
    places: AnyIntArray,
    order: AnyIntArray,
    kernels: BucketKernels,
) -> Records:
    """Write the record of each pack to its bucket.

    Args:
        pieces: as of ``PackRuns.in_tiles``, cut at every ``TILE_PACKS`` packs.
        sizes: items of each pack, in the order of opening; at least one pack.
        places, order: as of ``PackRuns.assign``.
    """
    num_items, num_packs = len(order), len(sizes)
    size_bits = int(sizes.max()).bit_length()
    packs_of_a_bucket = max(1, BUCKET_WORDS * num_packs // (num_items + num_packs))
    # The head has to fit a word with a sign.
    shift = min(packs_of_a_bucket.bit_length() - 1, 8 * order.dtype.itemsize - 1 - size_bits)
    num_words = np.zeros(-(-num_packs >> shift), dtype=np.int64)
    kernels.count(places, sizes, shift, num_words)
    begins = offsets_of(num_words)
    words = np.empty(num_items + num_packs + STEP, dtype=order.dtype)
    kernels.write(*pieces, places, sizes, TILE_PACKS, shift, size_bits, begins[:-1].copy(), order, words)
    return Records(words, begins, shift, size_bits)


def read_records(records: Records, num_packs: int, items: AnyIntArray, kernels: BucketKernels) -> Offsets:
    """Write the items of all packs in the order of their places, and return the offsets: ``int64[num_packs + 1]``."""
    offsets = np.zeros(num_packs + 1, dtype=np.int64)
    kernels.read(records.words, records.begins, records.shift, records.size_bits, items, offsets)
    return offsets


def _count_words(places: AnyIntArray, sizes: AnyIntArray, shift: int, words: Int64Array) -> None:
    """Add up the words of each bucket; to be compiled."""
    for pack in range(len(places)):
        words[np.uint64(places[pack]) >> np.uint64(shift)] += np.int64(sizes[pack]) + 1


def _write(
    first_item: Int64Array,
    first_pack: Int64Array,
    packs_in_run: Int64Array,
    copies_per_pack: Int64Array,
    items_before: Int64Array,
    places: AnyIntArray,
    sizes: AnyIntArray,
    tile_packs: int,
    shift: int,
    size_bits: int,
    ends: Int64Array,
    order: AnyIntArray,
    words: AnyIntArray,
) -> None:
    """Write the record of each pack behind those of its bucket, tile by tile; to be compiled.

    Args:
        first_item, first_pack, packs_in_run, copies_per_pack, items_before: of pieces, as of ``PackRuns.in_tiles``.
        places, order: as of ``PackRuns.assign``.
        sizes: items of each pack, in the order of opening.
        tile_packs: packs that pieces are cut at.
        shift, size_bits: as of ``Records``.
        ends: ``int64[num_buckets]``, the begins of the buckets; in the end, their ends.
        words: as of ``Records``, written.
    """
    begins = np.empty(tile_packs, dtype=np.uint64)
    low_bits = (np.uint64(1) << np.uint64(shift)) - np.uint64(1)
    run = 0
    for tile_begin in range(0, len(places), tile_packs):
        tile_end = min(tile_begin + tile_packs, len(places))
        for pack in range(tile_begin, tile_end):
            place, size = np.uint64(places[pack]), np.uint64(sizes[pack])
            bucket = place >> np.uint64(shift)
            begin = np.uint64(ends[bucket])
            words[begin] = ((place & low_bits) << np.uint64(size_bits)) | size
            begins[pack - tile_begin] = begin + np.uint64(1)
            ends[bucket] = begin + np.uint64(1) + size
        # As ``assign_pieces`` does, into the records: their words are in the cache.
        while run < len(first_pack) and first_pack[run] < tile_end:
            next_item = np.uint64(first_item[run])
            copies = np.uint64(copies_per_pack[run])
            before = np.uint64(items_before[run])
            first = np.uint64(first_pack[run] - tile_begin)
            if copies == 1:
                for pack in range(np.uint64(packs_in_run[run])):
                    words[begins[first + pack] + before] = order[next_item + pack]
            else:
                for pack in range(first, first + np.uint64(packs_in_run[run])):
                    begin = begins[pack] + before
                    for copy in range(copies):
                        words[begin + copy] = order[next_item]
                        next_item += np.uint64(1)
            run += 1


def _read(
    words: AnyIntArray, bucket_begins: Int64Array, shift: int, size_bits: int, items: AnyIntArray, offsets: Offsets
) -> None:
    """Copy the items of each bucket in the order of places, and write the offsets; to be compiled.

    Args:
        words, shift, size_bits: as of ``Records``.
        bucket_begins: its ``begins``.
        items: ``int[num_items]``, written.
        offsets: ``int64[num_packs + 1]``, all but the first written.
    """
    size_mask = (np.uint64(1) << np.uint64(size_bits)) - np.uint64(1)
    # Of each place in the bucket: the first item of its record, and in the lowest bits their number.
    records = np.empty(1 << shift, dtype=np.uint64)
    num_items = np.uint64(0)
    end_of_steps = np.uint64(max(0, len(items) - STEP))
    for bucket in range(len(bucket_begins) - 1):
        begin, end = np.uint64(bucket_begins[bucket]), np.uint64(bucket_begins[bucket + 1])
        while begin < end:
            head = np.uint64(words[begin])
            size = head & size_mask
            begin += np.uint64(1)
            records[head >> np.uint64(size_bits)] = (begin << np.uint64(size_bits)) | size
            begin += size
        first_place = bucket << shift
        for place in range(first_place, min(first_place + (1 << shift), len(offsets) - 1)):
            record = records[place - first_place]
            size = record & size_mask
            begin = record >> np.uint64(size_bits)
            next_pack = num_items + size
            if next_pack < end_of_steps:
                # Items behind the last one of a pack are overwritten by those of the next.
                while num_items < next_pack:
                    for item in range(STEP):
                        items[num_items + np.uint64(item)] = words[begin + np.uint64(item)]
                    num_items += np.uint64(STEP)
                    begin += np.uint64(STEP)
            else:
                for item in range(size):
                    items[num_items + item] = words[begin + item]
            num_items = next_pack
            offsets[place + 1] = num_items

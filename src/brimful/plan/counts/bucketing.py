"""Packs of many items brought into a random order through buckets, so that writes are not scattered
over the memory.

A pack that is written directly to a random place misses the cache and the TLB at each of its items.
So packs are written in the order of opening, each as a record that is appended to its bucket; a
bucket covers ``2**shift`` consecutive places. A bucket fits the cache, where its records are then
read in the order of their places::

    pack    place   record            bucket 0, of places 0 and 1     bucket 1, of places 2 and 3
    0: 6 1    2     (0, 2) 6 1                                         (0, 2) 6 1
    1: 5      1     (1, 1) 5          (1, 1) 5
    2: 3 3    0     (0, 2) 3 3        (1, 1) 5  (0, 2) 3 3
    3: 1 1    3     (1, 2) 1 1                                         (0, 2) 6 1  (1, 2) 1 1
    items                             3 3 5                            6 1 1 1

This is a radix sort by place, highest digit first, with two passes; the second pass handles all
lower digits at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from brimful.base.compiling import compiled
from brimful.base.ragged import offsets_of
from brimful.base.typing import AnyIntArray, Int64Array, Offsets
from brimful.plan.counts.assigning import Pieces

BUCKET_WORDS = 1 << 18
"""Average words of the records of one bucket: they stay in a cache, and few buckets are written to
in turn.
"""

TILE_PACKS = 1 << 9
"""Packs whose records are written before the next ones, so that their words stay in or near the
first-level cache.
"""

STEP = 4
"""Items copied together: a loop of fixed length has no branch mispredictions, which take longer
than most packs.
"""


@dataclass(frozen=True)
class Records:
    """Records of all packs, by bucket.

    A record is a head and the items of its pack. The head holds the number of items in its lowest
    ``size_bits`` bits, and the place of the pack in the bucket above them.

    Attributes:
        words: ``int[num_items + num_packs + STEP]``, the records, followed by spare room.
        begins: ``int64[num_buckets + 1]``, the first word of each bucket.
        shift: a bucket has ``2**shift`` places.
        size_bits: bits of the largest number of items in a pack.
    """

    words: AnyIntArray
    begins: Int64Array
    shift: int
    size_bits: int


def write_records(
    pieces: Pieces,
    sizes: AnyIntArray,
    places: AnyIntArray,
    order: AnyIntArray,
) -> Records | None:
    """Write the record of each pack to its bucket; None without compiled code, as buckets save no
    time in NumPy.

    Args:
        pieces: from ``PackRuns.in_tiles``, cut at every ``TILE_PACKS`` packs.
        sizes: items of each pack, in the order of opening; at least one pack.
        places, order: see ``PackRuns.assign``.
    """
    count, write = (compiled(function, len(order)) for function in (_count_words, _write))
    if count is None or write is None:
        return None
    num_items, num_packs = len(order), len(sizes)
    size_bits = int(sizes.max()).bit_length()
    packs_of_a_bucket = max(1, BUCKET_WORDS * num_packs // (num_items + num_packs))
    # The head has to fit a signed word.
    shift = min(packs_of_a_bucket.bit_length() - 1, 8 * order.dtype.itemsize - 1 - size_bits)
    num_words = np.zeros(-(-num_packs >> shift), dtype=np.int64)
    count(places, sizes, shift, num_words)
    begins = offsets_of(num_words)
    words = np.empty(num_items + num_packs + STEP, dtype=order.dtype)
    write(pieces, places, sizes, TILE_PACKS, shift, size_bits, begins[:-1].copy(), order, words)
    return Records(words, begins, shift, size_bits)


def read_records(records: Records, num_packs: int, items: AnyIntArray) -> Offsets:
    """Write the items of all packs in the order of their places, and return the offsets:
    ``int64[num_packs + 1]``.
    """
    offsets = np.zeros(num_packs + 1, dtype=np.int64)
    read = compiled(_read, len(items)) or _read
    read(records.words, records.begins, records.shift, records.size_bits, items, offsets)
    return offsets


def _count_words(places: AnyIntArray, sizes: AnyIntArray, shift: int, words: Int64Array) -> None:
    """Count the words of each bucket; to be compiled."""
    for pack in range(len(places)):
        words[np.uint64(places[pack]) >> np.uint64(shift)] += np.int64(sizes[pack]) + 1


def _write(
    pieces: Pieces,
    places: AnyIntArray,
    sizes: AnyIntArray,
    tile_packs: int,
    shift: int,
    size_bits: int,
    ends: Int64Array,
    order: AnyIntArray,
    words: AnyIntArray,
) -> None:
    """Append the record of each pack to its bucket, tile by tile; to be compiled.

    Args:
        pieces: from ``PackRuns.in_tiles``.
        places, order: see ``PackRuns.assign``.
        sizes: items of each pack, in the order of opening.
        tile_packs: pieces are cut at every ``tile_packs`` packs.
        shift, size_bits: see ``Records``.
        ends: ``int64[num_buckets]``, the begins of the buckets; updated to their ends.
        words: see ``Records``, the output.
    """
    first_item, first_pack, packs_in_run, copies_per_pack, items_before = pieces
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
        # Like ``assign_pieces``, but into the records: their words are in the cache.
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
    words: AnyIntArray,
    bucket_begins: Int64Array,
    shift: int,
    size_bits: int,
    items: AnyIntArray,
    offsets: Offsets,
) -> None:
    """Copy the items of each bucket in the order of places, and write the offsets; to be compiled.

    Args:
        words, shift, size_bits: see ``Records``.
        bucket_begins: ``Records.begins``.
        items: ``int[num_items]``, the output.
        offsets: ``int64[num_packs + 1]``, the second output; the first entry is left as it is.
    """
    size_mask = (np.uint64(1) << np.uint64(size_bits)) - np.uint64(1)
    # For each place in the bucket: the position of its first item, and in the lowest bits its
    # number of items.
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
                # Copied items after the last one of a pack are overwritten by the next pack.
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

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
from typing import Any

import numpy as np

from brimful.ragged import offsets_of
from brimful.typing import AnyIntArray, Int64Array, Offsets

_BUCKET_WORDS = 1 << 17
"""Words of the records of one bucket, on average: half a megabyte, which is in the second cache or near it."""


@dataclass(frozen=True)
class Buckets:
    """Records of all packs, by bucket.

    A record is a head and the items of its pack. The head is the place in its bucket, and behind it, in the lowest
    ``size_bits`` bits, the number of items.

    Attributes:
        begins: ``int64[num_buckets + 1]``, the first word of each bucket.
        shift: a bucket has ``2**shift`` places.
        size_bits: bits of the largest number of items in a pack.
    """

    begins: Int64Array
    shift: int
    size_bits: int

    @classmethod
    def of(
        cls, sizes: AnyIntArray, places: AnyIntArray, num_items: int, dtype: np.dtype[Any], count: Callable[..., None]
    ) -> Buckets:
        """Make room for the records of packs.

        Args:
            sizes: items of each pack, in the order of opening; at least one pack.
            places: as of ``PackRuns.assign``.
            num_items: of all packs.
            dtype: of the words.
            count: ``count_words``, compiled.
        """
        num_packs = len(sizes)
        size_bits = int(sizes.max()).bit_length()
        packs_of_a_bucket = max(1, _BUCKET_WORDS * num_packs // (num_items + num_packs))
        # The head has to fit a word that may have a sign.
        shift = min(packs_of_a_bucket.bit_length() - 1, 8 * dtype.itemsize - 1 - size_bits)
        words = np.zeros(-(-num_packs >> shift), dtype=np.int64)
        count(places, sizes, shift, words)
        return cls(offsets_of(words), shift, size_bits)


def count_words(places: AnyIntArray, sizes: AnyIntArray, shift: int, words: Int64Array) -> None:
    """Add up the words of each bucket; to be compiled."""
    for pack in range(len(places)):
        words[np.uint64(places[pack]) >> np.uint64(shift)] += np.int64(sizes[pack]) + 1


def distribute(
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
        shift, size_bits: as of ``Buckets``.
        ends: ``int64[num_buckets]``, the begins of the buckets; in the end, their ends.
        words: ``int[num_items + num_packs]``, written.
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
            for pack in range(first, first + np.uint64(packs_in_run[run])):
                begin = begins[pack] + before
                for copy in range(copies):
                    words[begin + copy] = order[next_item]
                    next_item += np.uint64(1)
            run += 1


def collect(
    words: AnyIntArray, bucket_begins: Int64Array, shift: int, size_bits: int, items: AnyIntArray, offsets: Offsets
) -> None:
    """Copy the items of each bucket in the order of places, and write the offsets; to be compiled.

    Args:
        words: as of ``distribute``.
        bucket_begins, shift, size_bits: as of ``Buckets``.
        items: ``int[num_items]``, written.
        offsets: ``int64[num_packs + 1]``, all but the first written.
    """
    size_mask = (np.uint64(1) << np.uint64(size_bits)) - np.uint64(1)
    record_begins = np.empty(1 << shift, dtype=np.uint64)
    num_items = np.uint64(0)
    for bucket in range(len(bucket_begins) - 1):
        begin, end = np.uint64(bucket_begins[bucket]), np.uint64(bucket_begins[bucket + 1])
        while begin < end:
            head = np.uint64(words[begin])
            record_begins[head >> np.uint64(size_bits)] = begin
            begin += (head & size_mask) + np.uint64(1)
        first_place = bucket << shift
        for place in range(first_place, min(first_place + (1 << shift), len(offsets) - 1)):
            begin = record_begins[place - first_place]
            size = np.uint64(words[begin]) & size_mask
            begin += np.uint64(1)
            for item in range(size):
                items[num_items + item] = words[begin + item]
            num_items += size
            offsets[place + 1] = num_items

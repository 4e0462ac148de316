"""Packs brought into a random order through buckets, so that writes are not scattered over the
memory.

A pack that is written directly to a random place misses the cache and the TLB at each of its items.
So packs are read in the order of opening, and each is appended to its bucket; a bucket covers
``2**shift`` consecutive places. A bucket fits the cache, where its packs are then moved to their
places::

    pack    place       bucket 0, of places 0 and 1     bucket 1, of places 2 and 3
    0: 6 1    2                                          6 1
    1: 5      1         5
    2: 3 3    0         5  3 3
    3: 1 1    3                                          6 1  1 1
    places              1  0                             2    3
    items               3 3 5                            6 1 1 1

This is a radix sort by place, highest digit first, with two passes; the second pass handles all
lower digits at once. Both passes are compiled: buckets save no time in NumPy.
"""

import numpy as np

from brimful.base.typing import AnyIntArray, Offsets

BUCKET_ITEMS = 1 << 18
"""Average items of one bucket: they stay in a cache, and few buckets are written to in turn."""


def write_buckets(
    sizes: AnyIntArray,
    places: AnyIntArray,
    shift: int,
    items: AnyIntArray,
    bucket_items: AnyIntArray,
    bucket_places: AnyIntArray,
    sizes_of_places: AnyIntArray,
) -> None:
    """Append each pack to its bucket; to be compiled.

    Args:
        sizes: items of each pack, in the order of opening.
        places: ``int[num_packs]``, the new place of each pack.
        shift: a bucket has ``2**shift`` places.
        items: ``int[num_items]``, pack after pack.
        bucket_items: ``int[num_items]``, the output: packs of the first bucket, then of the next.
        bucket_places: ``int[num_packs]``, the second output: the place of each of these packs.
        sizes_of_places: the third output: items of the pack at each place.
    """
    num_buckets = (len(places) >> shift) + 1
    # The end of the packs and of the items that each bucket has so far.
    pack_ends = np.arange(num_buckets) << shift
    item_ends = np.zeros(num_buckets + 1, dtype=np.int64)
    for pack in range(len(places)):
        item_ends[(places[pack] >> shift) + 1] += sizes[pack]
    for number in range(1, num_buckets):
        item_ends[number] += item_ends[number - 1]
    # Unsigned: a signed index is checked at every use for a negative value.
    next_item = np.uint64(0)
    for pack in range(len(places)):
        place, size = places[pack], np.uint64(sizes[pack])
        bucket = place >> shift
        end = np.uint64(item_ends[bucket])
        for item in range(size):
            bucket_items[end + item] = items[next_item + item]
        next_item += size
        item_ends[bucket] = end + size
        bucket_places[pack_ends[bucket]] = place
        pack_ends[bucket] += 1
        sizes_of_places[place] = size


def read_buckets(
    bucket_items: AnyIntArray, bucket_places: AnyIntArray, offsets: Offsets, items: AnyIntArray
) -> None:
    """Copy the packs of all buckets to their places; to be compiled.

    Args:
        bucket_items, bucket_places: from ``write_buckets``.
        offsets: ``int64[num_packs + 1]``, of the packs in the order of their places.
        items: ``int[num_items]``, the output.
    """
    next_item = np.uint64(0)
    for place in bucket_places:
        begin = np.uint64(offsets[place])
        size = np.uint64(offsets[place + 1]) - begin
        for item in range(size):
            items[begin + item] = bucket_items[next_item + item]
        next_item += size

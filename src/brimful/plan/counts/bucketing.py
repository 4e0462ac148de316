"""Packs brought into a random order through buckets, so that writes are not scattered over the
memory.

A pack that is written directly to a random place misses the cache and the TLB at each of its items.
So packs are read in the order of opening, and each is appended as a record to its bucket; a bucket
covers ``2**shift`` consecutive places. A bucket fits the cache, where its records are then read in
the order of their places::

    pack    place   record            bucket 0, of places 0 and 1     bucket 1, of places 2 and 3
    0: 6 1    2     (0, 2) 6 1                                         (0, 2) 6 1
    1: 5      1     (1, 1) 5          (1, 1) 5
    2: 3 3    0     (0, 2) 3 3        (1, 1) 5  (0, 2) 3 3
    3: 1 1    3     (1, 2) 1 1                                         (0, 2) 6 1  (1, 2) 1 1
    items                             3 3 5                            6 1 1 1

This is a radix sort by place, highest digit first, with two passes; the second pass handles all
lower digits at once.
"""

import numpy as np

from brimful.base.compiling import compiled
from brimful.base.typing import AnyIntArray, Int64Array, Offsets

BUCKET_WORDS = 1 << 18
"""Average words of the records of one bucket: they stay in a cache, and few buckets are written to
in turn.
"""


def reorder_packs(sizes: AnyIntArray, places: AnyIntArray, items: AnyIntArray) -> Offsets:
    """Move the items of each pack to the place of the pack, in place; return the new offsets:
    ``int64[num_packs + 1]``. Needs numba: buckets save no time in NumPy.

    A record is a head and the items of its pack. The head is the place of the pack in the bucket
    times ``radix``, plus the number of items.

    Args:
        sizes: items of each pack, at least one pack.
        places: ``int[num_packs]``, the new place of each pack.
        items: ``int[num_items]``, pack after pack.
    """
    writer, reader = (compiled(function, 0, worth=0) for function in (_write, _read))
    assert writer is not None
    assert reader is not None
    num_items, num_packs, radix = len(items), len(sizes), int(sizes.max()) + 1
    # The head has to fit a signed word.
    places_of_a_bucket = min(
        max(1, BUCKET_WORDS * num_packs // (num_items + num_packs)),
        np.iinfo(items.dtype).max // radix,
    )
    shift = places_of_a_bucket.bit_length() - 1
    words = np.empty(num_items + num_packs, dtype=items.dtype)
    begins = np.zeros((num_packs - 1 >> shift) + 2, dtype=np.int64)
    writer(sizes, places, items, shift, radix, begins, words)
    offsets = np.zeros(num_packs + 1, dtype=np.int64)
    reader(words, begins, shift, radix, items, offsets)
    return offsets


def _write(
    sizes: AnyIntArray,
    places: AnyIntArray,
    items: AnyIntArray,
    shift: int,
    radix: int,
    begins: Int64Array,
    words: AnyIntArray,
) -> None:
    """Append the record of each pack to its bucket; to be compiled.

    Args:
        sizes, places, items, radix: see ``reorder_packs``.
        shift: a bucket has ``2**shift`` places.
        begins: ``int64[num_buckets + 1]``, zeros; the first word of each bucket is added.
        words: ``int[num_items + num_packs]``, the records, the output.
    """
    for pack in range(len(places)):
        begins[(places[pack] >> shift) + 1] += np.int64(sizes[pack]) + 1
    for number in range(1, len(begins)):
        begins[number] += begins[number - 1]
    ends = begins.copy()
    # Unsigned: a signed index is checked at every use for a negative value.
    next_item = np.uint64(0)
    for pack in range(len(places)):
        place, size = np.int64(places[pack]), np.uint64(sizes[pack])
        bucket = place >> shift
        end = np.uint64(ends[bucket])
        words[end] = (place - (bucket << shift)) * radix + np.int64(size)
        for item in range(size):
            words[end + np.uint64(1) + item] = items[next_item + item]
        next_item += size
        ends[bucket] = end + np.uint64(1) + size


def _read(
    words: AnyIntArray,
    begins: Int64Array,
    shift: int,
    radix: int,
    items: AnyIntArray,
    offsets: Offsets,
) -> None:
    """Copy the items of each bucket in the order of places, and write the offsets; to be compiled.

    Args:
        words, begins, shift, radix: as for ``_write``.
        items: ``int[num_items]``, the output.
        offsets: ``int64[num_packs + 1]``, the second output; the first entry is left as it is.
    """
    records = np.empty(1 << shift, dtype=np.uint64)
    next_item = np.uint64(0)
    for bucket in range(len(begins) - 1):
        begin, end = np.uint64(begins[bucket]), np.uint64(begins[bucket + 1])
        while begin < end:
            head = np.int64(words[begin])
            records[head // radix] = begin
            begin += np.uint64(head % radix + 1)
        first_place = bucket << shift
        for place in range(first_place, min(first_place + (1 << shift), len(offsets) - 1)):
            begin = records[place - first_place]
            size = np.uint64(words[begin] % radix)
            for item in range(size):
                items[next_item + item] = words[begin + np.uint64(1) + item]
            next_item += size
            offsets[place + 1] = next_item

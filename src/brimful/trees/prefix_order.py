"""Order in which samples that share a prefix are neighbors, and what neighbors share.

Samples with equal first tokens are a tree; trees are in the order of their first samples, the
samples of a tree in the order of their tokens. There are two forms with one result.

The compiled form finds trees in a table of hashes, which only proposes: tokens are compared. Then
it merges the samples of each tree, as strings are merged (LCP merge sort: Ng and Kakehi, 2008):
what each head shares with the sample written last is known, and the head that shares more comes
first, without a look at its tokens. So a token is compared a few times, however many samples the
tree has. NumPy has neither loop, and sorts bytes.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from brimful.base.compiling import compiled
from brimful.base.typing import AnyIntArray, Int32Array, Int64Array, Offsets

_WORTH_COMPILING = 100_000_000
"""Tokens from which loading compiled code is faster than sorting bytes: about a second."""

_AT_ONCE = 32
"""Tokens that the compiled form compares without a branch, by vector instructions."""


def order_of_trees(
    keys: AnyIntArray, offsets: Offsets, groups: Int64Array, head: int
) -> tuple[Int64Array, Int32Array]:
    """Return the order of samples, ``int64[num_samples]``, and the number of keys that each shares
    with the one before it, ``int32[num_samples]``: 0 if fewer than ``head``.

    Args:
        keys, offsets: as for ``find_prefixes``.
        groups: ``int64[num_samples]``; a sample with a negative number is alone.
        head: first keys that samples of a tree have in common, at least 1.
    """
    find = compiled(_find_by_merging, len(keys), worth=_WORTH_COMPILING, sum_calls=True)
    return (find or _find_by_bytes)(keys, offsets, groups, head)


def _find_by_merging(
    keys: AnyIntArray, offsets: Offsets, groups: Int64Array, head: int
) -> tuple[Int64Array, Int32Array]:
    """Find trees, number their samples, and merge each; to be compiled."""
    num_samples = len(offsets) - 1
    num_slots = 16
    while num_slots < 2 * num_samples:
        num_slots *= 2
    slots = np.full(num_slots, -1, np.int64)
    # Trees are numbered by their first samples, and hold samples in their order.
    first_of = np.empty(num_samples, np.int64)
    sizes = np.zeros(num_samples + 1, np.int64)
    for sample in range(num_samples):
        first_of[sample] = sample
        start = offsets[sample]
        if offsets[sample + 1] - start >= head and groups[sample] >= 0:
            first_keys = keys[start : start + head]
            digest = np.uint64(groups[sample]) + np.uint64(0x9E3779B97F4A7C15)
            for token in first_keys:
                digest = (digest ^ np.uint64(token)) * np.uint64(0xD6E8FEB86659FD93)
                digest ^= digest >> np.uint64(32)
            slot = np.int64(digest & np.uint64(num_slots - 1))
            while slots[slot] >= 0:
                first = slots[slot]
                other = keys[offsets[first] : offsets[first] + head]
                if groups[first] == groups[sample]:
                    index = 0
                    while index < head and first_keys[index] == other[index]:
                        index += 1
                    if index == head:
                        break
                slot = (slot + 1) & (num_slots - 1)
            if slots[slot] < 0:
                slots[slot] = sample
            first_of[sample] = slots[slot]
        sizes[first_of[sample] + 1] += 1
    starts = np.cumsum(sizes)
    order = np.empty(num_samples, np.int64)
    shared = np.zeros(num_samples, np.int32)
    next_index = starts.copy()
    for sample in range(num_samples):
        order[next_index[first_of[sample]]] = sample
        next_index[first_of[sample]] += 1

    merged_order, merged_shared = np.empty_like(order), np.empty_like(shared)
    for first in range(num_samples):
        start, end = starts[first], starts[first + 1]
        if end - start < 2:
            continue
        width = 1
        while width < end - start:
            for left in range(start, end, 2 * width):
                middle, stop = min(left + width, end), min(left + 2 * width, end)
                one, other = left, middle
                # Keys that the heads share with the sample written last.
                with_one, with_other = np.int64(head), np.int64(head)
                for index in range(left, stop):
                    takes_one = True
                    known = with_one
                    if other == stop:
                        pass
                    elif one == middle or with_one < with_other:
                        takes_one, known = False, with_other
                    elif with_one == with_other:
                        a, b = offsets[order[one]], offsets[order[other]]
                        length = offsets[order[one] + 1] - a
                        other_length = offsets[order[other] + 1] - b
                        common = min(length, other_length)
                        depth = known
                        while depth + _AT_ONCE <= common:
                            x = keys[a + depth : a + depth + _AT_ONCE]
                            y = keys[b + depth : b + depth + _AT_ONCE]
                            differs = x[0] ^ y[0]
                            for i in range(_AT_ONCE):
                                differs |= x[i] ^ y[i]
                            if differs:
                                break
                            depth += _AT_ONCE
                        while depth < common and keys[a + depth] == keys[b + depth]:
                            depth += 1
                        if depth == common:
                            takes_one = length <= other_length
                        else:
                            takes_one = keys[a + depth] < keys[b + depth]
                        if takes_one:
                            with_other = depth
                        else:
                            with_one = depth
                    merged_shared[index] = known
                    if takes_one:
                        merged_order[index] = order[one]
                        one += 1
                        if one < middle:
                            with_one = np.int64(shared[one])
                    else:
                        merged_order[index] = order[other]
                        other += 1
                        if other < stop:
                            with_other = np.int64(shared[other])
            order[start:end] = merged_order[start:end]
            shared[start:end] = merged_shared[start:end]
            width *= 2
        shared[start] = 0
    return order, shared


def _find_by_bytes(
    keys: AnyIntArray, offsets: Offsets, groups: Int64Array, head: int
) -> tuple[Int64Array, Int32Array]:
    """Find trees among the bytes of their first keys, and sort each by the bytes of all."""
    size = keys.dtype.itemsize
    # In big-endian bytes, numbers are in the order of their bytes; signs are flipped.
    has_signs = keys.dtype.kind == "i" and keys.min(initial=0) < 0
    unsigned_keys = keys ^ np.iinfo(keys.dtype).min if has_signs else keys
    data = unsigned_keys.astype(keys.dtype.newbyteorder(">")).view(np.uint8).data
    edges = (offsets * size).tolist()
    trees: dict[Any, list[int]] = {}
    for sample, group in enumerate(groups.tolist()):
        start, end = edges[sample], edges[sample] + head * size
        is_alone = group < 0 or end > edges[sample + 1]
        name = sample if is_alone else (group, bytes(data[start:end]))
        trees.setdefault(name, []).append(sample)
    order: list[int] = []
    shared: list[int] = []
    for samples in trees.values():
        texts = [bytes(data[edges[sample] : edges[sample + 1]]) for sample in samples]
        indices = sorted(range(len(texts)), key=texts.__getitem__)
        order += [samples[index] for index in indices]
        shared.append(0)
        for index, next_index in pairwise(indices):
            text, next_text = texts[index], texts[next_index]
            # Most samples of a dialogue are continued by the next: that takes one comparison.
            if next_text.startswith(text):
                shared.append(len(text) // size)
            else:
                common = min(len(text), len(next_text)) // size
                pair = (np.frombuffer(each, keys.dtype, common) for each in (text, next_text))
                shared.append(int(np.not_equal(*pair).argmax()))
    return np.array(order, dtype=np.int64), np.array(shared, dtype=np.int32)

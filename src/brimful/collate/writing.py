"""The tokens of a pack written to their places in a row: in one compiled pass, or in NumPy, to the same result."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import TypeAlias

import numpy as np

from brimful.compiling import compiled_form
from brimful.typing import IGNORE_INDEX, CuSeqlens, Int32Array, Int64Array, Labels, LossMask, TokenIds

__all__ = ["Writer", "writer"]

Writer: TypeAlias = Callable[..., tuple[int, int, int]]


@cache
def writer() -> Writer:
    """The function that writes a pack: the compiled one if numba is installed. The first call in a process loads it.

    It takes a pack and its place, and writes to the arrays of the row behind what is there of earlier packs:

    ==================  =====================================================================
    ``input_ids``       ``int32[T]``, of the pack
    ``loss_mask``       ``bool[T]``, of the pack
    ``cu_seqlens``      ``int32[S + 1]``, of the pack
    ``unit``            tokens of each segment in the row are a multiple of this
    ``first``           number of its first segment in the row
    ``begin``           place of its first token in the row
    ``fill``            what stands in the padding behind a segment
    ``start``           position of the first token of a segment
    ``boundaries``      written: ``int32[:]``, where segments begin in the row, and end
    ``real_lengths``    written: ``int32[:]``, their tokens without padding
    ``ids``             written: ``int64[:]``
    ``labels``          written: ``int64[:]``; the first token of a segment has none, whatever the mask says
    ``positions``       written: ``int64[:]``
    ``segments``        written: ``int32[:]``, the number of the segment of each token
    ==================  =====================================================================

    It returns the number of targets, the length of the longest segment with its padding, and the place behind the pack.
    That place is -1, and nothing was written, if the arrays of the pack contradict each other: compiled code does not
    look where it reads.

    >>> boundaries, real_lengths, segments = (np.zeros(4, np.int32) for _ in range(3))
    >>> ids, labels, positions = (np.zeros(4, np.int64) for _ in range(3))
    >>> pack = np.array([7, 8, 9], np.int32), np.array([False, True, False]), np.array([0, 2, 3], np.int32)
    >>> writer()(*pack, 2, 0, 0, 0, 0, boundaries, real_lengths, ids, labels, positions, segments)
    (1, 2, 4)
    >>> ids.tolist(), labels.tolist(), segments.tolist()
    ([7, 8, 9, 0], [-100, 8, -100, -100], [0, 0, 1, 1])
    """
    write = compiled_form(_write)
    if write is None:
        return _write_in_numpy
    # Numba makes a form for each kind of arrays: here for tokens in a shard, which are read-only, and in memory.
    for writeable in (False, True):
        token, mask, cu_seqlens = np.zeros(1, np.int32), np.zeros(1, np.bool_), np.arange(2, dtype=np.int32)
        token.flags.writeable = writeable
        row, small = np.zeros(1, np.int64), np.zeros(2, np.int32)
        write(token, mask, cu_seqlens, 1, 0, 0, 0, 0, small, small, row, row, row, small)
    return write


def _write(
    input_ids: TokenIds,
    loss_mask: LossMask,
    cu_seqlens: CuSeqlens,
    unit: int,
    first: int,
    begin: int | np.int64,
    fill: int,
    start: int,
    boundaries: CuSeqlens,
    real_lengths: Int32Array,
    ids: Int64Array,
    labels: Labels,
    positions: Int64Array,
    segments: Int32Array,
) -> tuple[int, int, int]:
    if len(cu_seqlens) == 0 or cu_seqlens[0] != 0 or not len(input_ids) == len(loss_mask) == cu_seqlens[-1]:
        return 0, 0, -1
    for number in range(len(cu_seqlens) - 1):
        if cu_seqlens[number] > cu_seqlens[number + 1]:
            return 0, 0, -1
    targets = longest = np.int64(0)
    boundaries[first] = begin
    for number in range(len(cu_seqlens) - 1):
        tokens = input_ids[cu_seqlens[number] : cu_seqlens[number + 1]]
        mask = loss_mask[cu_seqlens[number] : cu_seqlens[number + 1]]
        size = len(tokens)
        length = np.int64((size + unit - 1) // unit * unit)
        end = begin + length
        real_lengths[first + number] = size
        boundaries[first + number + 1] = end
        # Slices make each loop simple enough for vector instructions.
        to_ids, to_labels, to_positions = ids[begin:end], labels[begin:end], positions[begin:end]
        marked = np.int32(0)
        for place in range(size):
            token = np.int64(tokens[place])
            to_ids[place] = token
            to_labels[place] = token if mask[place] else np.int64(IGNORE_INDEX)
            marked += np.int32(mask[place])
        if size:
            marked -= np.int32(mask[0])
            to_labels[0] = IGNORE_INDEX
        targets += np.int64(marked)
        to_ids[size:] = fill
        to_labels[size:] = IGNORE_INDEX
        for place in range(length):
            to_positions[place] = start + place
        segments[begin:end] = first + number
        longest = max(longest, length)
        begin = end
    return int(targets), int(longest), int(begin)


def _write_in_numpy(
    input_ids: TokenIds,
    loss_mask: LossMask,
    cu_seqlens: CuSeqlens,
    unit: int,
    first: int,
    begin: int,
    fill: int,
    start: int,
    boundaries: CuSeqlens,
    real_lengths: Int32Array,
    ids: Int64Array,
    labels: Labels,
    positions: Int64Array,
    segments: Int32Array,
) -> tuple[int, int, int]:
    if len(cu_seqlens) == 0 or cu_seqlens[0] != 0 or not len(input_ids) == len(loss_mask) == cu_seqlens[-1]:
        return 0, 0, -1
    real = cu_seqlens[1:] - cu_seqlens[:-1]
    shortest = real.min() if len(real) else 0
    if shortest < 0:
        return 0, 0, -1
    last = first + len(real)
    real_lengths[first:last] = real
    bounds = boundaries[first : last + 1]
    if unit == 1:
        lengths = real
        np.add(cu_seqlens, begin, out=bounds)
    else:
        lengths = -(-real // unit) * unit
        bounds[0] = begin
        np.cumsum(lengths, out=bounds[1:])
        bounds[1:] += begin
    end = int(bounds[-1])
    if begin == end:
        return 0, 0, end
    before = bounds[:-1] - begin
    ids, row = ids[begin:end], labels[begin:end]
    row.fill(IGNORE_INDEX)
    if end - begin == len(input_ids):
        ids[:] = input_ids
        np.copyto(row, input_ids, where=loss_mask)  # casting copies runs of targets at once
    else:
        places = np.arange(len(input_ids)) + np.repeat(before - cu_seqlens[:-1], real)
        ids.fill(fill)
        ids[places] = input_ids
        row[places[loss_mask]] = input_ids[loss_mask]
    filled = slice(None) if shortest else np.flatnonzero(real)  # an empty segment has no first token
    row[before[filled]] = IGNORE_INDEX
    targets = np.count_nonzero(loss_mask) - np.count_nonzero(loss_mask[cu_seqlens[:-1][filled]])
    np.subtract(
        _numbers(start + end - begin)[start:], before.astype(np.int64).repeat(lengths), out=positions[begin:end]
    )
    segments[begin:end] = np.arange(first, last, dtype=np.int32).repeat(lengths)
    return int(targets), int(lengths.max()), end


@lru_cache(maxsize=8)
def _numbers(count: int) -> Int64Array:
    """0 to count - 1, made once for each length of row. Not to be written to."""
    numbers = np.arange(count, dtype=np.int64)
    numbers.flags.writeable = False
    return numbers

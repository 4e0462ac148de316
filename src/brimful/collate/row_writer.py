"""Writer of a pack's tokens into a row: in one compiled pass, or in NumPy with the same result."""

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, TypeAlias

import numpy as np

from brimful.base.compiling import form_for
from brimful.base.ragged import ranges
from brimful.base.typing import IGNORE_INDEX, CuSeqlens, Int32Array, Int64Array, Labels, LossMask, TokenIds

Writer: TypeAlias = Callable[..., tuple[int, int, int]]
"""Function with the arguments and the result described in ``writer``."""


@cache
def writer() -> Writer:
    """Return the function that writes a pack, compiled if numba is installed. The first call in a process loads it.

    The function takes a pack and its place, and writes to the arrays of the row, after the earlier packs:

    ====================  =====================================================================
    ``input_ids``         ``int32[T]``, of the pack
    ``loss_mask``         ``bool[T]``, of the pack
    ``cu_seqlens``        ``int32[S + 1]``, of the pack
    ``unit``              length of each segment in the row is a multiple of this
    ``first_segment``     number of its first segment in the row
    ``begin``             index of its first token in the row
    ``pad_token_id``      token of the padding after a segment
    ``position_start``    position of the first token of a segment
    ``boundaries``        written: ``int32[:]``, start of each segment in the row, and the end of the last
    ``real_lengths``      written: ``int32[:]``, tokens of each segment without padding
    ``row_ids``           written: ``int64[:]``
    ``labels``            written: ``int64[:]``; ``IGNORE_INDEX`` at every first token, even if the mask has it
    ``positions``         written: ``int64[:]``
    ``segment_index``     written: ``int32[:]``, the number of the segment of each token
    ====================  =====================================================================

    It returns the number of targets, the length of the longest segment with its padding, and the index after the pack.
    If the arrays of the pack contradict each other, that index is -1 and nothing was written: compiled code does not
    check bounds.

    >>> boundaries, real_lengths, segment_index = (np.zeros(4, np.int32) for _ in range(3))
    >>> row_ids, labels, positions = (np.zeros(4, np.int64) for _ in range(3))
    >>> pack = np.array([7, 8, 9], np.int32), np.array([False, True, False]), np.array([0, 2, 3], np.int32)
    >>> writer()(*pack, 2, 0, 0, 0, 0, boundaries, real_lengths, row_ids, labels, positions, segment_index)
    (1, 2, 4)
    >>> row_ids.tolist(), labels.tolist(), segment_index.tolist()
    ([7, 8, 9, 0], [-100, 8, -100, -100], [0, 0, 1, 1])
    """
    pack = np.zeros(1, np.int32), np.zeros(1, np.bool_), np.arange(2, dtype=np.int32)
    # A function compiled for read-only arrays, as shards have them, accepts writable arrays too, but not vice versa.
    for array in pack:
        array.flags.writeable = False
    row, small = np.zeros(1, np.int64), np.zeros(2, np.int32)
    form = form_for(_write, (*pack, 1, 0, 0, 0, 0, small, small, row, row, row, small))
    if form is None:
        return _write_in_numpy

    def write(input_ids: TokenIds, loss_mask: LossMask, cu_seqlens: CuSeqlens, *others: Any) -> tuple[int, int, int]:
        # Arrays of a store have these dtypes and are passed unchanged; arrays of a caller may have other dtypes, or not
        # be contiguous.
        return form(  # type: ignore[no-any-return]
            np.ascontiguousarray(input_ids, np.int32),
            np.ascontiguousarray(loss_mask, np.bool_),
            np.ascontiguousarray(cu_seqlens, np.int32),
            *others,
        )

    return write


def _write(
    input_ids: TokenIds,
    loss_mask: LossMask,
    cu_seqlens: CuSeqlens,
    unit: int,
    first_segment: int,
    begin: int | np.int64,
    pad_token_id: int,
    position_start: int,
    boundaries: CuSeqlens,
    real_lengths: Int32Array,
    row_ids: Int64Array,
    labels: Labels,
    positions: Int64Array,
    segment_index: Int32Array,
) -> tuple[int, int, int]:
    """Write a pack segment by segment; compiled by numba."""
    # Every index below is within bounds only if boundaries rise from 0 to the number of tokens.
    if len(cu_seqlens) == 0 or cu_seqlens[0] != 0 or not len(input_ids) == len(loss_mask) == cu_seqlens[-1]:
        return 0, 0, -1
    for i in range(len(cu_seqlens) - 1):
        if cu_seqlens[i] > cu_seqlens[i + 1]:
            return 0, 0, -1
    num_targets = longest = np.int64(0)
    boundaries[first_segment] = begin
    for i in range(len(cu_seqlens) - 1):
        tokens = input_ids[cu_seqlens[i] : cu_seqlens[i + 1]]
        mask = loss_mask[cu_seqlens[i] : cu_seqlens[i + 1]]
        size = len(tokens)
        length = np.int64((size + unit - 1) // unit * unit)
        end = begin + length
        real_lengths[first_segment + i] = size
        boundaries[first_segment + i + 1] = end
        # Slices from index 0 make each loop simple enough for vector instructions.
        ids_of_segment, labels_of_segment, positions_of_segment = (
            row_ids[begin:end],
            labels[begin:end],
            positions[begin:end],
        )
        segment_targets = np.int32(0)
        for index in range(size):
            token = np.int64(tokens[index])
            ids_of_segment[index] = token
            labels_of_segment[index] = token if mask[index] else np.int64(IGNORE_INDEX)
            segment_targets += np.int32(mask[index])
        # No token of the segment predicts its first token: undone here, not in the loop, to keep the loop free of
        # branches.
        if size:
            segment_targets -= np.int32(mask[0])
            labels_of_segment[0] = IGNORE_INDEX
        num_targets += np.int64(segment_targets)
        # Padding after the segment belongs to it: positions continue, and the segment index is the same.
        ids_of_segment[size:] = pad_token_id
        labels_of_segment[size:] = IGNORE_INDEX
        for index in range(length):
            positions_of_segment[index] = position_start + index
        segment_index[begin:end] = first_segment + i
        longest = max(longest, length)
        begin = end
    return int(num_targets), int(longest), int(begin)


def _write_in_numpy(
    input_ids: TokenIds,
    loss_mask: LossMask,
    cu_seqlens: CuSeqlens,
    unit: int,
    first_segment: int,
    begin: int,
    pad_token_id: int,
    position_start: int,
    boundaries: CuSeqlens,
    real_lengths: Int32Array,
    row_ids: Int64Array,
    labels: Labels,
    positions: Int64Array,
    segment_index: Int32Array,
) -> tuple[int, int, int]:
    """Write a pack with array operations, with the same result as ``_write``."""
    if len(cu_seqlens) == 0 or cu_seqlens[0] != 0 or not len(input_ids) == len(loss_mask) == cu_seqlens[-1]:
        return 0, 0, -1
    sizes = cu_seqlens[1:] - cu_seqlens[:-1]
    shortest = sizes.min() if len(sizes) else 0
    if shortest < 0:
        return 0, 0, -1
    end_segment = first_segment + len(sizes)
    real_lengths[first_segment:end_segment] = sizes
    bounds = boundaries[first_segment : end_segment + 1]
    if unit == 1:
        lengths = sizes
        np.add(cu_seqlens, begin, out=bounds)
    else:
        lengths = -(-sizes // unit) * unit
        bounds[0] = begin
        np.cumsum(lengths, out=bounds[1:])
        bounds[1:] += begin
    end = int(bounds[-1])
    if begin == end:
        return 0, 0, end
    # From here on, indices count from the pack's first token in the row.
    starts = bounds[:-1] - begin
    pack_ids, pack_labels = row_ids[begin:end], labels[begin:end]
    pack_labels.fill(IGNORE_INDEX)
    if end - begin == len(input_ids):
        pack_ids[:] = input_ids
        np.copyto(pack_labels, input_ids, where=loss_mask)  # casting copies runs of targets at once
    else:
        indices = ranges(starts, sizes)
        pack_ids.fill(pad_token_id)
        pack_ids[indices] = input_ids
        pack_labels[indices[loss_mask]] = input_ids[loss_mask]
    # The first token of a segment is not a target, even if the mask has it; an empty segment has no first token.
    nonempty = slice(None) if shortest else np.flatnonzero(sizes)
    pack_labels[starts[nonempty]] = IGNORE_INDEX
    num_targets = np.count_nonzero(loss_mask) - np.count_nonzero(loss_mask[cu_seqlens[:-1][nonempty]])
    # Position = start + index - begin of the segment: one subtraction from a cached row of whole numbers.
    numbers = _numbers(position_start + end - begin)[position_start:]
    np.subtract(numbers, starts.astype(np.int64).repeat(lengths), out=positions[begin:end])
    segment_index[begin:end] = np.arange(first_segment, end_segment, dtype=np.int32).repeat(lengths)
    return int(num_targets), int(lengths.max()), end


@lru_cache(maxsize=8)
def _numbers(count: int) -> Int64Array:
    """Return 0 to count - 1 in a read-only array, cached by the length of the row."""
    numbers = np.arange(count, dtype=np.int64)
    numbers.flags.writeable = False
    return numbers

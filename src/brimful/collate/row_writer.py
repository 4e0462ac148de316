"""Writer of a pack's tokens into a row: in one compiled pass, or in NumPy with the same result."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple, TypeAlias

import numpy as np

from brimful.base.compiling import form_for
from brimful.base.ragged import ranges
from brimful.base.typing import IGNORE_INDEX, CuSeqlens, Int32Array, Int64Array, LossMask, TokenIds


class RowArrays(NamedTuple):
    """Arrays of a row of T tokens in S segments, which the writer fills.

    Attributes:
        tokens: ``int64[3, T]``: ids, labels and positions.
        segment_index: ``int32[T]``, the number of the segment of each token.
        segments: ``int32[2, S + 1]``: start of each segment in the row, and the end of the last;
            number of tokens of each segment without padding, and a last place without meaning.
        how: ``int64[3]``: a number of which the length of each segment in the row is a multiple,
            the token of the padding after a segment, and the position of the first token of a
            segment.
    """

    tokens: Int64Array
    segment_index: Int32Array
    segments: Int32Array
    how: Int64Array

    @classmethod
    def empty(cls, num_segments: int, size: int, *how: int) -> RowArrays:
        """Return a row of ``size`` tokens that are not written yet."""
        tokens, segment_index = np.empty((3, size), np.int64), np.empty(size, np.int32)
        return cls(tokens, segment_index, np.empty((2, num_segments + 1), np.int32), np.array(how))


Writer: TypeAlias = Callable[
    [TokenIds, LossMask, CuSeqlens, int, int, RowArrays], tuple[int, int, int]
]
"""Function that writes a pack to a row, as ``writer`` describes it."""


@cache
def writer() -> Writer:
    """Return the function that writes a pack, compiled if numba is installed. The first call in a
    process loads it.

    The function takes ``input_ids`` (``int32[T]``), ``loss_mask`` (``bool[T]``) and ``cu_seqlens``
    (``int32[S + 1]``) of the pack, the number of its first segment in the row, the index of its
    first token in the row, and the row. It returns the number of targets, the length of the longest
    segment with its padding, and the index after the pack. If the arrays of the pack contradict
    each other, that index is -1 and nothing was written: compiled code does not check bounds.

    >>> row = RowArrays.empty(2, 4, 2, 0, 0)
    >>> writer()(np.array([7, 8, 9]), np.array([False, True, False]), np.array([0, 2, 3]), 0, 0, row)
    (1, 2, 4)
    >>> row.tokens.tolist(), row.segment_index.tolist()
    ([[7, 8, 9, 0], [-100, 8, -100, -100], [0, 1, 0, 1]], [0, 0, 1, 1])
    """
    pack = np.zeros(1, np.int32), np.zeros(1, np.bool_), np.arange(2, dtype=np.int32)
    # A function compiled for read-only arrays, as shards have them, accepts writable arrays too,
    # but not vice versa.
    for array in pack:
        array.flags.writeable = False
    form = form_for(_write, (*pack, 0, 0, *RowArrays.empty(1, 1, 1, 0, 0)))
    if form is None:
        return _write_in_numpy

    def write(
        input_ids: TokenIds,
        loss_mask: LossMask,
        cu_seqlens: CuSeqlens,
        first_segment: int,
        start: int,
        row: RowArrays,
    ) -> tuple[int, int, int]:
        # Arrays of a store have these dtypes and are passed unchanged; arrays of a caller may have
        # other dtypes, or not be contiguous.
        return form(  # type: ignore[no-any-return]
            np.ascontiguousarray(input_ids, np.int32),
            np.ascontiguousarray(loss_mask, np.bool_),
            np.ascontiguousarray(cu_seqlens, np.int32),
            first_segment,
            start,
            *row,
        )

    return write


def _write(
    input_ids: TokenIds,
    loss_mask: LossMask,
    cu_seqlens: CuSeqlens,
    first_segment: int,
    start: int | np.int64,
    tokens: Int64Array,
    segment_index: Int32Array,
    segments: Int32Array,
    how: Int64Array,
) -> tuple[int, int, int]:
    """Write a pack segment by segment; compiled by numba."""
    # Every index below is within bounds only if boundaries rise from 0 to the number of tokens.
    if (
        len(cu_seqlens) == 0
        or cu_seqlens[0] != 0
        or not len(input_ids) == len(loss_mask) == cu_seqlens[-1]
    ):
        return 0, 0, -1
    for i in range(len(cu_seqlens) - 1):
        if cu_seqlens[i] > cu_seqlens[i + 1]:
            return 0, 0, -1
    boundaries, real_lengths = segments[0], segments[1]
    row_ids, labels, positions = tokens[0], tokens[1], tokens[2]
    unit, pad_token_id, position_start = how[0], how[1], how[2]
    num_targets = longest = np.int64(0)
    boundaries[first_segment] = start
    for i in range(len(cu_seqlens) - 1):
        ids = input_ids[cu_seqlens[i] : cu_seqlens[i + 1]]
        mask = loss_mask[cu_seqlens[i] : cu_seqlens[i + 1]]
        size = len(ids)
        length = np.int64((size + unit - 1) // unit * unit)
        end = start + length
        real_lengths[first_segment + i] = size
        boundaries[first_segment + i + 1] = end
        # Slices from index 0 make each loop simple enough for vector instructions.
        ids_of_segment, labels_of_segment, positions_of_segment = (
            row_ids[start:end],
            labels[start:end],
            positions[start:end],
        )
        segment_targets = np.int32(0)
        for index in range(size):
            token = np.int64(ids[index])
            ids_of_segment[index] = token
            labels_of_segment[index] = token if mask[index] else np.int64(IGNORE_INDEX)
            segment_targets += np.int32(mask[index])
        # No token of the segment predicts its first token: undone here, not in the loop, to keep
        # the loop free of branches.
        if size:
            segment_targets -= np.int32(mask[0])
            labels_of_segment[0] = IGNORE_INDEX
        num_targets += np.int64(segment_targets)
        # Padding after the segment belongs to it: positions continue, and the segment index is the
        # same.
        ids_of_segment[size:] = pad_token_id
        labels_of_segment[size:] = IGNORE_INDEX
        for index in range(length):
            positions_of_segment[index] = position_start + index
        segment_index[start:end] = first_segment + i
        longest = max(longest, length)
        start = end
    return int(num_targets), int(longest), int(start)


def _write_in_numpy(
    input_ids: TokenIds,
    loss_mask: LossMask,
    cu_seqlens: CuSeqlens,
    first_segment: int,
    start: int,
    row: RowArrays,
) -> tuple[int, int, int]:
    """Write a pack with array operations, with the same result as ``_write``."""
    if (
        len(cu_seqlens) == 0
        or cu_seqlens[0] != 0
        or not len(input_ids) == len(loss_mask) == cu_seqlens[-1]
    ):
        return 0, 0, -1
    unit, pad_token_id, position_start = row.how.tolist()
    sizes = cu_seqlens[1:] - cu_seqlens[:-1]
    shortest = sizes.min() if len(sizes) else 0
    if shortest < 0:
        return 0, 0, -1
    end_segment = first_segment + len(sizes)
    row.segments[1, first_segment:end_segment] = sizes
    bounds = row.segments[0, first_segment : end_segment + 1]
    if unit == 1:
        lengths = sizes
        np.add(cu_seqlens, start, out=bounds)
    else:
        lengths = -(-sizes // unit) * unit
        bounds[0] = start
        np.cumsum(lengths, out=bounds[1:])
        bounds[1:] += start
    end = int(bounds[-1])
    if start == end:
        return 0, 0, end
    # From here on, indices count from the pack's first token in the row.
    starts = bounds[:-1] - start
    pack_ids, pack_labels = row.tokens[:2, start:end]
    pack_labels.fill(IGNORE_INDEX)
    if end - start == len(input_ids):
        pack_ids[:] = input_ids
        np.copyto(pack_labels, input_ids, where=loss_mask)  # casting copies runs of targets at once
    else:
        indices = ranges(starts, sizes)
        pack_ids.fill(pad_token_id)
        pack_ids[indices] = input_ids
        pack_labels[indices[loss_mask]] = input_ids[loss_mask]
    # The first token of a segment is not a target, even if the mask has it; an empty segment has no
    # first token.
    nonempty = slice(None) if shortest else np.flatnonzero(sizes)
    pack_labels[starts[nonempty]] = IGNORE_INDEX
    num_targets = np.count_nonzero(loss_mask) - np.count_nonzero(
        loss_mask[cu_seqlens[:-1][nonempty]]
    )
    row.tokens[2, start:end] = ranges(np.full_like(lengths, position_start), lengths)
    row.segment_index[start:end] = np.arange(first_segment, end_segment, dtype=np.int32).repeat(
        lengths
    )
    return int(num_targets), int(lengths.max()), end

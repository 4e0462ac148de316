"""Split of a row over the ranks of context parallelism, and the inverse operation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
import numpy.typing as npt

from brimful.base.checks import choice_of, setting_number, whole_number
from brimful.base.ragged import ranges
from brimful.base.typing import (
    AnyArray,
    BoolArray,
    CuSeqlens,
    Float32Array,
    Int32Array,
    Int64Array,
    Labels,
)
from brimful.base.wording import setting
from brimful.collate.batch import PackedBatch
from brimful.collate.columns import Column
from brimful.collate.padding import shift_labels, shift_left
from brimful.errors import CollateError


class ContextParallelLayout(str, Enum):
    """Tokens that each rank holds. A trainer's attention expects one layout, and is silently wrong
    with another.

    ::

        two ranks         a0 a1 a2 a3 a4 a5 a6 a7 | b0 b1 b2 b3
        zigzag_segments   a0 a1 a6 a7 b0 b3                      rank 0: first and last slice of every segment
                          a2 a3 a4 a5 b1 b2                      rank 1
        zigzag_row        a0 a1 a2 b1 b2 b3                      first and last slice of the row
                          a3 a4 a5 a6 a7 b0
        contiguous        a0 a1 a2 a3 a4 a5
                          a6 a7 b0 b1 b2 b3
    """

    ZIGZAG_SEGMENTS = "zigzag_segments"
    """Slices ``r`` and ``2·cp − 1 − r`` of each segment: packed rows (``thd``) of Transformer
    Engine and Megatron-Core, and the per-document balancer of PyTorch. The length of every segment
    is a multiple of ``2·cp``.
    """
    ZIGZAG_ROW = "zigzag_row"
    """The same slices of the whole row: ``get_batch_on_this_cp_rank`` of Megatron-Core, ring
    attention over rows, and the head-tail balancer of PyTorch. The length of the row is a multiple
    of ``2·cp``.
    """
    CONTIGUOUS = "contiguous"
    """Equal parts of the row in order: Ulysses, and linear attention. The length of the row is a
    multiple of ``cp``.
    """


@dataclass(slots=True, eq=False)
class ContextParallelShard:
    """The part of a row that one rank of context parallelism holds: N = T ÷ cp_size tokens.

    Labels, weights and target columns are already shifted, over the whole row: the target of the
    last token of a slice is on another rank, so nothing may be shifted after the split.

    Attributes:
        cp_rank, cp_size, layout: arguments of the split.
        indices: ``int64[N]``: index of each token in the row.
        input_ids: ``int64[N]``.
        targets: ``int64[N]``: the label that each token predicts, ``IGNORE_INDEX`` without a
            target.
        target_weights: ``float32[N]``: the weight of each target, 0 without a target.
        position_ids: ``int64[N]``, positions in the segment: they do not restart on a rank.
        segment_index: ``int32[N]``: number of the segment in the row.
        padding_mask: ``bool[N]``, true at padding.
        cu_seqlens: ``int32[S + 1]`` of the whole row, as Transformer Engine expects it on every
            rank.
        max_seqlen: ``max_seqlen`` of the whole row.
        rope_positions: ``int64[3, N]``, or None.
        columns: ``[N, …]``; columns of targets are shifted.
    """

    cp_rank: int
    cp_size: int
    layout: ContextParallelLayout
    indices: Int64Array
    input_ids: Int64Array
    targets: Labels
    target_weights: Float32Array
    position_ids: Int64Array
    segment_index: Int32Array
    padding_mask: BoolArray
    cu_seqlens: CuSeqlens
    max_seqlen: int
    rope_positions: Int64Array | None = None
    columns: tuple[Column, ...] = ()

    def column(self, name: str) -> Column:
        """Return a column by name.

        Raises:
            CollateError: the shard has no such column.
        """
        for column in self.columns:
            if column.name == name:
                return column
        raise CollateError(f"the shard of rank {self.cp_rank} has no column {name!r}")

    def __repr__(self) -> str:
        return (
            f"ContextParallelShard(rank {self.cp_rank} of {self.cp_size}, "
            f"{len(self.indices):,} tokens, {self.layout.value})"
        )


def context_parallel_indices(
    cu_seqlens: CuSeqlens,
    *,
    cp_rank: int,
    cp_size: int,
    layout: ContextParallelLayout | str = ContextParallelLayout.ZIGZAG_SEGMENTS,
) -> Int64Array:
    """Return the indices in the row of a rank's tokens: ``int64[T ÷ cp_size]``, in the order in
    which it holds them.

    Args:
        cu_seqlens: ``int32[S + 1]`` with padding.
        cp_rank, cp_size: rank of context parallelism, and number of such ranks.
        layout: layout of the trainer's attention.

    Raises:
        CollateError: segments, or a row, that cannot be divided equally among the ranks.
        SettingsError: no such rank or layout.

    >>> cu_seqlens = np.array([0, 8, 12], dtype=np.int32)
    >>> context_parallel_indices(cu_seqlens, cp_rank=0, cp_size=2).tolist()
    [0, 1, 6, 7, 8, 11]
    """
    layout = choice_of(ContextParallelLayout, layout, argument="layout")
    size = whole_number("cp_size", cp_size, minimum=1)
    rank = setting_number("cp_rank", cp_rank, minimum=0, maximum=size - 1)
    total = int(cu_seqlens[-1])
    if size == 1:
        return np.arange(total, dtype=np.int64)
    if layout is ContextParallelLayout.CONTIGUOUS:
        _refuse_remainder(total, size)
        slice_size = total // size
        return np.arange(rank * slice_size, (rank + 1) * slice_size, dtype=np.int64)
    boundaries = cu_seqlens.astype(np.int64)
    if layout is ContextParallelLayout.ZIGZAG_ROW:
        _refuse_remainder(total, 2 * size)
        boundaries = np.array([0, total], dtype=np.int64)
    lengths = np.diff(boundaries)
    if (lengths % (2 * size)).any():
        segment = int(np.argmax(lengths % (2 * size) != 0))
        raise CollateError(
            f"segment {segment} has {int(lengths[segment]):,} tokens with its padding, and {size} "
            f"ranks of context parallelism cut each segment into {2 * size} slices: use "
            f"Padding({setting('segment_multiple_of', 2 * size)}), and plan with "
            f"Alignment.of_parallelism(cp={size})"
        )
    slices = lengths // (2 * size)
    # Each rank gets an early and a late slice of every segment, so that ranks have equal work under
    # a causal mask.
    slice_starts = np.stack(
        [boundaries[:-1] + rank * slices, boundaries[1:] - (rank + 1) * slices], axis=1
    )
    return ranges(slice_starts.reshape(-1), np.repeat(slices, 2))


def split_for_context_parallel(
    batch: PackedBatch,
    *,
    cp_rank: int,
    cp_size: int,
    layout: ContextParallelLayout | str = ContextParallelLayout.ZIGZAG_SEGMENTS,
) -> ContextParallelShard:
    """Return the part of a batch that one rank of context parallelism holds.

    ::

        cu_seqlens 0 4, cp_size 2     a b c d          targets   b c d .
        rank 0                        a d              targets   b .            not d, the next token on this rank
        rank 1                        b c              targets   c d

    Media stay in the batch: inputs of vision and audio towers are not part of the row.

    Args:
        batch: a batch that is padded so that it can be divided,
            ``Padding.of_alignment(Alignment.of_parallelism(cp=cp_size))``.
        cp_rank, cp_size: rank of context parallelism, and number of such ranks.
        layout: layout of the trainer's attention.

    Raises:
        CollateError: segments, or a row, that cannot be divided equally among the ranks; a row of
            trees, whose branches would have to find their trunk on other ranks.
        SettingsError: no such rank or layout.

    >>> from brimful.collate import lay_out
    >>> from brimful.testing.toys import toy_pack
    >>> batch = lay_out([toy_pack([4])])
    >>> [split_for_context_parallel(batch, cp_rank=rank, cp_size=2).position_ids.tolist() for rank in range(2)]
    [[0, 3], [1, 2]]
    """
    layout = choice_of(ContextParallelLayout, layout, argument="layout")
    if batch.sharing is not None:
        raise CollateError(
            f"the row has trees (samples {', '.join(map(str, batch.sample_ids[:3].tolist()))}…), "
            "and no layout of context parallelism keeps a branch with its trunk: plan the step "
            "without prefixes, or the data with "
            f"{setting('share', 'none')}"
        )
    indices = context_parallel_indices(
        batch.cu_seqlens, cp_rank=cp_rank, cp_size=cp_size, layout=layout
    )
    targets = shift_labels(batch.labels, batch.cu_seqlens)
    weights = shift_left(batch.target_weights, batch.cu_seqlens, by=1, fill=0.0)
    columns = (column.shifted(batch.cu_seqlens) for column in batch.columns)
    return ContextParallelShard(
        cp_rank=int(cp_rank),
        cp_size=int(cp_size),
        layout=layout,
        indices=indices,
        input_ids=batch.input_ids[indices],
        targets=targets[indices],
        target_weights=weights[indices],
        position_ids=batch.position_ids[indices],
        segment_index=batch.segment_index[indices],
        padding_mask=batch.padding_mask[indices],
        cu_seqlens=batch.cu_seqlens,
        max_seqlen=batch.max_seqlen,
        rope_positions=None if batch.rope_positions is None else batch.rope_positions[:, indices],
        columns=tuple(replace(column, values=column.values[indices]) for column in columns),
    )


def gather_from_context_parallel(
    values_of_ranks: Sequence[npt.ArrayLike],
    cu_seqlens: CuSeqlens,
    *,
    layout: ContextParallelLayout | str = ContextParallelLayout.ZIGZAG_SEGMENTS,
) -> AnyArray:
    """Put the values of all ranks back into the order of the row: ``[T, …]``.

    Args:
        values_of_ranks: ``[T ÷ cp_size, …]`` of each rank, in order of ranks, as an all-gather returns them.
        cu_seqlens: ``int32[S + 1]`` of the whole row.
        layout: layout of the split.

    Raises:
        CollateError: a part has another length, or the row cannot be divided.

    >>> cu_seqlens = np.array([0, 4], dtype=np.int32)
    >>> gather_from_context_parallel([[0, 3], [1, 2]], cu_seqlens).tolist()
    [0, 1, 2, 3]
    """
    arrays = [np.asarray(rank_values) for rank_values in values_of_ranks]
    values: AnyArray | None = None
    for rank, array in enumerate(arrays):
        indices = context_parallel_indices(
            cu_seqlens, cp_rank=rank, cp_size=len(arrays), layout=layout
        )
        if len(array) != len(indices):
            raise CollateError(
                f"rank {rank} of {len(arrays)} holds {len(indices):,} of {int(cu_seqlens[-1]):,} "
                f"tokens and gave {len(array):,} values"
            )
        if values is None:
            values = np.empty((int(cu_seqlens[-1]), *array.shape[1:]), dtype=array.dtype)
        values[indices] = array
    if values is None:
        raise CollateError("no parts to gather: give the parts of all ranks")
    return values


def _refuse_remainder(total: int, multiple: int) -> None:
    if total % multiple:
        raise CollateError(
            f"the row has {total:,} tokens, which do not divide into {multiple} equal slices: use "
            f"Padding({setting('multiple_of', multiple)})"
        )

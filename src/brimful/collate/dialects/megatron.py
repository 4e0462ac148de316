"""Micro-batch for Megatron-Core's packed scheduler, and its ``PackedSeqParams``."""

from dataclasses import fields
from typing import Any, TypeVar

import torch

from brimful.collate.batch import PackedBatch
from brimful.collate.dialects.tensors import (
    column_tensors,
    media_tensors,
    row,
    shifted_labels,
    shifted_weights,
    thd_boundaries,
)

_Params = TypeVar("_Params")


def to_megatron(batch: PackedBatch) -> dict[str, Any]:
    """Convert a batch to T tokens in one dimension; labels are shifted, and 0 if ``loss_mask`` is 0.

    ==========================================  =====================================================
    ``tokens, labels``                          ``int64[T]``
    ``position_ids``                            ``int64[T]``, counted through padding; ``int64[3, 1, T]`` with mRoPE
    ``loss_mask``                               ``float32[T]``: the weight of each shifted label
    ``padding_mask``                            ``bool[T]``, true at padding, for mixtures of experts
    ``cu_seqlens``                              ``int32[S + 1]``, without gaps
    ``cu_seqlens_padded``                       ``int32[S + 1]``, with gaps
    ``max_seqlen``                              ``int32[1]``, of the padded lengths
    ``packed_seq_params``                       keyword arguments of ``PackedSeqParams``
    ==========================================  =====================================================

    The padding at the end is a segment that is empty in ``cu_seqlens``. Megatron-Core's reader of such batches,
    ``get_batch_on_this_rank_for_sequence_packing``, cuts the row for context parallelism, adds the dimension of the
    batch, and supports text only: media arrays and mRoPE positions need your own reader.
    """
    positions = batch.position_ids if batch.rope_positions is None else batch.rope_positions[:, None]
    return {
        "tokens": torch.from_numpy(batch.input_ids),
        "labels": torch.from_numpy(shifted_labels(batch, ignore_index=0)),
        "position_ids": torch.from_numpy(positions),
        "loss_mask": torch.from_numpy(shifted_weights(batch)),
        "padding_mask": torch.from_numpy(batch.padding_mask),
        "cu_seqlens": torch.from_numpy(batch.cu_seqlens_real),
        "cu_seqlens_padded": torch.from_numpy(batch.cu_seqlens),
        "max_seqlen": torch.tensor([batch.max_seqlen], dtype=torch.int32),
        "packed_seq_params": packed_seq_params(batch),
        **column_tensors(batch, labels_shifted=True, flat=True),
        **media_tensors(batch.media),
    }


def packed_seq_params(batch: PackedBatch) -> dict[str, Any]:
    """Return the keyword arguments of ``PackedSeqParams`` that every version has.

    Padding at the end only is an ordinary segment: the boundaries have no gaps, and the fast kernels run. Only padding
    after segments makes ``cu_seqlens_q`` and ``cu_seqlens_q_padded`` differ; the kernels then need both.
    """
    params = thd_boundaries(batch)
    if not batch.has_gaps:
        params["cu_seqlens_q_padded"] = params["cu_seqlens_kv_padded"] = None
    return params


def build_packed_seq_params(batch: PackedBatch, cls: type[_Params]) -> _Params:
    """Build an instance of Megatron's class, including fields of its version beyond ``packed_seq_params``.

    Newer versions also take ``total_tokens``, ``seq_idx`` and ``pad_between_seqs``. The class is an argument, so this
    module does not import Megatron.
    """
    field_names = {field.name for field in fields(cls)}  # type: ignore[arg-type]
    newer_fields = {
        "total_tokens": len(batch.input_ids),
        "seq_idx": row(batch.segment_index),
        "pad_between_seqs": batch.has_gaps,
    }
    params = {**packed_seq_params(batch), **{key: newer_fields[key] for key in newer_fields.keys() & field_names}}
    return cls(**params)

"""What Megatron-Core takes: a micro-batch of its packed scheduler, and ``PackedSeqParams``."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

import torch

from brimful.collate.batch import PackedBatch
from brimful.collate.dialects.tensors import media_tensors, row, shifted_labels, shifted_weights
from brimful.typing import IGNORE_INDEX

__all__ = ["build_packed_seq_params", "packed_seq_params", "to_megatron"]

_Params = TypeVar("_Params")


def to_megatron(batch: PackedBatch) -> dict[str, Any]:
    """T tokens in one dimension; labels are shifted, and 0 where ``loss_mask`` is 0.

    ==========================================  =====================================================
    ``tokens, labels``                          ``int64[T]``
    ``position_ids``                            ``int64[T]``, on through padding; ``int64[3, 1, T]`` with mRoPE
    ``loss_mask``                               ``float32[T]``: the weight of each shifted label
    ``padding_mask``                            ``bool[T]``, true at padding, for mixtures of experts
    ``cu_seqlens``                              ``int32[S + 1]``, without gaps
    ``cu_seqlens_padded``                       ``int32[S + 1]``, where the row really is
    ``max_seqlen``                              ``int32[1]``, of the padded lengths
    ``packed_seq_params``                       keyword arguments of ``PackedSeqParams``
    ==========================================  =====================================================

    The padding at the end is a segment that is empty in ``cu_seqlens``. What Megatron-Core reads such batches by,
    ``get_batch_on_this_rank_for_sequence_packing``, cuts the row for context parallelism, adds the dimension of the batch,
    and knows text only: arrays of media and positions of mRoPE are for a reader of your own.
    """
    labels = shifted_labels(batch)
    labels[labels == IGNORE_INDEX] = 0
    positions = batch.position_ids if batch.rope_positions is None else batch.rope_positions[:, None]
    return {
        "tokens": torch.from_numpy(batch.input_ids),
        "labels": torch.from_numpy(labels),
        "position_ids": torch.from_numpy(positions),
        "loss_mask": torch.from_numpy(shifted_weights(batch)),
        "padding_mask": torch.from_numpy(batch.padding_mask),
        "cu_seqlens": torch.from_numpy(batch.cu_seqlens_real),
        "cu_seqlens_padded": torch.from_numpy(batch.cu_seqlens),
        "max_seqlen": torch.tensor([batch.max_seqlen], dtype=torch.int32),
        "packed_seq_params": packed_seq_params(batch),
        **media_tensors(batch),
    }


def packed_seq_params(batch: PackedBatch) -> dict[str, Any]:
    """Keyword arguments of ``PackedSeqParams``, those that every version has.

    Padding at the end alone is a segment like any other: boundaries without gaps, and the fast kernels. Only padding
    behind segments makes ``cu_seqlens_q`` and ``cu_seqlens_q_padded`` differ, which the kernels must be told.
    """
    where = torch.from_numpy(batch.cu_seqlens)
    real = torch.from_numpy(batch.cu_seqlens_real) if batch.has_gaps else where
    padded = where if batch.has_gaps else None
    return {
        "qkv_format": "thd",
        "cu_seqlens_q": real,
        "cu_seqlens_kv": real,
        "cu_seqlens_q_padded": padded,
        "cu_seqlens_kv_padded": padded,
        "max_seqlen_q": batch.max_seqlen,
        "max_seqlen_kv": batch.max_seqlen,
    }


def build_packed_seq_params(batch: PackedBatch, cls: type[_Params]) -> _Params:
    """An instance of Megatron's own class, with what its version knows beyond ``packed_seq_params``.

    Newer versions take ``total_tokens``, ``seq_idx`` and ``pad_between_seqs`` too. Give the class, so that nothing
    here imports Megatron.
    """
    known = {field.name for field in fields(cls)}  # type: ignore[arg-type]
    newer = {
        "total_tokens": len(batch.input_ids),
        "seq_idx": row(batch.segment_index),
        "pad_between_seqs": batch.has_gaps,
    }
    return cls(**packed_seq_params(batch), **{name: value for name, value in newer.items() if name in known})

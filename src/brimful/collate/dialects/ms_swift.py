"""What the trainer of ms-swift gets from its template, with packing or padding-free."""

from __future__ import annotations

from typing import Any

import torch

from brimful.collate.batch import PackedBatch
from brimful.collate.dialects.tensors import media_tensors, row

__all__ = ["to_ms_swift"]


def to_ms_swift(batch: PackedBatch) -> dict[str, Any]:
    """One row of T tokens.

    ==========================================  =====================================================
    ``input_ids, labels``                       ``int64[1, T]``; labels are not shifted
    ``position_ids``                            ``int64[1, T]``; with mRoPE ``int64[3, 1, T]``
    ``text_position_ids``                       ``int64[1, T]``, with mRoPE only
    ``loss_scale``                              ``float32[1, T]``, only if the batch has weights
    ``cu_seq_lens_q, cu_seq_lens_k``            ``int32[S + 1]``
    ``max_length_q, max_length_k``              Python integers
    ==========================================  =====================================================

    ms-swift itself takes every position 0 for a beginning, so that each token of its padding is a segment.
    """
    boundaries = torch.from_numpy(batch.cu_seqlens)
    batch_of = {
        "input_ids": row(batch.input_ids),
        "labels": row(batch.labels),
        "position_ids": row(batch.position_ids),
        "cu_seq_lens_q": boundaries,
        "cu_seq_lens_k": boundaries,
        "max_length_q": batch.max_seqlen,
        "max_length_k": batch.max_seqlen,
    }
    if batch.rope_positions is not None:
        batch_of["text_position_ids"] = batch_of["position_ids"]
        batch_of["position_ids"] = torch.from_numpy(batch.rope_positions[:, None])
    if batch.loss_weights is not None:
        batch_of["loss_scale"] = row(batch.target_weights)
    return {**batch_of, **media_tensors(batch)}

"""Batch that the trainer of ms-swift gets from its template, with packing or in padding-free mode."""

from typing import Any

import torch

from brimful.collate.batch import PackedBatch
from brimful.collate.dialects.tensors import column_tensors, flash_boundaries, media_tensors, row


def to_ms_swift(batch: PackedBatch) -> dict[str, Any]:
    """Convert a batch to one row of T tokens.

    ==========================================  =====================================================
    ``input_ids, labels``                       ``int64[1, T]``; labels are not shifted
    ``position_ids``                            ``int64[1, T]``; with mRoPE ``int64[3, 1, T]``
    ``text_position_ids``                       ``int64[1, T]``, with mRoPE only
    ``loss_scale``                              ``float32[1, T]``, only if the batch has weights
    ``cu_seq_lens_q, cu_seq_lens_k``            ``int32[S + 1]``
    ``max_length_q, max_length_k``              Python integers
    ==========================================  =====================================================

    ms-swift itself reads every position 0 as the beginning of a segment, so each token of its own padding is a segment.
    """
    tensors = {
        "input_ids": row(batch.input_ids),
        "labels": row(batch.labels),
        "position_ids": row(batch.position_ids),
        **flash_boundaries(batch),
    }
    if batch.rope_positions is not None:
        tensors["text_position_ids"] = tensors["position_ids"]
        tensors["position_ids"] = torch.from_numpy(batch.rope_positions[:, None])
    if batch.loss_weights is not None:
        tensors["loss_scale"] = row(batch.target_weights)
    return {**tensors, **column_tensors(batch), **media_tensors(batch.media)}

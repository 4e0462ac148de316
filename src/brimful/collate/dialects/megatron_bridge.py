"""Batch of Megatron-Bridge in the THD layout of its current versions."""

from typing import Any

import numpy as np
import torch

from brimful.base.ragged import offsets_of
from brimful.collate.batch import PackedBatch
from brimful.collate.dialects.tensors import column_tensors, media_tensors, row, shifted_labels, shifted_weights


def to_megatron_bridge(batch: PackedBatch) -> dict[str, Any]:
    """Convert a batch to one row of T tokens; labels are shifted, ``-100`` without a target.

    ==========================================  =====================================================
    ``input_ids, labels``                       ``int64[1, T]``
    ``position_ids``                            ``int64[1, T]``, counted through padding; ``int64[3, 1, T]`` with mRoPE
    ``loss_mask``                               ``float32[1, T]``
    ``padding_mask``                            ``bool[1, T]``, true at padding
    ``attention_mask``                          ``None``
    ``cu_seqlens_q, cu_seqlens_kv``             ``int32[S + 1]``, without gaps
    ``cu_seqlens_q_padded, …_kv_padded``        ``int32[S + 1]``, only with padding after segments
    ``max_seqlen_q, max_seqlen_kv``             0-dimensional ``int32`` in host memory
    ``total_tokens``                            Python integer, T
    ==========================================  =====================================================

    The padding at the end is a segment with tokens, even if the batch has gaps: Bridge refuses empty segments when it
    makes positions of images (Qwen2.5-VL, GLM-4.5V). It also refuses the empty segments of ``Padding(num_segments=…)``.
    """
    longest = torch.tensor(batch.max_seqlen, dtype=torch.int32)
    positions = batch.position_ids[None] if batch.rope_positions is None else batch.rope_positions[:, None]
    return {
        "input_ids": row(batch.input_ids),
        "labels": row(shifted_labels(batch)),
        "position_ids": torch.from_numpy(positions),
        "loss_mask": row(shifted_weights(batch)),
        "padding_mask": row(batch.padding_mask),
        "attention_mask": None,
        **_boundaries(batch),
        "max_seqlen_q": longest,
        "max_seqlen_kv": longest,
        "total_tokens": len(batch.input_ids),
        **column_tensors(batch, labels_shifted=True),
        **media_tensors(batch.media),
    }


def _boundaries(batch: PackedBatch) -> dict[str, torch.Tensor]:
    padded = torch.from_numpy(batch.cu_seqlens)
    if not batch.has_gaps:
        return {"cu_seqlens_q": padded, "cu_seqlens_kv": padded}
    # Samples without their gaps; the padding at the end keeps its tokens.
    lengths = batch.lengths
    lengths[: batch.num_segments] = batch.real_lengths[: batch.num_segments]
    real = torch.from_numpy(offsets_of(lengths).astype(np.int32))
    return {
        "cu_seqlens_q": real,
        "cu_seqlens_kv": real,
        "cu_seqlens_q_padded": padded,
        "cu_seqlens_kv_padded": padded,
    }

"""What Megatron-Bridge takes in the THD layout of its current versions."""

from __future__ import annotations

from typing import Any

import torch

from brimful.collate.batch import PackedBatch
from brimful.collate.dialects.megatron import packed_seq_params
from brimful.collate.dialects.tensors import media_tensors, row, shifted_labels, shifted_weights

__all__ = ["to_megatron_bridge"]


def to_megatron_bridge(batch: PackedBatch) -> dict[str, Any]:
    """One row of T tokens; labels are shifted, ``-100`` where there is none.

    ==========================================  =====================================================
    ``input_ids, labels``                       ``int64[1, T]``
    ``position_ids``                            ``int64[1, T]``, on through padding; ``int64[3, 1, T]`` with mRoPE
    ``loss_mask``                               ``float32[1, T]``
    ``padding_mask``                            ``bool[1, T]``, true at padding
    ``attention_mask``                          ``None``
    ``cu_seqlens_q, cu_seqlens_kv``             ``int32[S + 1]``
    ``cu_seqlens_q_padded, …_kv_padded``        ``int32[S + 1]``, only if there is padding behind segments
    ``max_seqlen_q, max_seqlen_kv``             0-dimensional ``int32`` in host memory
    ``total_tokens``                            Python integer, T
    ==========================================  =====================================================
    """
    params = packed_seq_params(batch)
    longest = torch.tensor(batch.max_seqlen, dtype=torch.int32)
    positions = batch.position_ids[None] if batch.rope_positions is None else batch.rope_positions[:, None]
    return {
        "input_ids": row(batch.input_ids),
        "labels": row(shifted_labels(batch)),
        "position_ids": torch.from_numpy(positions),
        "loss_mask": row(shifted_weights(batch)),
        "padding_mask": row(batch.padding_mask),
        "attention_mask": None,
        **{key: value for key, value in params.items() if key.startswith("cu_seqlens") and value is not None},
        "max_seqlen_q": longest,
        "max_seqlen_kv": longest,
        "total_tokens": len(batch.input_ids),
        **media_tensors(batch),
    }

"""Arguments of Transformer Engine's attention in the ``thd`` layout."""

from typing import Any

import torch

from brimful.collate.batch import PackedBatch
from brimful.collate.dialects.tensors import column_tensors, media_tensors, thd_boundaries


def to_transformer_engine(batch: PackedBatch) -> dict[str, Any]:
    """Convert a batch to T tokens in one dimension, and to keyword arguments of ``DotProductAttention``.

    ==========================================  =====================================================
    ``input_ids, labels``                       ``int64[T]``; labels are not shifted
    ``position_ids``                            ``int64[T]``, counted through padding; ``int64[3, T]`` with mRoPE
    ``qkv_format``                              ``"thd"``
    ``cu_seqlens_q, cu_seqlens_kv``             ``int32[S + 1]``, without gaps: 0 3 5 9
    ``cu_seqlens_q_padded, …_kv_padded``        ``int32[S + 1]``, with gaps: 0 4 8 13
    ``max_seqlen_q, max_seqlen_kv``             Python integers, of the padded lengths
    ``pad_between_seqs``                        true if the two differ; if not, they are the same tensor
    ==========================================  =====================================================
    """
    positions = batch.position_ids if batch.rope_positions is None else batch.rope_positions
    tensors = {
        "input_ids": torch.from_numpy(batch.input_ids),
        "labels": torch.from_numpy(batch.labels),
        "position_ids": torch.from_numpy(positions),
        **thd_boundaries(batch),
        "pad_between_seqs": batch.has_gaps,
        **column_tensors(batch, flat=True),
        **media_tensors(batch.media),
    }
    if batch.loss_weights is not None:
        tensors["loss_weights"] = torch.from_numpy(batch.target_weights)
    return tensors

"""Batch of torchtitan: a row without a batch dimension."""

from typing import Any

import torch

from brimful.collate.batch import PackedBatch
from brimful.collate.dialects.tensors import column_tensors, media_tensors, shifted_labels, shifted_weights


def to_torchtitan(batch: PackedBatch) -> dict[str, Any]:
    """Convert a batch to T tokens in one dimension; labels are shifted.

    ==========================================  =====================================================
    ``input, labels, positions``                ``int64[T]``
    ``mrope_positions``                         ``int64[3, T]``, with mRoPE only
    ``varlen_metadata``                         fields of ``VarlenMetadata``: ``cu_seq_q``, ``cu_seq_k``
                                                (``int32[S + 1]``), ``max_q``, ``max_k`` (Python integers),
                                                ``cu_seq_q_host`` (a tuple)
    ``loss_weights``                            ``float32[T]``, only if the batch has any
    ==========================================  =====================================================

    torchtitan begins a document at every position 0; the positions of the padding count from 0, so it is one document.
    """
    boundaries = torch.from_numpy(batch.cu_seqlens)
    tensors: dict[str, Any] = {
        "input": torch.from_numpy(batch.input_ids),
        "labels": torch.from_numpy(shifted_labels(batch)),
        "positions": torch.from_numpy(batch.position_ids),
        "varlen_metadata": {
            "cu_seq_q": boundaries,
            "cu_seq_k": boundaries,
            "max_q": batch.max_seqlen,
            "max_k": batch.max_seqlen,
            "cu_seq_q_host": batch.cu_seqlens_host,
        },
    }
    # ``positions`` hold text positions even with mRoPE: the masks are made from them.
    if batch.rope_positions is not None:
        tensors["mrope_positions"] = torch.from_numpy(batch.rope_positions)
    if batch.loss_weights is not None:
        tensors["loss_weights"] = torch.from_numpy(shifted_weights(batch))
    return {**tensors, **column_tensors(batch, labels_shifted=True, flat=True), **media_tensors(batch.media)}

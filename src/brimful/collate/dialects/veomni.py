"""Batch that a model of VeOmni gets from its packing collator without sequence parallelism."""

from typing import Any

import numpy as np
import torch

from brimful.collate.batch import PackedBatch
from brimful.collate.dialects.tensors import flash_boundaries, other_tensors, row


def to_veomni(batch: PackedBatch) -> dict[str, Any]:
    """Convert a batch to one row of T tokens; labels are not shifted.

    ==========================================  =====================================================
    ``input_ids, labels``                       ``int64[1, T]``
    ``attention_mask``                          ``int64[1, T]``, all ones: VeOmni uses the boundaries
    ``position_ids``                            ``int64[1, T]``; with mRoPE ``int64[1, 3, T]``
    ``cu_seq_lens_q, cu_seq_lens_k``            ``int32[S + 1]``
    ``linear_attn_cu_seq_lens_q``               the same
    ``max_length_q, max_length_k``              Python integers
    ``tail_padding_length``                     0-dimensional ``int32``, only if the row ends in padding
    ``ds_idx``                                  ``int64[samples]``: the source of each, only if known
    ``loss_weights``                            ``float32[1, T]``, only if the batch has any
    ==========================================  =====================================================

    VeOmni gives padding tokens position 0; here their positions count from 0. The padding is one segment in both.
    """
    boundaries = flash_boundaries(batch)
    ids = row(batch.input_ids)
    tensors = {
        "input_ids": ids,
        "labels": row(batch.labels),
        "attention_mask": torch.ones_like(ids),
        "position_ids": row(batch.position_ids if batch.rope_positions is None else batch.rope_positions),
        **boundaries,
        "linear_attn_cu_seq_lens_q": boundaries["cu_seq_lens_q"],
    }
    if batch.tail_length:
        tensors["tail_padding_length"] = torch.tensor(batch.tail_length, dtype=torch.int32)
    if batch.source_ids is not None:
        tensors["ds_idx"] = torch.from_numpy(batch.source_ids.astype(np.int64))
    return {**tensors, **other_tensors(batch)}

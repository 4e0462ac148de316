"""Batch of Megatron-Bridge up to 0.3 and of NeMo: boundaries with an end mark."""

from typing import Any

import numpy as np
import torch

from brimful.base.typing import CuSeqlens
from brimful.base.wording import setting
from brimful.collate.batch import PackedBatch
from brimful.collate.dialects.tensors import column_tensors, media_tensors, row, shifted_labels, shifted_weights
from brimful.errors import CollateError


def to_megatron_bridge_legacy(batch: PackedBatch) -> dict[str, Any]:
    """Convert a batch to one row of T tokens; labels are shifted, and 0 if ``loss_mask`` is 0.

    ==========================================  =====================================================
    ``tokens, labels, position_ids``            ``int64[1, T]``
    ``loss_mask``                               ``float32[1, T]``
    ``attention_mask``                          ``None``
    ``cu_seqlens``                              ``int32[1, S + 2]``: boundaries with gaps, then ``-1``
    ``cu_seqlens_argmin``                       ``int64[1, 1]``: index of the ``-1``
    ``cu_seqlens_unpadded, …_argmin``           the same without gaps, only with padding after segments
    ``max_seqlen``                              ``int32[1, 1]``
    ``token_count``                             a list with the Python integer T
    ==========================================  =====================================================

    Raises:
        CollateError: the batch has mRoPE positions, for which this dialect has no key.
    """
    if batch.rope_positions is not None:
        raise CollateError(
            f"samples {', '.join(map(str, batch.sample_ids[:3].tolist()))}… have mRoPE positions, for which dialect "
            f"'megatron_bridge_legacy' has no key: choose {setting('dialect', 'megatron_bridge')}"
        )
    return {
        "tokens": row(batch.input_ids),
        "labels": row(shifted_labels(batch, ignore_index=0)),
        "position_ids": row(batch.position_ids),
        "loss_mask": row(shifted_weights(batch)),
        "attention_mask": None,
        **_with_end_mark("cu_seqlens", batch.cu_seqlens),
        **(_with_end_mark("cu_seqlens_unpadded", batch.cu_seqlens_real) if batch.has_gaps else {}),
        "max_seqlen": torch.tensor([[batch.max_seqlen]], dtype=torch.int32),
        "token_count": [len(batch.input_ids)],
        **column_tensors(batch, labels_shifted=True),
        **media_tensors(batch.media),
    }


def _with_end_mark(name: str, boundaries: CuSeqlens) -> dict[str, torch.Tensor]:
    """Return boundaries followed by ``-1``, and its index, which saves a search on the device."""
    values = np.append(boundaries, np.int32(-1)).astype(np.int32, copy=False)
    return {name: row(values), f"{name}_argmin": torch.tensor([[len(boundaries)]])}

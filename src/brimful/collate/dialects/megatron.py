"""Dialects of Megatron-Core, of Megatron-Bridge, and of Megatron-Bridge up to 0.3 and NeMo."""

from typing import Any

import numpy as np
import torch

from brimful.base.ragged import offsets_of
from brimful.base.typing import CuSeqlens
from brimful.base.wording import setting
from brimful.collate.batch import PackedBatch
from brimful.collate.dialects.tensors import (
    other_tensors,
    row,
    shifted_labels,
    shifted_weights,
    thd_boundaries,
)
from brimful.errors import CollateError


def to_megatron(batch: PackedBatch) -> dict[str, Any]:
    """Convert a batch to T tokens in one dimension; labels are shifted, and 0 if ``loss_mask`` is
    0.

    The padding at the end is a segment that is empty in ``cu_seqlens``. Megatron-Core's reader of
    such batches, ``get_batch_on_this_rank_for_sequence_packing``, cuts the row for context
    parallelism, adds the dimension of the batch, and supports text only: media arrays and mRoPE
    positions need your own reader.
    """
    positions = (
        batch.position_ids if batch.rope_positions is None else batch.rope_positions[:, None]
    )
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
        **other_tensors(batch, weights="", labels_shifted=True, flat=True),
    }


def packed_seq_params(batch: PackedBatch) -> dict[str, Any]:
    """Return the keyword arguments of ``PackedSeqParams`` that every version has.

    Padding at the end only is an ordinary segment: the boundaries have no gaps, and the fast
    kernels run. Only padding after segments makes ``cu_seqlens_q`` and ``cu_seqlens_q_padded``
    differ; the kernels then need both.
    """
    params = thd_boundaries(batch)
    if not batch.has_gaps:
        params["cu_seqlens_q_padded"] = params["cu_seqlens_kv_padded"] = None
    return params


def to_megatron_bridge(batch: PackedBatch) -> dict[str, Any]:
    """Convert a batch to one row of T tokens; labels are shifted, ``-100`` without a target.

    The padding at the end is a segment with tokens, even if the batch has gaps: Bridge refuses
    empty segments when it makes positions of images (Qwen2.5-VL, GLM-4.5V). It also refuses the
    empty segments of ``Padding(num_segments=…)``. GLM-4.5V also needs ``mm_token_type_ids``, which is
    not made here.
    """
    longest = torch.tensor(batch.max_seqlen, dtype=torch.int32)
    positions = (
        batch.position_ids[None] if batch.rope_positions is None else batch.rope_positions[:, None]
    )
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
        **other_tensors(batch, weights="", labels_shifted=True),
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


def to_megatron_bridge_legacy(batch: PackedBatch) -> dict[str, Any]:
    """Convert a batch to one row of T tokens; labels are shifted, and 0 if ``loss_mask`` is 0.

    Raises:
        CollateError: the batch has mRoPE positions, for which this dialect has no key.
    """
    if batch.rope_positions is not None:
        raise CollateError(
            f"samples {', '.join(map(str, batch.sample_ids[:3].tolist()))}… have mRoPE positions, "
            "for which dialect 'megatron_bridge_legacy' has no key: choose "
            f"{setting('dialect', 'megatron_bridge')}"
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
        **other_tensors(batch, weights="", labels_shifted=True),
    }


def _with_end_mark(name: str, boundaries: CuSeqlens) -> dict[str, torch.Tensor]:
    """Return boundaries followed by ``-1``, and its index, which saves a search on the device."""
    values = np.append(boundaries, np.int32(-1)).astype(np.int32, copy=False)
    return {name: row(values), f"{name}_argmin": torch.tensor([[len(boundaries)]])}

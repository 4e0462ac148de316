"""Keyword arguments of Transformers models, with the keys of ``DataCollatorWithFlattening``."""

from typing import Any

import torch

from brimful.collate.batch import PackedBatch
from brimful.collate.dialects.tensors import divisor_if_no_target, other_tensors, row


def to_transformers(batch: PackedBatch) -> dict[str, Any]:
    """Convert a batch to one row of T tokens with the keys of Transformers 5.

    No ``attention_mask``: its presence would make flash attention ignore the boundaries. No cache either: a model
    called with ``use_cache`` (the default of most configurations) makes an empty cache, and with a cache Transformers
    does not look for packed sequences in SDPA, eager and flex attention, so samples would attend to each other.

    ==========================================  =====================================================
    ``input_ids, labels``                       ``int64[1, T]``; labels are not shifted
    ``position_ids``                            ``int64[1, T]``; with mRoPE ``int64[4, 1, T]``, text first
    ``cu_seq_lens_q, cu_seq_lens_k``            ``int32[S + 1]``, padding as the last segment
    ``max_length_q, max_length_k``              Python integers
    ``seq_idx``                                 ``int32[1, T]``, for Mamba and gated delta nets
    ``use_cache``                               ``False``
    ``num_items_in_batch``                      1, only in a batch without a target: its loss is then 0, not NaN
    ``loss_weights``                            ``float32[1, T]``, only if the batch has any
    ==========================================  =====================================================

    Media arrays are added under their own names.
    """
    # Written out, because this is called in each step: another dictionary costs as much as another tensor.
    boundaries = torch.from_numpy(batch.cu_seqlens)
    positions = batch.position_ids[None] if batch.rope_positions is None else batch.position_rows(4)[:, None]
    return {
        "input_ids": row(batch.input_ids),
        "labels": row(batch.labels),
        "position_ids": torch.from_numpy(positions),
        "cu_seq_lens_q": boundaries,
        "cu_seq_lens_k": boundaries,
        "max_length_q": batch.max_seqlen,
        "max_length_k": batch.max_seqlen,
        "seq_idx": row(batch.segment_index),
        "use_cache": False,
        **divisor_if_no_target(batch),
        **other_tensors(batch),
    }

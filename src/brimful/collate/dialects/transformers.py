"""What Transformers models take: the keys of ``DataCollatorWithFlattening``."""

from __future__ import annotations

from typing import Any

import torch

from brimful.collate.batch import PackedBatch
from brimful.collate.layout import segment_index

__all__ = ["to_transformers"]


def to_transformers(batch: PackedBatch) -> dict[str, Any]:
    """One row of T tokens in the words of Transformers 5.

    No ``attention_mask``: its presence would make flash attention ignore the boundaries. And no cache: a model
    that is called with ``use_cache`` (the default of most configurations) makes an empty cache, and Transformers
    then no longer looks for packed sequences in SDPA, eager and flex attention: samples would see each other.

    ==========================================  =====================================================
    ``input_ids, labels, position_ids``         ``int64[1, T]``; labels are not shifted
    ``cu_seq_lens_q, cu_seq_lens_k``            ``int32[S + 1]``, the padding as last segment
    ``max_length_q, max_length_k``              Python integers
    ``seq_idx``                                 ``int32[1, T]``, for Mamba and gated delta nets
    ``use_cache``                               ``False``
    ==========================================  =====================================================
    """
    boundaries = torch.from_numpy(batch.cu_seqlens)
    longest = batch.max_seqlen
    return {
        "input_ids": torch.from_numpy(batch.input_ids).unsqueeze(0),
        "labels": torch.from_numpy(batch.labels).unsqueeze(0),
        "position_ids": torch.from_numpy(batch.position_ids).unsqueeze(0),
        "cu_seq_lens_q": boundaries,
        "cu_seq_lens_k": boundaries,
        "max_length_q": longest,
        "max_length_k": longest,
        "seq_idx": torch.from_numpy(segment_index(batch)).unsqueeze(0),
        "use_cache": False,
    }

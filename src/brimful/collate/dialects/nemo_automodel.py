"""What NeMo Automodel takes as a packed batch: rows with lists of lengths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from brimful.collate.batch import PackedBatch
from brimful.collate.dialects.tensors import join_rows, shifted_labels, stack
from brimful.typing import Int32Array

__all__ = ["to_nemo_automodel"]

_NONE = -1000  # what Automodel fills missing lengths with


def to_nemo_automodel(rows: Sequence[PackedBatch]) -> dict[str, Any]:
    """One row of S tokens for each of B packs; labels are shifted.

    ==========================================  =====================================================
    ``input_ids, labels``                       ``int64[B, S]``
    ``position_ids``                            ``int64[B, S]``; with mRoPE ``int64[3, B, S]``
    ``seq_lens, seq_lens_padded``               ``int64[B, n]``: of samples, and with padding; ``-1000`` for none
    ``qkv_format``                              ``"thd"``
    ``loss_weights``                            ``float32[B, S]``, only if the batch has any
    ==========================================  =====================================================

    The padding at the end of a row is a segment of length 0 in ``seq_lens``.
    """
    return {
        "input_ids": stack([batch.input_ids for batch in rows]),
        "labels": stack([shifted_labels(batch) for batch in rows]),
        "seq_lens": _filled([batch.real_lengths for batch in rows]),
        "seq_lens_padded": _filled([batch.lengths for batch in rows]),
        "qkv_format": "thd",
        **join_rows(rows, mrope_rows=3, shifted=True),
    }


def _filled(lengths: Sequence[Int32Array]) -> torch.Tensor:
    filled = np.full((len(lengths), max(map(len, lengths))), _NONE, dtype=np.int64)
    for number, row in enumerate(lengths):
        filled[number, : len(row)] = row
    return torch.from_numpy(filled)

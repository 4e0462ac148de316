"""Packed batch of NeMo Automodel: rows with lists of lengths."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from brimful.base.typing import Int32Array
from brimful.collate.batch import PackedBatch
from brimful.collate.dialects.tensors import join_rows

_NO_LENGTH = -1000
"""Filler in Automodel's lists of lengths, for rows with fewer segments than others."""


def to_nemo_automodel(rows: Sequence[PackedBatch]) -> dict[str, Any]:
    """Convert B packs to B rows of S tokens; labels are shifted.

    ==========================================  =====================================================
    ``input_ids, labels``                       ``int64[B, S]``
    ``position_ids``                            ``int64[B, S]``; with mRoPE ``int64[3, B, S]``
    ``seq_lens, seq_lens_padded``               ``int64[B, n]``: without and with padding; ``-1000`` is filler
    ``qkv_format``                              ``"thd"``
    ``loss_weights``                            ``float32[B, S]``, only if the batch has any
    ==========================================  =====================================================

    The padding at the end of a row is a segment of length 0 in ``seq_lens``.
    """
    return {
        **join_rows(rows, mrope_rows=3, labels_shifted=True),
        "seq_lens": _as_table([batch.real_lengths for batch in rows]),
        "seq_lens_padded": _as_table([batch.lengths for batch in rows]),
        "qkv_format": "thd",
    }


def _as_table(lengths: Sequence[Int32Array]) -> torch.Tensor:
    """Stack lists of lengths to ``int64[B, n]``; short lists are filled with ``_NO_LENGTH``."""
    table = np.full((len(lengths), max(map(len, lengths))), _NO_LENGTH, dtype=np.int64)
    for row_index, row_lengths in enumerate(lengths):
        table[row_index, : len(row_lengths)] = row_lengths
    return torch.from_numpy(table)

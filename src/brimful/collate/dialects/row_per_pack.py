"""Dialects in which each pack is a row of S tokens: Axolotl, LLaMA-Factory and NeMo Automodel."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from brimful.base.typing import Int32Array
from brimful.collate.batch import PackedBatch
from brimful.collate.dialects.tensors import join_rows, stack
from brimful.collate.layout import indexed_mask


def to_axolotl(rows: Sequence[PackedBatch]) -> dict[str, Any]:
    """Convert B packs to B rows of S tokens; labels are not shifted.

    ==========================================  =====================================================
    ``input_ids, labels``                       ``int64[B, S]``
    ``attention_mask``                          ``int64[B, S]``: 1, 2, … for the segments, 0 for padding
    ``position_ids``                            ``int64[B, S]``; with mRoPE ``int64[4, B, S]``
    ``loss_weights``                            ``float32[B, S]``, only if the batch has any
    ==========================================  =====================================================
    """
    return {
        **join_rows(rows, mrope_rows=4),
        "attention_mask": stack([indexed_mask(batch).astype(np.int64) for batch in rows]),
    }


_NO_ITEM = 2**32
"""Segment number that LLaMA-Factory writes for a kind of media without an item in the row."""


def to_llama_factory(rows: Sequence[PackedBatch]) -> dict[str, Any]:
    """Convert B packs to B rows of S tokens; labels are not shifted.

    ==========================================  =====================================================
    ``input_ids, labels``                       ``int64[B, S]``
    ``attention_mask``                          ``int32[B, S]``: 1, 2, … for the segments, 0 for padding
    ``position_ids``                            ``int64[B, S]``; with mRoPE ``int64[4, B, S]``
    ``packing_params``                          for each row the boundaries, the padding, and the segment of each
                                                image, video and audio
    ``loss_weights``                            ``float32[B, S]``, only if the batch has any
    ==========================================  =====================================================

    Every row ends in at least one token of padding, as in LLaMA-Factory (``cutoff_len + 1``), because some attention
    implementations drop a mask without zeros. ``pad_to`` is ``cutoff_len``.
    """
    return {
        **join_rows(rows, mrope_rows=4),
        "attention_mask": stack([indexed_mask(batch) for batch in rows]),
        "packing_params": [_params(batch) for batch in rows],
    }


def _params(batch: PackedBatch) -> dict[str, Any]:
    owners = {item.kind: item.segments.tolist() for item in batch.media}
    return {
        "sequence_boundaries": batch.cu_seqlens.tolist(),
        **{f"{kind}_subseq_ids": owners.get(kind) or [_NO_ITEM] for kind in ("image", "video", "audio")},
        "right_padding_length": batch.tail_length,
    }


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

"""What Axolotl takes with ``sample_packing``: the batch of its ``V2BatchSamplerDataCollatorForSeq2Seq``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from brimful.collate.batch import PackedBatch
from brimful.collate.dialects.tensors import join_rows, stack
from brimful.collate.layout import indexed_mask

__all__ = ["to_axolotl"]


def to_axolotl(rows: Sequence[PackedBatch]) -> dict[str, Any]:
    """One row of S tokens for each of B packs; labels are not shifted.

    ==========================================  =====================================================
    ``input_ids, labels``                       ``int64[B, S]``
    ``attention_mask``                          ``int64[B, S]``: 1, 2, … for the segments, 0 for padding
    ``position_ids``                            ``int64[B, S]``; with mRoPE ``int64[4, B, S]``
    ``loss_weights``                            ``float32[B, S]``, only if the batch has any
    ==========================================  =====================================================
    """
    return {
        "input_ids": stack([batch.input_ids for batch in rows]),
        "labels": stack([batch.labels for batch in rows]),
        "attention_mask": stack([indexed_mask(batch).astype(np.int64) for batch in rows]),
        **join_rows(rows, mrope_rows=4),
    }

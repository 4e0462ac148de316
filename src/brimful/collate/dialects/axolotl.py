"""Batch of Axolotl with ``sample_packing``, as its ``V2BatchSamplerDataCollatorForSeq2Seq`` makes it."""

from collections.abc import Sequence
from typing import Any

import numpy as np

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

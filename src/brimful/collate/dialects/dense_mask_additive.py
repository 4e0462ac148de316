"""Additive mask of all pairs of tokens, for attention without boolean masks."""

from typing import Any

import torch

from brimful.collate.batch import PackedBatch
from brimful.collate.dialects.dense_mask import to_dense_mask


def to_dense_mask_additive(batch: PackedBatch) -> dict[str, Any]:
    """Convert a batch like ``dense_mask``, with ``attention_mask`` as ``float32[1, 1, T, T]``.

    The mask is 0 if the query attends to the key, otherwise the lowest number of ``float32``. Cast it to the dtype of
    the model with ``clamp``, because the lowest number depends on the dtype.
    """
    tensors = to_dense_mask(batch)
    is_visible = tensors["attention_mask"]
    lowest = torch.finfo(torch.float32).min
    tensors["attention_mask"] = torch.zeros(is_visible.shape, dtype=torch.float32).masked_fill_(~is_visible, lowest)
    return tensors

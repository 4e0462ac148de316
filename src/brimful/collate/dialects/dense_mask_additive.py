"""Mask of all pairs of tokens as numbers to add: for attention without boolean masks."""

from typing import Any

import torch

from brimful.collate.batch import PackedBatch
from brimful.collate.dialects.dense_mask import to_dense_mask


def to_dense_mask_additive(batch: PackedBatch) -> dict[str, Any]:
    """Convert a batch like ``dense_mask``, with ``attention_mask`` as ``float32[1, 1, T, T]``.

    The mask is 0 if the query sees the key, else the lowest number. Cast it to the type of the model by ``clamp``,
    because the lowest number differs from type to type.
    """
    tensors = to_dense_mask(batch)
    is_visible = tensors["attention_mask"]
    lowest = torch.finfo(torch.float32).min
    tensors["attention_mask"] = torch.zeros(is_visible.shape, dtype=torch.float32).masked_fill_(~is_visible, lowest)
    return tensors

"""A mask of all pairs of tokens as numbers to add: for attention that was written before masks were boolean."""

from __future__ import annotations

from typing import Any

import torch

from brimful.collate.batch import PackedBatch
from brimful.collate.dialects.dense_mask import to_dense_mask

__all__ = ["to_dense_mask_additive"]


def to_dense_mask_additive(batch: PackedBatch) -> dict[str, Any]:
    """As ``dense_mask``, with ``attention_mask`` as ``float32[1, 1, T, T]``: 0 where the query sees the key, else the
    lowest number. Cast it to the type of the model by ``clamp``, as the lowest number of another type is another.
    """
    given = to_dense_mask(batch)
    seen = given["attention_mask"]
    lowest = torch.finfo(torch.float32).min
    given["attention_mask"] = torch.zeros(seen.shape, dtype=torch.float32).masked_fill_(~seen, lowest)
    return given

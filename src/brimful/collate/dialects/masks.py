"""Masks of all pairs of tokens, on machines without another attention kernel for packs."""

from typing import Any

import torch

from brimful.collate.batch import PackedBatch
from brimful.collate.dialects.tensors import (
    divisor_if_no_target,
    other_tensors,
    token_row,
)


def to_dense_mask(batch: PackedBatch) -> dict[str, Any]:
    """Convert a batch to one row of T tokens and a mask of T² booleans; labels are not shifted.

    The mask takes 64 MiB at T = 8,192, and four times as much at twice the length. Padding attends
    to padding, because an empty row of the softmax would be NaN.
    """
    segments = torch.from_numpy(batch.segment_index)
    # True for keys of the query's segment up to the query.
    mask = (segments[:, None] == segments[None, :]).tril_()
    return masked_row(batch, mask)


def masked_row(batch: PackedBatch, mask: torch.Tensor) -> dict[str, Any]:
    """Return one row of T tokens with its mask, ``bool[T, T]``, in the words of ``dense_mask``."""
    return {
        **token_row(batch),
        "attention_mask": mask[None, None],
        "use_cache": False,
        **divisor_if_no_target(batch),
        **other_tensors(batch),
    }


def to_dense_mask_additive(batch: PackedBatch) -> dict[str, Any]:
    """Convert a batch like ``dense_mask``, with ``attention_mask`` as ``float32[1, 1, T, T]``.

    The mask is 0 if the query attends to the key, otherwise the lowest number of ``float32``. Cast
    it to the dtype of the model with ``clamp``, because the lowest number depends on the dtype.
    """
    tensors = to_dense_mask(batch)
    tensors["attention_mask"] = additive_mask(tensors["attention_mask"], torch.float32)
    return tensors


def additive_mask(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a mask of booleans as numbers: 0 if the query attends to the key, otherwise the lowest
    number of the dtype.
    """
    lowest = torch.finfo(dtype).min
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, lowest)

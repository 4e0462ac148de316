"""Masks of all pairs of tokens, on machines without another attention kernel for packs."""

from typing import Any

import torch

from brimful.collate.batch import PackedBatch
from brimful.collate.dialects.tensors import (
    divisor_if_no_target,
    other_tensors,
    token_row,
    tree_tensors,
)


def to_dense_mask(batch: PackedBatch) -> dict[str, Any]:
    """Convert a batch to one row of T tokens and a mask of T² booleans; labels are not shifted.

    ==========================================  =====================================================
    ``input_ids, labels``                       ``int64[1, T]``
    ``position_ids``                            ``int64[1, T]``; with mRoPE ``int64[4, 1, T]``
    ``attention_mask``                          ``bool[1, 1, T, T]``: query, key; true if the query attends to the key
    ``use_cache``                               ``False``
    ``num_items_in_batch``                      1, only in a batch without a target: its loss is then 0, not NaN
    ``loss_weights``                            ``float32[1, T]``, only if the batch has any
    ==========================================  =====================================================

    The mask takes 64 MiB at T = 8,192, and four times as much at twice the length. Padding attends
    to padding, because an empty row of the softmax would be NaN. A row of trees has ``parents``,
    ``tree_in`` and ``tree_out`` too, and a mask without windows: for Mistral or Gemma 3 take
    ``masks_of(batch, model.config)`` of ``brimful.integrations.trainers.tree_attention``.
    """
    trees = tree_tensors(batch)
    if trees:
        mask = tree_mask(trees["tree_out"])
    else:
        segments = torch.from_numpy(batch.segment_index)
        # True for keys of the query's segment up to the query.
        mask = (segments[:, None] == segments[None, :]).tril_()
    return {
        **token_row(batch),
        "attention_mask": mask[None, None],
        "use_cache": False,
        **trees,
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


def tree_mask(tree_out: torch.Tensor) -> torch.Tensor:
    """Return the mask of a row of trees: ``bool[T, T]``, true if the query attends to the key.

    Args:
        tree_out: ``int32[T]``, as in the batch.

    >>> tree_mask(torch.tensor([4, 4, 3, 4])).int().tolist()
    [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 0, 1]]
    """
    places = torch.arange(len(tree_out), device=tree_out.device)
    # A key sees no query before itself: the rest is the subtree of its segment.
    return (places[:, None] < tree_out[None, :]).tril_()

"""Batch with one row for each sample, padded to the longest: the reference for every packed format."""

from typing import Any

import numpy as np
import torch

from brimful.base.typing import IGNORE_INDEX
from brimful.collate.batch import PackedBatch
from brimful.collate.dialects.tensors import divisor_if_no_target, media_tensors


def to_plain(batch: PackedBatch, *, length: int | None = None, pad_token_id: int = 0) -> dict[str, Any]:
    """Convert a batch to rows of L tokens for its B samples, padded on the right; labels are not shifted.

    ==========================================  =====================================================
    ``input_ids, labels, position_ids``         ``int64[B, L]``; with mRoPE ``position_ids`` is ``int64[4, B, L]``
    ``attention_mask``                          ``int64[B, L]``: 1 at tokens, 0 at padding
    ``num_items_in_batch``                      1, only in a batch without a target: its loss is then 0, not NaN
    ``loss_weights``                            ``float32[B, L]``, only if the batch has any
    ==========================================  =====================================================

    Padding of the batch is removed; the rows get new padding, at position 0.

    Args:
        length: L, at least the longest sample; the longest sample if None.
        pad_token_id: token of the padding.
    """
    lengths = batch.real_lengths[: batch.num_segments]
    is_token_of_row = np.arange(int(lengths.max()) if length is None else length) < lengths[:, None]
    is_token = ~batch.padding_mask

    def rows(values: np.ndarray[Any, Any], fill: int) -> torch.Tensor:
        table = np.full((*values.shape[:-1], *is_token_of_row.shape), fill, dtype=values.dtype)
        # Both masks list the samples in the same order, token by token.
        table[..., is_token_of_row] = values[..., is_token]
        return torch.from_numpy(table)

    tensors = {
        "input_ids": rows(batch.input_ids, pad_token_id),
        "labels": rows(batch.labels, IGNORE_INDEX),
        "position_ids": rows(batch.position_ids if batch.rope_positions is None else batch.position_rows(4), 0),
        "attention_mask": torch.from_numpy(is_token_of_row.astype(np.int64)),
    }
    if batch.loss_weights is not None:
        tensors["loss_weights"] = rows(batch.target_weights, 0)
    for column in batch.columns:
        table = np.full((*is_token_of_row.shape, *column.values.shape[1:]), column.fill, dtype=column.values.dtype)
        table[is_token_of_row] = column.values[is_token]
        tensors[column.name] = torch.from_numpy(table)
    return {**tensors, **divisor_if_no_target(batch), **media_tensors(batch.media)}

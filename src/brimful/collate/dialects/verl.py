"""Batch of verl's engines: nested tensors, one row for each sample."""

from typing import Any

import numpy as np
import torch

from brimful.collate.batch import PackedBatch
from brimful.collate.dialects.tensors import media_tensors


def to_verl(batch: PackedBatch) -> dict[str, Any]:
    """Convert a batch to jagged tensors of its B samples, without padding, because verl pads itself.

    ==========================================  =====================================================
    ``input_ids``                               nested ``int64[B, length]``
    ``position_ids``                            nested ``int64[B, length]``; with mRoPE ``int64[B, 4, length]``
    ``loss_mask``                               nested ``float32[B, length]``: the weight of each token as a target
    ``batch_num_tokens``                        Python integer: targets in this batch; sum it over ranks
    ==========================================  =====================================================

    Nothing is shifted: verl rolls the labels inside its loss, sample by sample, and divides by ``batch_num_tokens``.
    """
    is_token = ~batch.padding_mask
    offsets = torch.from_numpy(batch.cu_seqlens_real[: batch.num_segments + 1].astype(np.int64))

    def jagged(values: np.ndarray[Any, Any]) -> torch.Tensor:
        return torch.nested.nested_tensor_from_jagged(torch.from_numpy(values[is_token]), offsets)

    if batch.rope_positions is None:
        positions = jagged(batch.position_ids)
    else:
        # The ragged dimension is the last here, after the four rows of positions.
        rows = torch.from_numpy(batch.position_rows(4)[:, is_token])
        lengths = batch.real_lengths[: batch.num_segments].tolist()
        positions = torch.nested.as_nested_tensor(list(rows.split(lengths, dim=1)), layout=torch.jagged)
    return {
        "input_ids": jagged(batch.input_ids),
        "position_ids": positions,
        "loss_mask": jagged(batch.target_weights),
        "batch_num_tokens": batch.num_loss_tokens,
        **{column.name: jagged(column.values) for column in batch.columns},
        **media_tensors(batch.media),
    }

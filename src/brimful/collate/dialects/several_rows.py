"""Dialects in which each pack is a row of L tokens (Axolotl, LLaMA-Factory, NeMo Automodel,
OLMo-core), or each sample a row.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from brimful.base.attachment import ATTACHMENT_KINDS
from brimful.base.typing import IGNORE_INDEX, AnyArray, Int32Array
from brimful.collate.batch import PackedBatch
from brimful.collate.dialects.tensors import (
    attached_tensors,
    divisor_if_no_target,
    join_rows,
    stack,
)
from brimful.collate.layout import indexed_mask
from brimful.errors import CollateError

_NO_ITEM = 2**32
"""Segment number that LLaMA-Factory writes for a kind of media without an item in the row."""

_NO_LENGTH = -1000
"""Filler in Automodel's lists of lengths, for rows with fewer segments than others."""


def to_axolotl(rows: Sequence[PackedBatch]) -> dict[str, Any]:
    """Convert B packs to B rows of L tokens; labels are not shifted."""
    return {
        **join_rows(rows, position_rows=4),
        "attention_mask": stack([indexed_mask(batch).astype(np.int64) for batch in rows]),
    }


def to_llama_factory(rows: Sequence[PackedBatch]) -> dict[str, Any]:
    """Convert B packs to B rows of L tokens; labels are not shifted.

    Every row ends in at least one token of padding, as in LLaMA-Factory (``cutoff_len + 1``),
    because some attention implementations drop a mask without zeros. ``pad_to`` is ``cutoff_len``.
    """
    return {
        **join_rows(rows, position_rows=4),
        "attention_mask": stack([indexed_mask(batch) for batch in rows]),
        "packing_params": [_params(batch) for batch in rows],
    }


def _params(batch: PackedBatch) -> dict[str, Any]:
    owners = {item.kind: item.segments.tolist() for item in batch.attached}
    return {
        "sequence_boundaries": batch.cu_seqlens.tolist(),
        **{f"{kind}_subseq_ids": owners.get(kind) or [_NO_ITEM] for kind in ATTACHMENT_KINDS},
        "right_padding_length": batch.tail_length,
    }


def to_nemo_automodel(rows: Sequence[PackedBatch]) -> dict[str, Any]:
    """Convert B packs to B rows of L tokens; labels are shifted.

    The padding at the end of a row is a segment of length 0 in ``seq_lens``.
    """
    return {
        **join_rows(rows, position_rows=3, labels_shifted=True),
        "seq_lens": _as_table([batch.real_lengths for batch in rows]),
        "seq_lens_padded": _as_table([batch.lengths for batch in rows]),
        "qkv_format": "thd",
    }


def to_olmo_core(rows: Sequence[PackedBatch]) -> dict[str, Any]:
    """Convert B packs to B rows of L tokens; OLMo-core makes the labels, and shifts them.

    The padding at the end of a row is a segment.

    Raises:
        CollateError: the batch has weights of the loss, or positions of media: OLMo-core reads
            neither.
    """
    for batch in rows:
        if batch.loss_weights is not None or batch.rope_positions is not None:
            content = (
                "weights of the loss" if batch.loss_weights is not None else "positions of media"
            )
            raise CollateError(
                f"the row with sample {batch.sample_ids[0]} has {content}, which OLMo-core does "
                "not read: leave them out, or choose another trainer"
            )
    tensors = join_rows(rows, position_rows=3)
    labels = tensors.pop("labels")
    del tensors["position_ids"]
    return {
        **tensors,
        "label_mask": labels != IGNORE_INDEX,
        "doc_lens": _as_table([batch.lengths for batch in rows], filler=0).to(torch.int32),
        "max_doc_lens": [batch.max_seqlen for batch in rows],
    }


def _as_table(lengths: Sequence[Int32Array], filler: int = _NO_LENGTH) -> torch.Tensor:
    """Stack lists of lengths to ``int64[B, n]``; short lists are filled up."""
    table = np.full((len(lengths), max(map(len, lengths))), filler, dtype=np.int64)
    for row_index, row_lengths in enumerate(lengths):
        table[row_index, : len(row_lengths)] = row_lengths
    return torch.from_numpy(table)


def to_plain(
    batch: PackedBatch, *, length: int | None = None, pad_token_id: int = 0
) -> dict[str, Any]:
    """Convert a batch to rows of L tokens for its B samples, padded on the right; labels are not
    shifted.

    Padding of the batch is removed; the rows get new padding, at position 0.

    Args:
        length: L, at least the longest sample; the longest sample if None.
        pad_token_id: token of the padding.
    """
    lengths = batch.real_lengths[: batch.num_segments]
    is_token_of_row = np.arange(int(lengths.max()) if length is None else length) < lengths[:, None]
    is_token = ~batch.padding_mask

    def rows(values: AnyArray, fill: float) -> torch.Tensor:
        table = np.full((*is_token_of_row.shape, *values.shape[1:]), fill, dtype=values.dtype)
        # Both masks list the samples in the same order, token by token.
        table[is_token_of_row] = values[is_token]
        return torch.from_numpy(table)

    tensors = {
        "input_ids": rows(batch.input_ids, pad_token_id),
        "labels": rows(batch.labels, IGNORE_INDEX),
        "position_ids": rows(batch.position_ids, 0)
        if batch.rope_positions is None
        else rows(batch.position_rows(4).T, 0).permute(2, 0, 1).contiguous(),
        "attention_mask": torch.from_numpy(is_token_of_row.astype(np.int64)),
    }
    if batch.loss_weights is not None:
        tensors["loss_weights"] = rows(batch.target_weights, 0)
    for column in batch.columns:
        tensors[column.name] = rows(column.values, column.fill)
    return {**tensors, **divisor_if_no_target(batch), **attached_tensors(batch.attached)}

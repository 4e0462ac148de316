"""Tensors that share the memory of the arrays of a batch, with the shapes and names of several
dialects.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from brimful.base.attachment import AttachedInputs
from brimful.base.typing import IGNORE_INDEX, AnyArray, Float32Array, Labels
from brimful.collate.batch import PackedBatch
from brimful.collate.columns import ColumnPlace
from brimful.collate.extras import join_attached
from brimful.collate.padding import shift_labels, shift_left
from brimful.errors import CollateError


def row(values: AnyArray) -> torch.Tensor:
    """Return ``(T,)`` as ``(1, T)``."""
    return torch.from_numpy(values[None])


def stack(rows: Sequence[AnyArray]) -> torch.Tensor:
    """Stack rows of one length to ``(B, S)``."""
    return torch.from_numpy(np.stack(rows))


def shifted_labels(batch: PackedBatch, *, ignore_index: int = IGNORE_INDEX) -> Labels:
    """Return the label that each token predicts: ``int64[T]``, ``ignore_index`` without a
    target.
    """
    labels = shift_labels(batch.labels, batch.cu_seqlens)
    if ignore_index != IGNORE_INDEX:
        labels[labels == IGNORE_INDEX] = ignore_index
    return labels


def shifted_weights(batch: PackedBatch) -> Float32Array:
    """Return the weight of each shifted label: ``float32[T]``, 0 without a target."""
    return shift_left(batch.target_weights, batch.cu_seqlens, by=1, fill=0.0)


def token_row(batch: PackedBatch) -> dict[str, torch.Tensor]:
    """Return ``input_ids``, ``labels`` and ``position_ids`` of one row for a model of Transformers.

    All are ``int64[1, T]``, except ``position_ids`` with mRoPE: ``int64[4, 1, T]`` (text, time,
    height, width). Transformers isolates segments by the text row, and only in positions with four
    rows. A batch with terms of the loss has no labels: the model would shift them.
    """
    positions = (
        batch.position_ids[None]
        if batch.rope_positions is None
        else batch.position_rows(4)[:, None]
    )
    labels = {} if batch.loss_terms is not None else {"labels": row(batch.labels)}
    return {
        "input_ids": row(batch.input_ids),
        **labels,
        "position_ids": torch.from_numpy(positions),
    }


def flash_boundaries(batch: PackedBatch) -> dict[str, Any]:
    """Return boundaries and longest segment with the names of Transformers' flash attention
    arguments.
    """
    boundaries = torch.from_numpy(batch.cu_seqlens)
    return {
        "cu_seq_lens_q": boundaries,
        "cu_seq_lens_k": boundaries,
        "max_length_q": batch.max_seqlen,
        "max_length_k": batch.max_seqlen,
    }


def thd_boundaries(batch: PackedBatch) -> dict[str, Any]:
    """Return boundaries, without and with gaps, and longest segment with the names of THD kernels.

    A batch without gaps has the same tensor for both; the padding at the end is a segment with
    tokens.
    """
    padded = torch.from_numpy(batch.cu_seqlens)
    real = torch.from_numpy(batch.cu_seqlens_real) if batch.has_gaps else padded
    return {
        "qkv_format": "thd",
        "cu_seqlens_q": real,
        "cu_seqlens_kv": real,
        "cu_seqlens_q_padded": padded,
        "cu_seqlens_kv_padded": padded,
        "max_seqlen_q": batch.max_seqlen,
        "max_seqlen_kv": batch.max_seqlen,
    }


def attached_tensors(items: Sequence[AttachedInputs]) -> dict[str, torch.Tensor]:
    """Return inputs for attachments with the model's names; copied, because packs are read-only."""
    return {name: torch.tensor(array) for item in items for name, array in item.arrays.items()}


def divisor_if_no_target(batch: PackedBatch) -> dict[str, int]:
    """Return ``num_items_in_batch`` of 1 for a batch without a target.

    Ranks get such a batch at the tail of an epoch. Models of Transformers then divide an empty sum
    by 1: the loss is 0 instead of the NaN of an empty mean. A ``Trainer`` replaces the value with
    the number of targets of all ranks.
    """
    return {} if batch.num_loss_tokens else {"num_items_in_batch": 1}


def join_rows(
    rows: Sequence[PackedBatch], *, position_rows: int, labels_shifted: bool = False
) -> dict[str, torch.Tensor]:
    """Stack B packs as rows of S tokens: tokens, labels, positions, weights, columns and inputs for
    attachments.

    ``input_ids`` and ``labels`` are ``int64[B, S]``, and so is ``position_ids``, or
    ``int64[position_rows, B, S]`` if any row has mRoPE. ``loss_weights`` is ``float32[B, S]`` if
    any row has weights; columns are ``[B, S, …]``; inputs are joined on their first axis.
    """
    has_rope = any(batch.rope_positions is not None for batch in rows)
    positions = np.stack(
        [batch.position_rows(position_rows if has_rope else 1) for batch in rows], axis=1
    )
    tensors = {
        "input_ids": stack([batch.input_ids for batch in rows]),
        "labels": stack(
            [shifted_labels(batch) if labels_shifted else batch.labels for batch in rows]
        ),
        "position_ids": torch.from_numpy(positions if has_rope else positions[0]),
    }
    if any(batch.loss_weights is not None for batch in rows):
        weights = [
            shifted_weights(batch) if labels_shifted else batch.target_weights for batch in rows
        ]
        tensors["loss_weights"] = stack(weights)
    columns_of_rows = [
        {
            column.name: (column.shifted(batch.cu_seqlens) if labels_shifted else column).values
            for column in batch.columns
        }
        for batch in rows
    ]
    for batch, columns in zip(rows, columns_of_rows, strict=True):
        if columns.keys() != columns_of_rows[0].keys():
            raise CollateError(
                f"the row with sample {batch.sample_ids[0]} has different columns from the first "
                "row: give all or none"
            )
    for name in columns_of_rows[0]:
        tensors[name] = stack([columns[name] for columns in columns_of_rows])
    return {**tensors, **attached_tensors(join_attached([(0, batch.attached) for batch in rows]))}


def other_tensors(
    batch: PackedBatch,
    *,
    weights: str = "loss_weights",
    labels_shifted: bool = False,
    flat: bool = False,
) -> dict[str, torch.Tensor]:
    """Return weights of the loss if any is not 1, columns by name, and inputs for attachments.

    Weights and columns are ``[1, T, …]``, or ``[T, …]`` if the dialect is flat. Weights and columns
    of targets are shifted with the labels, so that all are at the token that predicts. In a batch
    with terms of the loss, columns of targets have one value for each term: ``[M, …]``.

    Args:
        batch: the batch.
        weights: key of the weights; empty if the dialect always has weights, which it adds then.
        labels_shifted, flat: of the dialect.
    """
    arrays, terms = {}, batch.loss_terms
    if weights and batch.loss_weights is not None and terms is None:
        arrays[weights] = shifted_weights(batch) if labels_shifted else batch.target_weights
    of_terms = {}
    for column in batch.columns:
        if terms is not None and column.place is ColumnPlace.TARGET:
            of_terms[column.name] = torch.from_numpy(column.values[terms.places])
            continue
        arrays[column.name] = (
            column.shifted(batch.cu_seqlens) if labels_shifted else column
        ).values
    tensors = {
        name: torch.from_numpy(array) if flat else row(array) for name, array in arrays.items()
    }
    return {**tensors, **of_terms, **attached_tensors(batch.attached)}

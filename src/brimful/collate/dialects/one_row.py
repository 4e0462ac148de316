"""Dialects in which all packs are one row of T tokens, with its boundaries in the trainer's
words.
"""

from typing import Any

import numpy as np
import torch

from brimful.collate.batch import PackedBatch
from brimful.collate.dialects.tensors import (
    attached_tensors,
    divisor_if_no_target,
    flash_boundaries,
    other_tensors,
    row,
    shifted_labels,
    thd_boundaries,
    token_row,
)


def to_transformers(batch: PackedBatch) -> dict[str, Any]:
    """Convert a batch to one row of T tokens with the keys of Transformers 5.

    No ``attention_mask``: its presence would make flash attention ignore the boundaries. No cache
    either: a model called with ``use_cache`` (the default of most configurations) makes an empty
    cache, and with a cache Transformers does not look for packed sequences in SDPA, eager and flex
    attention, so samples would attend to each other.

    Kernels of causal-conv1d and Mamba take ``seq_idx`` as it is, kernels of FLA
    ``cu_seq_lens_q.long()``.

    Media arrays are added under their own names.
    """
    return {**to_trl(batch), "use_cache": False, **divisor_if_no_target(batch)}


def to_trl(batch: PackedBatch) -> dict[str, Any]:
    """Convert a batch to one row with the keys of TRL's
    ``DataCollatorForLanguageModeling(padding_free=True)``.

    These are the keys of ``transformers`` without ``use_cache`` and ``num_items_in_batch``, which
    the trainer sets itself. TRL gives padding tokens position 0, which makes each of them a
    segment; here the padding is one segment.
    """
    return {
        **token_row(batch),
        **flash_boundaries(batch),
        "seq_idx": row(batch.segment_index),
        **other_tensors(batch),
    }


def to_ms_swift(batch: PackedBatch) -> dict[str, Any]:
    """Convert a batch to one row of T tokens.

    ms-swift itself reads every position 0 as the beginning of a segment, so each token of its own
    padding is a segment.
    """
    tensors = {**token_row(batch), **flash_boundaries(batch)}
    if batch.rope_positions is not None:
        tensors["text_position_ids"] = row(batch.position_ids)
        tensors["position_ids"] = torch.from_numpy(batch.rope_positions[:, None])
    return {**tensors, **other_tensors(batch, weights="loss_scale")}


def to_unsloth(batch: PackedBatch) -> dict[str, Any]:
    """Convert a batch to one row with the keys of Unsloth's packed batches.

    These are the keys of ``trl`` and ``packed_seq_lengths``. Unsloth's attention cuts the row by
    them, its loss drops the first target of each, and its trainer counts targets so; it requires
    that they sum to the row.
    """
    return {**to_trl(batch), "packed_seq_lengths": torch.from_numpy(batch.lengths)}


def to_veomni(batch: PackedBatch) -> dict[str, Any]:
    """Convert a batch to one row of T tokens; labels are not shifted.

    VeOmni gives padding tokens position 0; here their positions count from 0. The padding is one
    segment in both.
    """
    boundaries = flash_boundaries(batch)
    ids = row(batch.input_ids)
    tensors = {
        "input_ids": ids,
        "labels": row(batch.labels),
        "attention_mask": torch.ones_like(ids),
        "position_ids": row(
            batch.position_ids if batch.rope_positions is None else batch.rope_positions
        ),
        **boundaries,
        "linear_attn_cu_seq_lens_q": boundaries["cu_seq_lens_q"],
    }
    if batch.tail_length:
        tensors["tail_padding_length"] = torch.tensor(batch.tail_length, dtype=torch.int32)
    if batch.source_ids is not None:
        tensors["ds_idx"] = torch.from_numpy(batch.source_ids.astype(np.int64))
    return {**tensors, **other_tensors(batch)}


def to_verl(batch: PackedBatch) -> dict[str, Any]:
    """Convert a batch to jagged tensors of its B samples, without padding, because verl pads
    itself.

    Nothing is shifted: verl rolls the labels inside its loss, sample by sample, and divides by
    ``batch_num_tokens``.
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
        positions = torch.nested.as_nested_tensor(
            list(rows.split(lengths, dim=1)), layout=torch.jagged
        )
    return {
        "input_ids": jagged(batch.input_ids),
        "position_ids": positions,
        "loss_mask": jagged(batch.target_weights),
        "batch_num_tokens": batch.num_loss_tokens,
        **{column.name: jagged(column.values) for column in batch.columns},
        **attached_tensors(batch.attached),
    }


def to_torchtitan(batch: PackedBatch) -> dict[str, Any]:
    """Convert a batch to T tokens in one dimension; labels are shifted.

    torchtitan begins a document at every position 0; the positions of the padding count from 0, so
    it is one document: keep ``pad_to`` within the context length, or the table of RoPE ends before
    it. ``Padding(max_seqlen=…)`` refuses such a batch.
    """
    boundaries = torch.from_numpy(batch.cu_seqlens)
    tensors: dict[str, Any] = {
        "input": torch.from_numpy(batch.input_ids),
        "labels": torch.from_numpy(shifted_labels(batch)),
        "positions": torch.from_numpy(batch.position_ids),
        "varlen_metadata": {
            "cu_seq_q": boundaries,
            "cu_seq_k": boundaries,
            "max_q": batch.max_seqlen,
            "max_k": batch.max_seqlen,
            "cu_seq_q_host": tuple(batch.cu_seqlens.tolist()),
        },
    }
    # ``positions`` hold text positions even with mRoPE: the masks are made from them.
    if batch.rope_positions is not None:
        tensors["mrope_positions"] = torch.from_numpy(batch.rope_positions)
    return {**tensors, **other_tensors(batch, labels_shifted=True, flat=True)}


def to_transformer_engine(batch: PackedBatch) -> dict[str, Any]:
    """Convert a batch to T tokens in one dimension, and to keyword arguments of
    ``DotProductAttention``; labels are not shifted.
    """
    positions = batch.position_ids if batch.rope_positions is None else batch.rope_positions
    return {
        "input_ids": torch.from_numpy(batch.input_ids),
        "labels": torch.from_numpy(batch.labels),
        "position_ids": torch.from_numpy(positions),
        **thd_boundaries(batch),
        "pad_between_seqs": batch.has_gaps,
        **other_tensors(batch, flat=True),
    }

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

_KEYS_OF_THE_TRAINER = ("use_cache", "num_items_in_batch")


def to_transformers(batch: PackedBatch) -> dict[str, Any]:
    """Convert a batch to one row of T tokens with the keys of Transformers 5.

    No ``attention_mask``: its presence would make flash attention ignore the boundaries. No cache
    either: a model called with ``use_cache`` (the default of most configurations) makes an empty
    cache, and with a cache Transformers does not look for packed sequences in SDPA, eager and flex
    attention, so samples would attend to each other.

    Kernels of causal-conv1d and Mamba take ``seq_idx`` as it is, kernels of FLA
    ``cu_seq_lens_q.long()``.

    ==========================================  =====================================================
    ``input_ids, labels``                       ``int64[1, T]``; labels are not shifted
    ``position_ids``                            ``int64[1, T]``; with mRoPE ``int64[4, 1, T]``, text first
    ``cu_seq_lens_q, cu_seq_lens_k``            ``int32[S + 1]``, padding as the last segment
    ``max_length_q, max_length_k``              Python integers
    ``seq_idx``                                 ``int32[1, T]``, for Mamba and gated delta nets
    ``use_cache``                               ``False``
    ``num_items_in_batch``                      1, only in a batch without a target: its loss is then 0, not NaN
    ``loss_weights``                            ``float32[1, T]``, only if the batch has any
    ==========================================  =====================================================

    Media arrays are added under their own names.
    """
    # Written out, because this is called in each step: another dictionary costs as much as another
    # tensor.
    boundaries = torch.from_numpy(batch.cu_seqlens)
    positions = (
        batch.position_ids[None]
        if batch.rope_positions is None
        else batch.position_rows(4)[:, None]
    )
    return {
        "input_ids": row(batch.input_ids),
        "labels": row(batch.labels),
        "position_ids": torch.from_numpy(positions),
        "cu_seq_lens_q": boundaries,
        "cu_seq_lens_k": boundaries,
        "max_length_q": batch.max_seqlen,
        "max_length_k": batch.max_seqlen,
        "seq_idx": row(batch.segment_index),
        "use_cache": False,
        **divisor_if_no_target(batch),
        **other_tensors(batch),
    }


def to_trl(batch: PackedBatch) -> dict[str, Any]:
    """Convert a batch to one row with the keys of TRL's
    ``DataCollatorForLanguageModeling(padding_free=True)``.

    These are the keys of ``transformers`` without ``use_cache`` and ``num_items_in_batch``, which
    the trainer sets itself. TRL gives padding tokens position 0, which makes each of them a
    segment; here the padding is one segment.
    """
    return {
        key: value
        for key, value in to_transformers(batch).items()
        if key not in _KEYS_OF_THE_TRAINER
    }


def to_ms_swift(batch: PackedBatch) -> dict[str, Any]:
    """Convert a batch to one row of T tokens.

    ==========================================  =====================================================
    ``input_ids, labels``                       ``int64[1, T]``; labels are not shifted
    ``position_ids``                            ``int64[1, T]``; with mRoPE ``int64[3, 1, T]``
    ``text_position_ids``                       ``int64[1, T]``, with mRoPE only
    ``loss_scale``                              ``float32[1, T]``, only if the batch has weights
    ``cu_seq_lens_q, cu_seq_lens_k``            ``int32[S + 1]``
    ``max_length_q, max_length_k``              Python integers
    ==========================================  =====================================================

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

    These are the keys of ``trl`` and ``packed_seq_lengths``, ``int32[S]``: the tokens of each
    segment with its padding, S segments with the padding at the end. Unsloth's attention cuts the
    row by them, its loss drops the first target of each, and its trainer counts targets so; it
    requires that they sum to the row.
    """
    return {**to_trl(batch), "packed_seq_lengths": torch.from_numpy(batch.lengths)}


def to_veomni(batch: PackedBatch) -> dict[str, Any]:
    """Convert a batch to one row of T tokens; labels are not shifted.

    ==========================================  =====================================================
    ``input_ids, labels``                       ``int64[1, T]``
    ``attention_mask``                          ``int64[1, T]``, all ones: VeOmni uses the boundaries
    ``position_ids``                            ``int64[1, T]``; with mRoPE ``int64[1, 3, T]``
    ``cu_seq_lens_q, cu_seq_lens_k``            ``int32[S + 1]``
    ``linear_attn_cu_seq_lens_q``               the same
    ``max_length_q, max_length_k``              Python integers
    ``tail_padding_length``                     0-dimensional ``int32``, only if the row ends in padding
    ``ds_idx``                                  ``int64[samples]``: the source of each, only if known
    ``loss_weights``                            ``float32[1, T]``, only if the batch has any
    ==========================================  =====================================================

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

    ==========================================  =====================================================
    ``input_ids``                               nested ``int64[B, length]``
    ``position_ids``                            nested ``int64[B, length]``; with mRoPE ``int64[B, 4, length]``
    ``loss_mask``                               nested ``float32[B, length]``: the weight of each token as a target
    ``batch_num_tokens``                        Python integer: targets in this batch; sum it over ranks
    ==========================================  =====================================================

    ``input_ids.values()[None]`` is the row. Nothing is shifted: verl rolls the labels inside its loss, sample by sample, and divides by
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

    ==========================================  =====================================================
    ``input, labels, positions``                ``int64[T]``
    ``mrope_positions``                         ``int64[3, T]``, with mRoPE only
    ``varlen_metadata``                         fields of ``VarlenMetadata``: ``cu_seq_q``, ``cu_seq_k``
                                                (``int32[S + 1]``), ``max_q``, ``max_k`` (Python
                                                integers), ``cu_seq_q_host`` (a tuple)
    ``loss_weights``                            ``float32[T]``, only if the batch has any
    ==========================================  =====================================================

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
    ``DotProductAttention``.

    ==========================================  =====================================================
    ``input_ids, labels``                       ``int64[T]``; labels are not shifted
    ``position_ids``                            ``int64[T]``, counted through padding; ``int64[3, T]`` with mRoPE
    ``qkv_format``                              ``"thd"``
    ``cu_seqlens_q, cu_seqlens_kv``             ``int32[S + 1]``, without gaps: 0 3 5 9
    ``cu_seqlens_q_padded``                     ``int32[S + 1]``, with gaps: 0 4 8 13
    ``cu_seqlens_kv_padded``                    the same
    ``max_seqlen_q, max_seqlen_kv``             Python integers, of the padded lengths
    ``pad_between_seqs``                        true if the two differ; if not, they are the same tensor
    ==========================================  =====================================================
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

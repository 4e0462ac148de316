"""Dialects of trainers and kernels that take samples which share their beginnings: rows of TRL,
ART and NeMo Automodel, and the rectangles of MagiAttention.

In all of them the token before a label predicts it, so each branch repeats the last token of its
trunk. A flat pack is a forest of roots.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from brimful.base.ragged import offsets_of
from brimful.base.tables import Ragged
from brimful.base.typing import IGNORE_INDEX, AnyArray, CuSeqlens, Int32Array, Int64Array
from brimful.base.wording import setting
from brimful.collate.batch import PackedBatch
from brimful.collate.columns import ColumnPlace
from brimful.collate.dialects.masks import additive_mask, masked_row
from brimful.collate.dialects.one_row import to_transformers
from brimful.collate.dialects.tensors import (
    attached_tensors,
    divisor_if_no_target,
    join_rows,
    other_tensors,
    row,
    shifted_labels,
    shifted_weights,
    stack,
    token_row,
)
from brimful.errors import CollateError
from brimful.trees.collate.visibility import attention_runs, predictors, tree_out
from brimful.trees.masks import tree_block_mask, tree_mask
from brimful.trees.pack_tree import PackTree, tree_of

_FULL, _CAUSAL = 0, 1
"""Kinds of rectangles of MagiAttention."""

_NO_GROUP = -1
"""Padding in the lists of ART."""


def tree_tensors(batch: PackedBatch) -> dict[str, torch.Tensor]:
    """Return the trees of a row, and the terms of their loss if the batch has them; nothing for
    other rows.

    ==================  =================================================================
    ``parents``         ``int32[S]``: an earlier segment of the row, or -1
    ``tree_in``         ``int32[T]``: the place of each token
    ``tree_out``        ``int32[T]``: the place after the subtree of its segment
    ``loss_index``      ``int64[M]``: the place that predicts each target
    ``loss_targets``    ``int64[M]``: the target
    ``loss_weights``    ``float32[M]``: the sum of the weights of the samples that train it
    ``loss_samples``    ``int64[M]``: the first of these samples, by its number in the row
    ==================  =================================================================
    """
    if batch.sharing is None:
        return {}
    tree = tree_of(batch)
    tensors: dict[str, AnyArray] = {
        "parents": tree.parents,
        "tree_in": np.arange(len(batch.input_ids), dtype=np.int32),
        "tree_out": tree_out(batch),
    }
    if (terms := batch.loss_terms) is not None:
        tensors |= {
            "loss_index": terms.index,
            "loss_targets": terms.targets,
            "loss_weights": terms.weights,
            "loss_samples": terms.samples,
        }
    return {name: torch.from_numpy(array) for name, array in tensors.items()}


def to_flex_attention(batch: PackedBatch) -> dict[str, Any]:
    """Convert a row of trees like ``flex_attention``, with ``parents``, ``tree_in`` and ``tree_out``
    (``tree_tensors``) in place of ``document_ids``; its mask is from ``tree_block_mask``.
    """
    trees = tree_tensors(batch)
    return {
        **token_row(batch),
        **trees,
        "block_mask": tree_block_mask(trees["tree_out"]),
        **other_tensors(batch),
    }


def to_dense_mask(batch: PackedBatch) -> dict[str, Any]:
    """Convert a row of trees like ``dense_mask``, with ``parents``, ``tree_in`` and ``tree_out``
    (``tree_tensors``) too.

    Its mask has no windows: for Mistral or Gemma 3 take ``masks_of(batch, model.config)`` of
    ``brimful.trees.attention``.
    """
    trees = tree_tensors(batch)
    return {**masked_row(batch, tree_mask(trees["tree_out"])), **trees}


def to_dense_mask_additive(batch: PackedBatch) -> dict[str, Any]:
    """Convert a row of trees like ``dense_mask``, with its mask as numbers (``additive_mask``)."""
    tensors = to_dense_mask(batch)
    tensors["attention_mask"] = additive_mask(tensors["attention_mask"], torch.float32)
    return tensors


def to_transformers_tree(batch: PackedBatch) -> dict[str, Any]:
    """Convert a batch for a model after ``use_tree_attention``; any other model would take the
    segments of its trees for samples.

    A flat row has the keys of ``transformers``. A row of trees has no boundaries. It has
    ``parents``, ``tree_in`` and ``tree_out`` (``tree_tensors``), and one call of variable-length
    attention with gathered keys and values.
    """
    if batch.sharing is None:
        return to_transformers(batch)
    runs = attention_runs(batch)
    return {
        **token_row(batch),
        **tree_tensors(batch),
        "tree_kv_index": torch.from_numpy(runs.kv_index),
        "tree_cu_seqlens_q": torch.from_numpy(runs.cu_seqlens_q),
        "tree_cu_seqlens_k": torch.from_numpy(runs.cu_seqlens_k),
        "tree_max_length_q": runs.max_length_q,
        "tree_max_length_k": runs.max_length_k,
        "use_cache": False,
        **divisor_if_no_target(batch),
        **other_tensors(batch),
    }


def to_trl_tree(batch: PackedBatch) -> dict[str, Any]:
    """Convert a batch to the row of TRL's asynchronous GRPO, as ``TreeRow.pack`` returns it; labels
    are shifted.

    A target that several samples train is there for each of them, and so are the values of columns
    of targets, ``[M, …]``: TRL reads ``old_log_probs`` and ``advantages``.

    Raises:
        CollateError: mRoPE positions, for which TRL has no key; or ``branch="index"``.
    """
    _refuse_mrope(batch, "trl_tree")
    _refuse_terms(batch, "trl_tree")
    segments, targets = _segments(batch), _targets(batch)
    keys = _bare(segments.parents).positions(segments.edges)
    whole = replace(batch, cu_seqlens=batch.boundaries)
    arrays = {
        "input_ids": batch.input_ids,
        "position_ids": batch.position_ids,
        "shift_labels": shifted_labels(whole),
        "tree_kv_index": keys.values,
        "tree_cu_seqlens_q": segments.edges,
        "tree_cu_seqlens_k": keys.offsets.astype(np.int32),
        "tree_max_seqlens": np.array(
            [np.diff(segments.edges).max(), np.diff(keys.offsets).max()], dtype=np.int64
        ),
        "token_index": targets.predicting,
        "segment_id": targets.samples,
        **{
            column.name: column.values[targets.positions]
            if column.place is ColumnPlace.TARGET
            else column.values
            for column in batch.columns
        },
    }
    # A label has the sum of the weights of the samples that train it.
    weights = shifted_weights(whole)[targets.predicting] / targets.times[targets.predicting]
    if (weights != 1).any():
        arrays["loss_weights"] = weights.astype(np.float32)
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return {**tensors, **attached_tensors(batch.attached)}


def to_art(rows: Sequence[PackedBatch]) -> dict[str, Any]:
    """Convert B packs to B rows of L tokens for OpenPipe ART, which shifts what belongs to targets.

    ART also reads ``logprobs`` and ``advantages``: give them as columns.

    Raises:
        CollateError: a target that several samples read, for which ART has no word; mRoPE
            positions; or ``branch="index"``.
    """
    groups: list[Int64Array] = []
    parents: list[Int64Array] = []
    for batch in rows:
        _refuse_mrope(batch, "art")
        _refuse_terms(batch, "art")
        segments = _segments(batch)
        _refuse_shared_targets(batch, segments)
        segment_ids = np.arange(1, len(segments.parents) + 1)
        above = np.where(segments.parents < 0, segment_ids, segments.parents + 1)
        for lists, values in ((groups, segment_ids), (parents, above)):
            of_tokens = np.repeat(values, np.diff(segments.edges))
            of_tokens[len(of_tokens) - batch.tail_length :] = _NO_GROUP
            lists.append(of_tokens)
    joined = join_rows(rows, position_rows=1)
    joined.pop("loss_weights", None)
    return {
        "tokens": joined.pop("input_ids"),
        "group_ids": stack(groups),
        "parent_ids": stack(parents),
        "input_pos": joined.pop("position_ids"),
        "assistant_mask": joined.pop("labels") != IGNORE_INDEX,
        "weights": stack([batch.target_weights for batch in rows]),
        **joined,
    }


def to_nemo_automodel_tree(batch: PackedBatch) -> dict[str, Any]:
    """Convert a batch to one row of T tokens for Automodel's ``magi`` attention; labels are
    shifted.

    The padding at the end is a node with a path of its own. Automodel's own collator trains no
    first token of a branch; here all targets are trained.

    Raises:
        CollateError: a target that several samples train, which Automodel's loss would count once;
            or ``branch="index"``.
    """
    _refuse_terms(batch, "nemo_automodel_tree")
    segments, targets = _segments(batch), _targets(batch)
    if (twice := np.flatnonzero(targets.times > 1)).size:
        first = targets.samples[targets.predicting == twice[0]]
        raise CollateError(
            f"samples {', '.join(map(str, _sample_ids(batch)[first].tolist()))} train the same "
            f"token, which the loss of Automodel counts once: use "
            f"{setting('dialect', 'magi_attention')}, which has weights"
        )
    paths = [segments.paths.row(end).tolist() for end in segments.ends.tolist()]
    if batch.tail_length:
        paths.append([len(segments.parents) - 1])
    positions = (
        batch.position_ids[None] if batch.rope_positions is None else batch.rope_positions[:, None]
    )
    whole = replace(batch, cu_seqlens=batch.boundaries)
    is_weighted = (batch.target_weights[batch.labels != IGNORE_INDEX] != 1).any()
    return {
        "input_ids": row(batch.input_ids),
        "labels": row(shifted_labels(whole)),
        "position_ids": torch.from_numpy(positions),
        "prefix_tree": (np.diff(segments.edges).tolist(), paths),
        **other_tensors(whole, weights="loss_weights" if is_weighted else "", labels_shifted=True),
    }


def to_magi_attention(batch: PackedBatch) -> dict[str, Any]:
    """Convert a batch to one row of T tokens and the rectangles of its mask; labels are not
    shifted.

    A row of trees also has ``parents``, ``tree_in`` and ``tree_out`` (``tree_tensors``).
    """
    segments = _segments(batch)
    query = np.repeat(np.arange(len(segments.parents)), np.diff(segments.paths.offsets))
    key = segments.paths.values
    ranges = np.stack([segments.edges[:-1], segments.edges[1:]], axis=1)
    return {
        **token_row(batch),
        "q_ranges": torch.from_numpy(ranges[query]),
        "k_ranges": torch.from_numpy(ranges[key]),
        "attn_type_map": torch.from_numpy(
            np.where(query == key, np.int32(_CAUSAL), np.int32(_FULL))
        ),
        **tree_tensors(batch),
        **other_tensors(batch),
    }


class _Segments(NamedTuple):
    """Segments of a row that have tokens.

    Attributes:
        parents: ``int32[n]``, an earlier segment; -1 for a root.
        edges: ``int32[n + 1]``: where each begins in the row, and the end.
        paths: for each segment, the segments from its root to itself.
        ends: ``int64[samples]``: the segment that ends each sample.
    """

    parents: Int32Array
    edges: CuSeqlens
    paths: Ragged
    ends: Int64Array


class _Targets(NamedTuple):
    """Targets of the samples of a row, one sample after the other.

    Attributes:
        positions: ``int64[M]``.
        predicting: ``int64[M]``: place of the token before each in its sample.
        samples: ``int64[M]``: the sample that trains it.
        times: ``int64[T]``: how many samples train what each token predicts.
    """

    positions: Int64Array
    predicting: Int64Array
    samples: Int64Array
    times: Int64Array


def _segments(batch: PackedBatch) -> _Segments:
    """Return the segments of a row that have tokens; only ends of samples have none."""
    sizes = batch.lengths
    tree = None if batch.sharing is None else tree_of(batch)
    parents = np.full(len(sizes), -1) if tree is None else tree.parents
    ends = np.arange(batch.num_segments) if tree is None else tree.ends
    # The last number is the one of the parent -1.
    segment_ids = np.append(np.cumsum(sizes > 0) - 1, -1)
    kept = np.flatnonzero(sizes)
    own_parents = segment_ids[parents[kept]].astype(np.int32)
    ends = np.where(sizes[ends] > 0, ends, parents[ends])
    edges = np.append(batch.cu_seqlens[kept], batch.cu_seqlens[-1:])
    return _Segments(own_parents, edges, _bare(own_parents).paths(), segment_ids[ends])


def _bare(parents: Int32Array) -> PackTree:
    """Return a tree in which each segment ends a sample, which has no target."""
    none = np.zeros(0, dtype=np.int32)
    return PackTree(parents, np.arange(len(parents), dtype=np.int32), none, none)


def _targets(batch: PackedBatch) -> _Targets:
    """Return the targets of the samples of a row."""
    if batch.sharing is None:
        positions = np.flatnonzero(batch.labels != IGNORE_INDEX)
        predicting, samples = positions - 1, batch.segment_index[positions].astype(np.int64)
    else:
        tree = tree_of(batch)
        of_samples = tree.target_positions(tree.positions(batch.cu_seqlens))
        positions, predicting = of_samples.values, predictors(batch)[of_samples.values]
        samples = np.repeat(np.arange(len(of_samples)), np.diff(of_samples.offsets))
    return _Targets(
        positions, predicting, samples, np.bincount(predicting, minlength=len(batch.labels))
    )


def _sample_ids(batch: PackedBatch) -> Int64Array:
    """Return the id of each sample of a row."""
    ids = batch.sample_ids
    return ids if batch.sharing is None else ids[tree_of(batch).ends]


def _refuse_mrope(batch: PackedBatch, dialect: str) -> None:
    if batch.rope_positions is not None:
        raise CollateError(
            f"samples {', '.join(map(str, batch.sample_ids[:3].tolist()))}… have mRoPE positions, "
            f"for which dialect {dialect!r} has no key: choose "
            f"{setting('dialect', 'magi_attention')}"
        )


def _refuse_terms(batch: PackedBatch, dialect: str) -> None:
    if batch.loss_terms is not None:
        raise CollateError(
            f"dialect {dialect!r} has labels, one for each place, and the batch of sample "
            f"{batch.sample_ids[0]} has a list of targets: collate with {setting('branch', 'fork')}"
        )


def _refuse_shared_targets(batch: PackedBatch, segments: _Segments) -> None:
    """Refuse targets among the tokens that several samples read: in a trunk, or its last token that
    each branch repeats.
    """
    parents, edges = segments.parents, segments.edges
    ended = offsets_of(np.bincount(segments.ends, minlength=len(parents)))
    num_samples = ended[_bare(parents).subtree_ends()] - ended[:-1]
    branches = np.bincount(parents[parents >= 0], minlength=len(parents))
    is_read_twice = np.repeat(num_samples > 1, np.diff(edges))
    is_read_twice[edges[:-1][(parents >= 0) & (branches[parents] > 1)]] = True
    shared = np.flatnonzero(is_read_twice & (batch.labels != IGNORE_INDEX))
    if len(shared):
        sample = batch.sample_ids[batch.segment_index[shared[0]]]
        raise CollateError(
            f"token {batch.position_ids[shared[0]]:,} of sample {sample} is a target and other "
            "samples read it, but ART shares only what no sample trains: use "
            f"{setting('dialect', 'magi_attention')}, or plan with {setting('share', 'none')}"
        )

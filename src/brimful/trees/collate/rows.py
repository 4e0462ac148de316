"""Rows of trees: the trees of the packs of a row, and its targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from brimful.base.ragged import starts_of
from brimful.base.typing import IGNORE_INDEX, CuSeqlens
from brimful.base.wording import setting
from brimful.collate.batch import PackedBatch
from brimful.collate.extras import names_of
from brimful.errors import CollateError
from brimful.store.shards import Pack
from brimful.trees.pack_tree import PackTree, tree_of


def lay_out(batch: PackedBatch, packs: Sequence[Pack]) -> PackedBatch:
    """Give a row the trees of its packs: positions are depths, and a token that several samples
    train has the sum of their weights.

    Args:
        batch: the row; its ``position_ids`` are changed in place.
        packs: of the row, in its order.

    Raises:
        CollateError: some packs are not trees, or segments have gaps between them.
    """
    trees = [tree_of(pack) for pack in packs if pack.sharing is not None]
    if len(trees) < len(packs):
        raise CollateError(
            f"the batch has packs of trees and other packs (samples {names_of(packs)}): give it "
            "one kind"
        )
    if batch.has_gaps:
        raise CollateError(
            f"{setting('segment_multiple_of')} does not go with trees (samples {names_of(packs)}): "
            "a branch continues its trunk without a gap; use total_multiple_of"
        )
    first_segments = starts_of(np.array([pack.num_segments for pack in packs])).tolist()
    # The padding at the end, and empty segments after it, are trees of their own.
    parents = np.full(len(batch.cu_seqlens) - 1, -1, dtype=np.int32)
    for first, one in zip(first_segments, trees, strict=True):
        parents[first : first + len(one.parents)] = np.where(
            one.parents < 0, -1, one.parents + first
        )
    tree = PackTree(
        parents,
        np.concatenate(
            [one.ends + first for first, one in zip(first_segments, trees, strict=True)]
        ),
        np.concatenate([one.spans for one in trees]),
        np.concatenate([one.span_sizes for one in trees]),
    )
    size = batch.num_tokens
    depths = np.concatenate([pack.starts for pack in packs])
    batch.position_ids[:size] += np.repeat(depths, batch.lengths[: batch.num_segments])
    return with_targets(batch, tree)


def with_targets(batch: PackedBatch, tree: PackTree) -> PackedBatch:
    """Return a row of trees with the targets of this tree: a token that several samples train has
    their number as its weight.
    """
    targets = tree.target_ranges(batch.cu_seqlens)
    counts = targets.sums(np.ones(tree.num_samples), len(batch.input_ids))
    return replace(
        batch,
        sharing=tree,
        labels=np.where(counts > 0, batch.input_ids, IGNORE_INDEX),
        loss_weights=counts.astype(np.float32),
        num_loss_tokens=int(counts.sum()),
    )


def without_loss(
    batch: PackedBatch, segments: Sequence[int]
) -> tuple[PackedBatch, tuple[int, ...]]:
    """Return a row of trees without the targets of the samples that have any of the segments, and
    the segments that end these samples.
    """
    tree = tree_of(batch)
    samples = tree.samples_through(np.array(segments))
    batch = with_targets(batch, tree.without_targets(samples))
    return batch, tuple(tree.ends[samples].tolist())


def boundaries(batch: PackedBatch) -> CuSeqlens:
    """Return the boundaries of the trees of a row, within which a token predicts the next:
    ``int32``.
    """
    tree = tree_of(batch)
    edges: CuSeqlens = batch.cu_seqlens[np.append(tree.parents < 0, True)]
    return edges


def refusal(dialect: str, others: str) -> CollateError:
    """Return the error of a dialect that would take segments of trees for samples.

    Args:
        dialect: its name.
        others: names of the dialects that take trees.
    """
    return CollateError(
        f"{setting('dialect', dialect)} has no words for packs of trees, whose segments are not "
        "samples: call use_tree_attention(model) before "
        f"collator_for(model), use one of {others}, or plan with "
        f"{setting('share', 'none')}"
    )

"""Weights of targets that several samples share, from the weights of the samples alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import Enum

import numpy as np

from brimful.base.tables import Ragged
from brimful.base.typing import IGNORE_INDEX, Float32Array
from brimful.collate.batch import PackedBatch


class SharedTargets(str, Enum):
    """Weight of a target that several samples train."""

    SUM = "sum"
    """The sum of its weights in these samples: the loss and the gradients of flat packs."""
    MEAN = "mean"
    """Their mean: a shared target counts once, as if one sample trained it. Samples of a large tree
    then have less weight than the ones of a small tree.
    """


def flat_row(batch: PackedBatch) -> PackedBatch:
    """Return the row of flat packs of the same samples, one after the other, without media and
    padding.

    >>> from brimful.collate.layout import lay_out
    >>> from brimful.testing.toys import toy_tree
    >>> row = flat_row(lay_out([toy_tree([[5, 6, 7], [5, 6, 8]])]))
    >>> row.input_ids.tolist(), row.cu_seqlens.tolist(), row.sample_ids.tolist()
    ([5, 6, 7, 5, 6, 8], [0, 3, 6], [0, 1])
    """
    tree = batch.tree
    assert tree is not None
    places = tree.places(batch.cu_seqlens)
    index = places.values
    lengths = np.diff(places.offsets).astype(np.int32)
    labels = np.full(len(index), IGNORE_INDEX, dtype=np.int64)
    targets = tree.target_places(Ragged(np.arange(len(index)), places.offsets)).values
    labels[targets] = batch.input_ids[index[targets]]
    (no_loss,) = np.nonzero(np.isin(tree.ends, batch.no_loss))
    return PackedBatch(
        input_ids=batch.input_ids[index],
        labels=labels,
        position_ids=batch.position_ids[index],
        segment_index=np.repeat(np.arange(len(lengths), dtype=np.int32), lengths),
        cu_seqlens=places.offsets.astype(np.int32),
        num_segments=len(lengths),
        sample_ids=batch.sample_ids[tree.ends],
        num_loss_tokens=len(targets),
        real_lengths=lengths,
        max_seqlen=int(lengths.max()),
        source_ids=None if batch.source_ids is None else batch.source_ids[tree.ends],
        rope_positions=None if batch.rope_positions is None else batch.rope_positions[:, index],
        no_loss=tuple(no_loss.tolist()),
        columns=tuple(replace(column, values=column.values[index]) for column in batch.columns),
    )


def summed_weights(
    batch: PackedBatch, weigh: Callable[[PackedBatch], Float32Array]
) -> Float32Array:
    """Return the weights of a row of trees, given a function that weighs flat packs: a target has
    the sum of its weights in the samples that train it, ``float32[T]``.

    Args:
        batch: of trees.
        weigh: as in ``PackCollator(loss_weights=…)``; it sees the samples as a flat row.

    >>> from brimful.collate.layout import lay_out
    >>> from brimful.testing.toys import toy_tree
    >>> batch = lay_out([toy_tree([[5, 6, 7], [5, 6, 8]])])
    >>> summed_weights(batch, lambda row: 1 / (1 + row.sample_ids[row.segment_index])).tolist()
    [0.0, 1.5, 1.0, 0.5]
    """
    assert batch.tree is not None
    row = flat_row(batch)
    (targets,) = np.nonzero(row.labels != IGNORE_INDEX)
    places = batch.tree.target_places(batch.tree.places(batch.cu_seqlens)).values
    weights = np.asarray(weigh(row), dtype=np.float64)[targets]
    return np.bincount(places, weights, len(batch.labels)).astype(np.float32)


def num_training_samples(batch: PackedBatch) -> Float32Array:
    """Return how many samples train each token of a row of trees: ``float32[T]``."""
    assert batch.tree is not None
    ranges = batch.tree.target_ranges(batch.cu_seqlens)
    ones = np.ones(batch.tree.num_samples)
    return ranges.sums(ones, len(batch.labels)).astype(np.float32)

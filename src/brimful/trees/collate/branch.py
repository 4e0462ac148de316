"""Loss of rows of trees: its forms at the branches of a trunk, and the weights of targets that
several samples share.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import Enum

import numpy as np

from brimful.base.checks import choice_of
from brimful.base.tables import Ragged
from brimful.base.typing import IGNORE_INDEX, Float32Array
from brimful.collate.batch import PackedBatch
from brimful.collate.extras import PackExtras
from brimful.store.shards import Pack
from brimful.trees.collate.fork import forked_features, on_first_copies, with_single_labels
from brimful.trees.collate.visibility import loss_terms
from brimful.trees.pack_tree import tree_of


class Branch(str, Enum):
    """Form of the loss of trees: the last token of a trunk predicts the first of each branch.

    ::

        row     a b c | d e | f     index   a b c d e f          c predicts d and f
                                    fork    a b | c d e | c f    one token more for each branch
    """

    FORK = "fork"
    """Each branch repeats the last token of its trunk. Every place has one label and one weight, so
    any loss goes with it.
    """
    INDEX = "index"
    """The batch has no labels but a list of targets with the places that predict them: logits, or
    the hidden states before the head, are gathered once for each target.
    """


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
    tree = tree_of(batch)
    positions = tree.positions(batch.cu_seqlens)
    index = positions.values
    lengths = np.diff(positions.offsets).astype(np.int32)
    labels = np.full(len(index), IGNORE_INDEX, dtype=np.int64)
    targets = tree.target_positions(Ragged(np.arange(len(index)), positions.offsets)).values
    labels[targets] = batch.input_ids[index[targets]]
    (no_loss,) = np.nonzero(np.isin(tree.ends, batch.no_loss))
    return PackedBatch(
        input_ids=batch.input_ids[index],
        labels=labels,
        position_ids=batch.position_ids[index],
        segment_index=np.repeat(np.arange(len(lengths), dtype=np.int32), lengths),
        cu_seqlens=positions.offsets.astype(np.int32),
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
    row = flat_row(batch)
    (targets,) = np.nonzero(row.labels != IGNORE_INDEX)
    tree = tree_of(batch)
    positions = tree.target_positions(tree.positions(batch.cu_seqlens)).values
    weights = np.asarray(weigh(row), dtype=np.float64)[targets]
    return np.bincount(positions, weights, len(batch.labels)).astype(np.float32)


def num_training_samples(batch: PackedBatch) -> Float32Array:
    """Return how many samples train each token of a row of trees: ``float32[T]``."""
    tree = tree_of(batch)
    ranges = tree.target_ranges(batch.cu_seqlens)
    ones = np.ones(tree.num_samples)
    return ranges.sums(ones, len(batch.labels)).astype(np.float32)


class LossForm:
    """Loss of rows of trees.

    Args:
        branch: form of the loss at the branches of a trunk.
        shared_targets: weight of a target that several samples train.

    Raises:
        SettingsError: no such form or weight.
    """

    def __init__(self, branch: Branch | str, shared_targets: SharedTargets | str) -> None:
        self._branch = choice_of(Branch, branch, argument="branch")
        self._shared_targets = choice_of(SharedTargets, shared_targets, argument="shared_targets")

    def prepare(
        self, packs: list[Pack], extras: list[PackExtras | None] | None
    ) -> tuple[list[Pack], list[PackExtras | None] | None]:
        """Return packs of trees and their extras as this loss needs them, before they are laid out.

        Raises:
            CollateError: see ``fork_of``.
        """
        return forked_features(packs, extras) if self._branch is Branch.FORK else (packs, extras)

    summed_weights = staticmethod(summed_weights)

    def apply(self, batch: PackedBatch) -> PackedBatch:
        """Return a row of trees with this loss.

        Args:
            batch: with the sums of the weights of its samples.
        """
        weights, counts = batch.loss_weights, num_training_samples(batch)
        assert weights is not None
        if self._branch is Branch.FORK:
            weights, counts = (on_first_copies(batch, values) for values in (weights, counts))
            batch = with_single_labels(batch)
        if self._shared_targets is SharedTargets.MEAN:
            weights = (weights / np.maximum(counts, 1)).astype(np.float32)
        batch = replace(batch, loss_weights=weights)
        if self._branch is Branch.FORK:
            return batch
        return replace(batch, loss_terms=loss_terms(batch))

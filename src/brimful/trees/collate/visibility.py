"""Tokens that each token of a row of trees may attend to, as intervals and as runs of queries; and
the terms of its loss, one for each token that a sample trains.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from brimful.base.tables import Ragged
from brimful.base.typing import IGNORE_INDEX, Int32Array, Int64Array
from brimful.collate.batch import LossTerms, PackedBatch
from brimful.trees.pack_tree import tree_of


class AttentionRuns(NamedTuple):
    """One call of variable-length attention, causal from the bottom right, for a row of trees.

    A run is a path of segments that follow each other in the row: a trunk and its first branch are
    one run. The keys of a run are its whole path from the root, gathered.

    ::

        row        a b c | d e | f          parents -1 0 0
        runs       a b c   d e | f
        keys       a b c   d e | a b c f
    """

    kv_index: Int64Array
    """``int64[num_keys]``: the place in the row of each key, run by run."""
    cu_seqlens_q: Int32Array
    """``int32[num_runs + 1]``: boundaries of the queries, which are the row itself."""
    cu_seqlens_k: Int32Array
    """``int32[num_runs + 1]``: boundaries of the keys."""

    @property
    def max_length_q(self) -> int:
        """Queries of the longest run."""
        return int(np.diff(self.cu_seqlens_q).max())

    @property
    def max_length_k(self) -> int:
        """Keys of the longest run."""
        return int(np.diff(self.cu_seqlens_k).max())


def tree_out(batch: PackedBatch) -> Int32Array:
    """Return the place after the subtree of each token's segment: ``int32[T]``.

    Token ``k`` is visible to ``q`` if ``k <= q < tree_out[k]``.

    >>> from brimful.collate.layout import lay_out
    >>> from brimful.testing.toys import toy_tree
    >>> tree_out(lay_out([toy_tree([[5, 6, 7], [5, 6, 8]])])).tolist()
    [4, 4, 3, 4]
    """
    ends = batch.cu_seqlens[tree_of(batch).subtree_ends()]
    return np.repeat(ends, batch.lengths)


def attention_runs(batch: PackedBatch) -> AttentionRuns:
    """Return the runs of a row of trees; the padding at the end is one of its own.

    >>> from brimful.collate.layout import lay_out
    >>> from brimful.testing.toys import toy_tree
    >>> runs = attention_runs(lay_out([toy_tree([[5, 6, 7], [5, 6, 8]])]))
    >>> runs.kv_index.tolist(), runs.cu_seqlens_q.tolist(), runs.cu_seqlens_k.tolist()
    ([0, 1, 2, 0, 1, 3], [0, 3, 4], [0, 3, 6])
    """
    tree, cu_seqlens = tree_of(batch), batch.cu_seqlens
    (segments,) = np.nonzero(batch.lengths)
    parents = tree.parents[segments]
    # A segment goes on with the run of its parent if it follows it in the row, which is true of the
    # first branch of each trunk.
    is_first = (parents < 0) | (cu_seqlens[segments] != cu_seqlens[parents + 1])
    (first,) = np.nonzero(is_first)
    last = segments[np.append(first[1:], len(segments)) - 1]
    keys = replace(tree, ends=last).positions(cu_seqlens)
    boundaries = np.append(cu_seqlens[segments[first]], cu_seqlens[-1])
    return AttentionRuns(keys.values, boundaries, keys.offsets.astype(np.int32))


def predictors(batch: PackedBatch) -> Int64Array:
    """Return the place that predicts each token: ``int64[T]``, -1 at the first token of a root.

    It is the place before the token, or the last of the trunk at the first token of a branch.

    >>> from brimful.collate.layout import lay_out
    >>> from brimful.testing.toys import toy_tree
    >>> predictors(lay_out([toy_tree([[5, 6, 7], [5, 6, 8]])])).tolist()
    [-1, 0, 1, 1]
    """
    positions = np.arange(-1, len(batch.input_ids) - 1, dtype=np.int64)
    (segments,) = np.nonzero(batch.lengths)
    parents = tree_of(batch).parents[segments]
    before = np.where(parents < 0, -1, batch.cu_seqlens[parents + 1] - 1)
    positions[batch.cu_seqlens[segments]] = before
    return positions


def loss_terms(batch: PackedBatch) -> LossTerms:
    """Return the terms of the loss of a row of trees, in the order of their targets.

    >>> from brimful.collate.layout import lay_out
    >>> from brimful.testing.toys import toy_tree
    >>> terms = loss_terms(lay_out([toy_tree([[5, 6, 7], [5, 6, 8]])]))
    >>> terms.index.tolist(), terms.targets.tolist(), terms.weights.tolist(), terms.samples.tolist()
    ([0, 1, 1], [6, 7, 8], [2.0, 1.0, 1.0], [0, 0, 1])
    """
    (targets,) = np.nonzero(batch.labels != IGNORE_INDEX)
    samples = np.full(len(batch.labels), -1, dtype=np.int64)
    ranges = np.stack(tree_of(batch).target_ranges(batch.cu_seqlens), axis=1)
    # From the last sample to the first, so that the first of a shared target remains.
    for sample, start, end in ranges[::-1].tolist():
        samples[start:end] = sample
    return LossTerms(
        predictors(batch)[targets],
        batch.labels[targets],
        batch.target_weights[targets],
        samples[targets],
        targets,
    )


def terms_of_samples(batch: PackedBatch) -> Ragged:
    """Return the term of each target of each sample of a row of trees: ``int64``, one row for each
    sample.

    Values of terms are brought back to samples with it: ``values[terms.values]``, in NumPy or in
    torch. A shared target is there once for each sample that trains it.

    >>> from brimful.collate.layout import lay_out
    >>> from brimful.testing.toys import toy_tree
    >>> terms = terms_of_samples(lay_out([toy_tree([[5, 6, 7], [5, 6, 8]])]))
    >>> [terms.row(sample).tolist() for sample in range(2)]
    [[0, 1], [0, 2]]
    """
    tree = tree_of(batch)
    target_index = np.cumsum(batch.labels != IGNORE_INDEX, dtype=np.int64) - 1
    targets = tree.target_positions(tree.positions(batch.cu_seqlens))
    return Ragged(target_index[targets.values], targets.offsets)


class SampleTargets(NamedTuple):
    """Targets of the samples of a row of trees, sample by sample: a shared target once for each
    sample that trains it.
    """

    predictors: Int64Array
    """``int64[N]``: the place before the target on the path of its sample, whose logits predict
    it.
    """
    targets: Int64Array
    """``int64[N]``: the token."""
    samples: Int64Array
    """``int64[N]``: the sample, by its number in the row."""


def targets_of_samples(batch: PackedBatch) -> SampleTargets:
    """Return the targets of each sample of a row of trees, in either form of the loss.

    >>> from brimful.collate.layout import lay_out
    >>> from brimful.testing.toys import toy_tree
    >>> found = targets_of_samples(lay_out([toy_tree([[5, 6, 7], [5, 6, 8]])]))
    >>> found.predictors.tolist(), found.targets.tolist(), found.samples.tolist()
    ([0, 1, 0, 1], [6, 7, 6, 8], [0, 0, 1, 1])
    """
    tree = tree_of(batch)
    positions = tree.positions(batch.cu_seqlens)
    indices = tree.target_positions(Ragged(np.arange(len(positions.values)), positions.offsets))
    return SampleTargets(
        positions.values[indices.values - 1],
        batch.input_ids[positions.values[indices.values]],
        np.repeat(np.arange(tree.num_samples), np.diff(indices.offsets)),
    )

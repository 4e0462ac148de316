"""Tokens that each token of a row of trees may attend to, as intervals and as runs of queries."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from brimful.base.typing import Int32Array, Int64Array
from brimful.collate.batch import PackedBatch


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
    assert batch.tree is not None
    ends = batch.cu_seqlens[batch.tree.subtree_ends()]
    return np.repeat(ends, batch.lengths)


def attention_runs(batch: PackedBatch) -> AttentionRuns:
    """Return the runs of a row of trees; the padding at the end is one of its own.

    >>> from brimful.collate.layout import lay_out
    >>> from brimful.testing.toys import toy_tree
    >>> runs = attention_runs(lay_out([toy_tree([[5, 6, 7], [5, 6, 8]])]))
    >>> runs.kv_index.tolist(), runs.cu_seqlens_q.tolist(), runs.cu_seqlens_k.tolist()
    ([0, 1, 2, 0, 1, 3], [0, 3, 4], [0, 3, 6])
    """
    tree, cu_seqlens = batch.tree, batch.cu_seqlens
    assert tree is not None
    (segments,) = np.nonzero(batch.lengths)
    parents = tree.parents[segments]
    # A segment goes on with the run of its parent if it follows it in the row, which is true of the
    # first branch of each trunk.
    is_first = (parents < 0) | (cu_seqlens[segments] != cu_seqlens[parents + 1])
    (first,) = np.nonzero(is_first)
    last = segments[np.append(first[1:], len(segments)) - 1]
    keys = replace(tree, ends=last).places(cu_seqlens)
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
    assert batch.tree is not None
    places = np.arange(-1, len(batch.input_ids) - 1, dtype=np.int64)
    (segments,) = np.nonzero(batch.lengths)
    parents = batch.tree.parents[segments]
    before = np.where(parents < 0, -1, batch.cu_seqlens[parents + 1] - 1)
    places[batch.cu_seqlens[segments]] = before
    return places

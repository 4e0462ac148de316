"""Packs of leaves as segments, in the one form that plans and packs of trees have."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from brimful.base.ragged import offsets_of, sums_of
from brimful.base.typing import Int32Array, Int64Array, Offsets
from brimful.plan.packing import Packing
from brimful.trees.plan.forest import Forest


@dataclass(frozen=True, eq=False)
class TreeSegments:
    """Segments of packs: depth-first, the segments of a subtree side by side.

    Attributes:
        offsets: ``int64[num_packs + 1]``: pack ``i`` is segments ``offsets[i] … offsets[i + 1] - 1``.
        leaves: ``int64[num_segments]``: the leaf that ends with each segment; if none does, the
            first leaf below it.
        starts: ``int32[num_segments]``: depth of the first token; 0 at a root.
        lengths: ``int32[num_segments]``: tokens; 0 for another leaf that ends where its trunk ends.
        parents: ``int32[num_segments]``: an earlier segment, counted from the first of the pack; -1
            for a root.
    """

    offsets: Offsets
    leaves: Int64Array
    starts: Int32Array
    lengths: Int32Array
    parents: Int32Array


def segments_of(forest: Forest, packs: Packing) -> TreeSegments:
    """Return the segments of packs of leaves.

    ::

        leaves of the pack    a b c d · a b c x y · a b z
        segments              a b | c | d | x y | z
        leaves                0     0   0   1     2
        parents               -1    0   1   1     0
        starts                0     2   3   3     2

    A trunk of which the pack has one branch is a part of its segment, except where a leaf ends.

    Args:
        forest: of all leaves.
        packs: leaves, each once, ascending within a pack.
    """
    pack = np.repeat(np.arange(len(packs)), packs.sizes)
    leaves = packs.items.astype(np.int64, copy=False)
    trunks = trunks_with_previous(forest, packs.offsets, leaves)
    shared = forest.depths_of(trunks)[:, :1]
    # The trunks of the packs alone.
    tree = Forest.of(forest.depths[leaves, :1], shared)
    parents, is_trunk = tree.parents, np.arange(len(tree.parents)) >= len(leaves)
    tokens = tree.depths[:, 0]
    first_leaf = np.arange(len(parents))
    first_leaf[len(leaves) :] = tree.first
    # A leaf that ends where its trunk ends, and is its first, ends with the segment of the trunk.
    starts = tree.depths_of(parents)[:, 0]
    is_segment = is_trunk | (tokens > starts) | (first_leaf != first_leaf[parents])
    nodes = np.flatnonzero(is_segment)
    # Depth first: by the first leaf, and outer trunks before inner ones and before leaves.
    nodes = nodes[np.lexsort((~is_trunk[nodes], tokens[nodes], first_leaf[nodes]))]
    index = np.zeros(len(parents), dtype=np.int64)
    index[nodes] = np.arange(len(nodes))
    offsets = offsets_of(np.bincount(pack[first_leaf[nodes]], minlength=len(packs)))
    parents_of_nodes = parents[nodes]
    start_of_pack = offsets[:-1][pack[first_leaf[nodes]]]
    return TreeSegments(
        offsets,
        leaves[first_leaf[nodes]],
        starts[nodes].astype(np.int32),
        (tokens - starts)[nodes].astype(np.int32),
        np.where(parents_of_nodes >= 0, index[parents_of_nodes] - start_of_pack, -1).astype(
            np.int32
        ),
    )


def trunks_with_previous(forest: Forest, offsets: Offsets, leaves: Int64Array) -> Int64Array:
    """Return the deepest trunk that each leaf of some packs shares with the leaf before it in its
    pack, -1 for none: ``int64[n]``.

    Args:
        forest: of all leaves.
        offsets: of the packs.
        leaves: ``int64[n]``, ascending within a pack.
    """
    trunks = np.full(len(leaves), -1, dtype=np.int64)
    follows = np.ones(len(leaves), dtype=np.bool_)
    follows[offsets[:-1]] = False
    tree = np.cumsum(forest.gaps < 0)[leaves]
    follows[1:] &= tree[1:] == tree[:-1]
    rows = np.flatnonzero(follows)
    trunks[rows] = forest.between(leaves[rows - 1], leaves[rows])
    return trunks


def loads_of_trees(forest: Forest, packs: Packing) -> Int64Array:
    """Return what each pack takes of each budget, with the room of forks:
    ``int64[num_packs, num_budgets]``.

    Args:
        forest: of all leaves.
        packs: leaves, ascending within a pack.
    """
    leaves = packs.items.astype(np.int64, copy=False)
    trunks = trunks_with_previous(forest, packs.offsets, leaves)
    additions = forest.added_by(np.roll(leaves, 1), leaves, trunks)
    return np.stack([sums_of(column, packs.offsets) for column in additions.T], axis=1)


def packs_of(pack: Int64Array, num_packs: int) -> Packing:
    """Return the packs of leaves, ascending in each, by the pack of each leaf: ``int64[num_leaves]``.

    >>> packs_of(np.array([1, 0, 1]), 2).as_lists()
    [[1], [0, 2]]
    """
    sizes = np.bincount(pack, minlength=num_packs).astype(np.int64)
    return Packing(offsets_of(sizes), np.argsort(pack, kind="stable"))

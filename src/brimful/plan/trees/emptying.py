"""Emptying: the emptiest packs are taken apart, and each of their leaves goes where it adds least."""

from __future__ import annotations

import numpy as np

from brimful.base.typing import BoolArray, Int64Array
from brimful.plan.packing import Packing
from brimful.plan.trees.forest import Forest
from brimful.plan.trees.segments import loads_of_trees, packs_of

_ATTEMPTS = 3
"""Packs in a row that are taken apart in vain."""

_MOST_STEPS = 200_000_000
"""Packs and leaves looked at, after which no further pack is taken apart: a second or two."""


def emptied(forest: Forest, packs: Packing, capacities: Int64Array, *, least: int) -> Packing:
    """Empty packs as long as the leaves of the emptiest fit into others.

    A leaf goes to the pack where it adds the fewest tokens: to the one that has most of its path.

    Pure: no I/O, no randomness.

    Args:
        forest: of all leaves.
        packs: leaves, ascending within a pack.
        capacities: ``int64[num_budgets]``.
        least: packs that any plan needs: with this number there is nothing to gain.

    Cost: O(packs + leaves of its tree) for each leaf that is moved.
    """
    placement = _Placement(forest, packs, capacities)
    loads, is_open = placement.loads, placement.is_open
    num_steps, num_failures = 0, 0
    is_tried = np.zeros(len(packs), dtype=np.bool_)
    while int(is_open.sum()) > least and num_failures < _ATTEMPTS:
        candidates = np.flatnonzero(is_open & ~is_tried)
        if not len(candidates):
            break
        emptiest = int(candidates[np.argmin(loads[candidates, 0])])
        leaves = np.flatnonzero(placement.pack == emptiest)
        num_steps += int(len(leaves) * len(packs) + placement.tree_sizes[leaves].sum())
        if num_steps > _MOST_STEPS:
            break
        is_tried[emptiest] = True
        num_failures = 0 if placement.empty(emptiest, leaves) else num_failures + 1
    return packs_of(placement.pack, len(packs)).take(np.flatnonzero(is_open))


class _Placement:
    """Leaves in packs, and where each would add least.

    Attributes:
        pack: ``int64[num_leaves]``: the pack of each leaf; -1 for none.
        loads: ``int64[num_packs, num_budgets]``: what each pack takes, at most.
        is_open: ``bool[num_packs]``: false for packs that were emptied.
        tree_sizes: ``int64[num_leaves]``: leaves of the tree of each leaf.
    """

    def __init__(self, forest: Forest, packs: Packing, capacities: Int64Array) -> None:
        self._forest, self._capacities = forest, capacities
        self.pack = np.empty(forest.num_leaves, dtype=np.int64)
        self.pack[packs.items] = np.repeat(np.arange(len(packs)), packs.sizes)
        self.loads = loads_of_trees(forest, packs)
        self.is_open: BoolArray = np.ones(len(packs), dtype=np.bool_)
        self._shared = np.where(forest.gaps >= 0, forest.depths[forest.gaps, 0], 0)
        # A tree is the leaves from one that shares nothing to the next.
        edges = np.append(np.flatnonzero(self._shared == 0), forest.num_leaves)
        counts = np.diff(edges)
        self._first = np.repeat(edges[:-1], counts)
        self.tree_sizes = np.repeat(counts, counts)

    def empty(self, pack: int, leaves: Int64Array) -> bool:
        """Move the leaves of a pack to others, the longest first; if one fits nowhere, all stay,
        and the result is false.
        """
        before = self.pack[leaves], self.loads.copy()
        self.pack[leaves], self.is_open[pack] = -1, False
        order = np.argsort(-self._forest.depths[leaves, 0], kind="stable")
        if all(self._move(leaf) for leaf in leaves[order].tolist()):
            return True
        self.pack[leaves], self.loads[:] = before
        self.is_open[pack] = True
        return False

    def _move(self, leaf: int) -> bool:
        """Put a leaf into the pack where it adds the fewest tokens, of these the fullest."""
        added = self._added(leaf)
        fits = self.is_open & (self.loads + added <= self._capacities).all(axis=1)
        packs = np.flatnonzero(fits)
        if not len(packs):
            return False
        best = packs[np.lexsort((-self.loads[packs, 0], added[packs, 0]))[0]]
        self.pack[leaf] = best
        self.loads[best] += added[best]
        return True

    def _added(self, leaf: int) -> Int64Array:
        """Return what a leaf would add to each pack, at most: ``int64[num_packs, num_budgets]``."""
        forest, first = self._forest, int(self._first[leaf])
        stop = first + int(self.tree_sizes[leaf])
        added = np.repeat(forest.depths[leaf : leaf + 1], len(self.loads), axis=0)
        # What the leaf shares with the leaves to its right and to its left falls with the distance.
        right = np.minimum.accumulate(self._shared[leaf + 1 : stop])
        left = np.minimum.accumulate(self._shared[first + 1 : leaf + 1][::-1])[::-1]
        owners = np.concatenate([self.pack[first:leaf], self.pack[leaf + 1 : stop]])
        shared = np.concatenate([left, right])
        is_placed = owners >= 0
        most = np.zeros(len(self.loads), dtype=np.int64)
        np.maximum.at(most, owners[is_placed], shared[is_placed])
        packs = np.flatnonzero(most)
        if len(packs):
            path = [int(forest.parents[leaf])]
            while (parent := int(forest.parents[path[-1]])) >= 0:
                path.append(parent)
            trunks = forest.depths[path[::-1]]
            added[packs] -= trunks[np.searchsorted(trunks[:, 0], most[packs])]
            added[packs, 0] += 1  # room for a fork
        return added

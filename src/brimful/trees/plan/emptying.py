"""Emptying: the emptiest packs are taken apart, and each of their leaves goes where it adds least."""

from __future__ import annotations

import numpy as np

from brimful.base.typing import BoolArray, Int64Array
from brimful.plan.packing import Packing
from brimful.trees.plan.forest import Forest
from brimful.trees.plan.segments import loads_of_trees, packs_of, trunks_with_previous

_ATTEMPTS = 8
"""Packs in a row that are taken apart in vain."""

_AT_ONCE = 256
"""Packs whose leaves may go into one another: with more, packs of neighboring trees."""


def emptied(forest: Forest, packs: Packing, capacities: Int64Array) -> Packing:
    """Empty packs as long as the leaves of the emptiest fit into others.

    A leaf goes to the pack where it adds the fewest tokens: to the one that has most of its path.

    Pure: no I/O, no randomness.

    Args:
        forest: of all leaves.
        packs: leaves, ascending within a pack.
        capacities: ``int64[num_budgets]``.

    Returns:
        At most as many packs, leaves ascending within each.

    Cost: O(packs and leaves of its part) for each leaf that is moved.
    """
    # Packs side by side share trees.
    ranks = np.empty(len(packs), dtype=np.int64)
    ranks[np.argsort(packs.items[packs.offsets[:-1]], kind="stable")] = np.arange(len(packs))
    num_groups = -(-len(packs) // _AT_ONCE)
    group_of_pack = ranks * num_groups // len(packs)
    pack = np.empty(forest.num_leaves, dtype=np.int64)
    pack[packs.items] = np.repeat(np.arange(len(packs)), packs.sizes)
    groups = packs_of(group_of_pack[pack], num_groups)
    leaves = groups.items.astype(np.int64, copy=False)
    trunks = trunks_with_previous(forest, groups.offsets, leaves)
    shared = forest.depths_of(trunks)
    is_open = np.ones(len(packs), dtype=np.bool_)
    for group in range(num_groups):
        rows = slice(int(groups.offsets[group]), int(groups.offsets[group + 1]))
        members = np.flatnonzero(group_of_pack == group)
        index_in_group = np.empty(len(packs), dtype=np.int64)
        index_in_group[members] = np.arange(len(members))
        placement = _Placement(
            Forest.of(forest.depths[leaves[rows]], shared[rows]),
            packs_of(index_in_group[pack[leaves[rows]]], len(members)),
            capacities,
        )
        placement.empty_emptiest()
        pack[leaves[rows]] = members[placement.pack]
        is_open[members] = placement.is_open
    return packs_of(pack, len(packs)).take(np.flatnonzero(is_open))


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
        self._shared = forest.depths_of(forest.gaps)[:, 0]
        # A tree is the leaves from one that shares nothing to the next.
        edges = np.append(np.flatnonzero(self._shared == 0), forest.num_leaves)
        counts = np.diff(edges)
        self._first = np.repeat(edges[:-1], counts)
        self.tree_sizes = np.repeat(counts, counts)

    def empty_emptiest(self) -> None:
        """Empty packs, the emptiest first, until several in a row cannot be."""
        num_failures = 0
        is_tried = np.zeros(len(self.loads), dtype=np.bool_)
        while num_failures < _ATTEMPTS:
            candidates = np.flatnonzero(self.is_open & ~is_tried)
            if not len(candidates):
                return
            emptiest = int(candidates[np.argmin(self.loads[candidates, 0])])
            is_tried[emptiest] = True
            num_failures = 0 if self._empty(emptiest) else num_failures + 1

    def _empty(self, pack: int) -> bool:
        """Move the leaves of a pack to others, the longest first; if one fits nowhere, all stay,
        and the result is false.
        """
        leaves = np.flatnonzero(self.pack == pack)
        state = self.pack[leaves], self.loads.copy()
        self.pack[leaves], self.is_open[pack] = -1, False
        order = np.argsort(-self._forest.depths[leaves, 0], kind="stable")
        if all(self._move(leaf) for leaf in leaves[order].tolist()):
            return True
        self.pack[leaves], self.loads[:] = state
        self.is_open[pack] = True
        return False

    def _move(self, leaf: int) -> bool:
        """Put a leaf into the pack where it adds the fewest tokens, of these the fullest."""
        additions = self._added(leaf)
        fits = self.is_open & (self.loads + additions <= self._capacities).all(axis=1)
        packs = np.flatnonzero(fits)
        if not len(packs):
            return False
        best = packs[np.lexsort((-self.loads[packs, 0], additions[packs, 0]))[0]]
        self.pack[leaf] = best
        self.loads[best] += additions[best]
        return True

    def _added(self, leaf: int) -> Int64Array:
        """Return what a leaf would add to each pack, at most: ``int64[num_packs, num_budgets]``."""
        forest, first = self._forest, int(self._first[leaf])
        stop = first + int(self.tree_sizes[leaf])
        additions = np.repeat(forest.depths[leaf : leaf + 1], len(self.loads), axis=0)
        # What the leaf shares with the leaves to its right and to its left falls with the distance.
        right = np.minimum.accumulate(self._shared[leaf + 1 : stop])
        left = np.minimum.accumulate(self._shared[first + 1 : leaf + 1][::-1])[::-1]
        owners = np.concatenate([self.pack[first:leaf], self.pack[leaf + 1 : stop]])
        shared = np.concatenate([left, right])
        is_placed = owners >= 0
        best_shared = np.zeros(len(self.loads), dtype=np.int64)
        np.maximum.at(best_shared, owners[is_placed], shared[is_placed])
        packs = np.flatnonzero(best_shared)
        if len(packs):
            path = [int(forest.parents[leaf])]
            while (parent := int(forest.parents[path[-1]])) >= 0:
                path.append(parent)
            trunks = forest.depths[path[::-1]]
            additions[packs] -= trunks[np.searchsorted(trunks[:, 0], best_shared[packs])]
            additions[packs, 0] += 1  # room for a fork
        return additions

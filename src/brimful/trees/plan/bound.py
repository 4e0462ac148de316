"""A lower bound on the packs, and on the tokens in them, of any plan of a forest."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from brimful.base.compiling import compiled
from brimful.base.typing import BoolArray, Int64Array
from brimful.trees.plan.forest import Forest


class TreeBound(NamedTuple):
    """Fewest packs and tokens that a plan of a forest may have."""

    packs: int
    """Packs."""
    tokens: int
    """Tokens in all packs: a trunk counts in each pack that needs it."""


def bound_of_trees(forest: Forest, capacities: Int64Array) -> TreeBound:
    """Return a lower bound.

    A pack with a leaf below trunk ``v`` holds the path to ``v``, so what is below ``v`` needs at
    least ``b(v)`` packs::

        b(leaf) = 1
        b(v) = max(b of each child, ceil(below(v) / (capacity - depth(v))))
        below(v) = sum of length(w) · b(w) over the nodes w below v

    and each of these packs holds ``v``: tokens >= sum of length(v) · b(v) over all nodes. The same
    holds for every budget.

    Pure: no I/O.

    Cost: O(nodes).

    >>> forest = Forest.of(np.array([[8], [8], [8]]), np.array([[0], [5], [5]]))
    >>> bound_of_trees(forest, np.array([11]))  # the trunk of 5 leaves room for two of three branches
    TreeBound(packs=2, tokens=19)
    """
    num_leaves, depths, parents = forest.num_leaves, forest.depths, forest.parents
    lengths = depths - np.where((parents >= 0)[:, None], depths[parents], 0)
    copies = np.ones(len(parents), dtype=np.int64)
    # No trunk has a second copy in a tree that a pack can hold.
    tree = np.cumsum(forest.gaps < 0) - 1
    tree = np.concatenate([tree, tree[forest.first]])
    loads = np.zeros((int(tree.max(initial=-1)) + 1, lengths.shape[1]), dtype=np.int64)
    np.add.at(loads, tree, lengths)
    is_large: BoolArray = np.any(loads > capacities, axis=1)
    trunks = num_leaves + np.flatnonzero(is_large[tree[num_leaves:]])
    count = compiled(_count_copies, len(trunks), sum_calls=True) or _count_copies
    # The leaves of each trunk are added at once.
    loads_below = np.zeros_like(lengths)
    has_parent = np.flatnonzero(parents[:num_leaves] >= 0)
    np.add.at(loads_below, parents[has_parent], lengths[has_parent])
    count(trunks, depths, parents, lengths, capacities, loads_below, copies)
    totals = (lengths * copies[:, None]).sum(axis=0)
    packs = int((-(-totals // capacities)).max())
    return TreeBound(max(packs, int(copies.max(initial=0))), int(totals[0]))


def _count_copies(
    trunks: Int64Array,
    depths: Int64Array,
    parents: Int64Array,
    lengths: Int64Array,
    capacities: Int64Array,
    loads_below: Int64Array,
    copies: Int64Array,
) -> None:
    """Count the copies of each of some trunks, children before parents; to be compiled."""
    for trunk in trunks:
        number = copies[trunk]
        for budget in range(len(capacities)):
            room = capacities[budget] - depths[trunk, budget]
            if room > 0:
                number = max(number, -(-loads_below[trunk, budget] // room))
        copies[trunk] = number
        parent = parents[trunk]
        if parent >= 0:
            copies[parent] = max(copies[parent], number)
            for budget in range(len(capacities)):
                loads_below[parent, budget] += (
                    loads_below[trunk, budget] + lengths[trunk, budget] * number
                )

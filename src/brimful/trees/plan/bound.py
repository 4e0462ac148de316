"""A lower bound on the packs, and on the tokens in them, of any plan of a forest."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from brimful.base.compiling import compiled
from brimful.base.typing import Int64Array
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
    lengths = depths - forest.depths_of(parents)
    # The last number of both is of no trunk.
    copies = np.ones(len(parents) + 1, dtype=np.int64)
    loads_below = np.zeros((len(parents) + 1, len(capacities)), dtype=np.int64)
    # The leaves of each trunk are added at once.
    np.add.at(loads_below, parents[:num_leaves], lengths[:num_leaves])
    count = compiled(_count_copies, len(forest.first), sum_calls=True) or _count_copies
    count(num_leaves, depths, parents, lengths, capacities, loads_below, copies)
    totals = (lengths * copies[:-1, None]).sum(axis=0)
    packs = int((-(-totals // capacities)).max())
    return TreeBound(max(packs, int(copies[:-1].max(initial=0))), int(totals[0]))


def _count_copies(
    num_leaves: int,
    depths: Int64Array,
    parents: Int64Array,
    lengths: Int64Array,
    capacities: Int64Array,
    loads_below: Int64Array,
    copies: Int64Array,
) -> None:
    """Count the copies of each trunk, children before parents; to be compiled."""
    for trunk in range(num_leaves, len(parents)):
        num_copies = copies[trunk]
        for budget in range(len(capacities)):
            room = capacities[budget] - depths[trunk, budget]
            if room > 0:
                num_copies = max(num_copies, -(-loads_below[trunk, budget] // room))
        copies[trunk] = num_copies
        parent = parents[trunk]
        copies[parent] = max(copies[parent], num_copies)
        for budget in range(len(capacities)):
            loads_below[parent, budget] += (
                loads_below[trunk, budget] + lengths[trunk, budget] * num_copies
            )

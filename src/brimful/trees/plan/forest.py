"""The forest of all samples: leaves in the order of their tokens, and the trunks that they share.

::

    leaf      tokens      shared with the leaf before       trunks
    0         a b c d     0                                 a b c    of leaves 0, 1
    1         a b c x y   3                                 a b      of leaves 0, 1, 2
    2         a b z       2
    3         q r         0                                 leaf 3 is alone

Everything that leaves share is known from neighbors: what leaves ``i < j`` share is the least of
``shared[i + 1 … j]``. So the size of any set of leaves is a sum over its neighbors::

    size of {0, 2} = 4 + (3 - 2) = a b c d, and z

A budget that is counted along the path adds up in the same way: squares of lengths, patches.
"""

from __future__ import annotations

from array import array
from collections.abc import MutableSequence, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from brimful.base.compiling import compiled
from brimful.base.typing import Int64Array
from brimful.trees.prefixes import lowest

CRUMB = 16
"""Tokens that cost less than a segment: a trunk below another trunk joins it if this repeats
fewer.
"""

_WORTH_COMPILING = 500_000
"""Leaves from which loading compiled code, a second, is faster than plain Python."""

_NO_TRUNK = -1


@dataclass(frozen=True, eq=False)
class Forest:
    """Leaves and trunks. A leaf is a sample, a trunk is shared by at least two leaves.

    Nodes are leaves ``0 … n - 1`` and after them the trunks, each after all nodes below it.

    Attributes:
        depths: ``int64[num_nodes, num_budgets]``: how much of each budget the path to the end of
            each node takes; of tokens, the first budget, this is its depth. Leaves are in
            dictionary order.
        parents: ``int64[num_nodes]``: the trunk that a node continues; -1 for none.
        gaps: ``int64[num_leaves]``: the deepest trunk that leaf ``i`` shares with leaf ``i - 1``; -1
            for none.
        first, stop: ``int64[num_trunks]``: the leaves below each trunk.
    """

    depths: Int64Array
    parents: Int64Array
    gaps: Int64Array
    first: Int64Array
    stop: Int64Array

    @classmethod
    def of(cls, sizes: Int64Array, shared: Int64Array) -> Forest:
        """Find the trunks.

        Args:
            sizes: ``int64[num_leaves, num_budgets]``: what each sample takes alone; tokens first.
            shared: ``int64[num_leaves, num_budgets]``: how much of it is shared with the leaf
                before; 0 tokens where a tree begins.

        Cost: O(n).

        >>> forest = Forest.of(np.array([[4], [5], [3], [2]]), np.array([[0], [3], [2], [0]]))
        >>> forest.depths[:, 0].tolist(), forest.parents.tolist()
        ([4, 5, 3, 2, 3, 2], [4, 4, 5, -1, 5, -1])
        """
        num_leaves = len(sizes)
        common = shared[:, 0]
        # Most leaves of many data sets are alone.
        is_shared = np.append(common > 0, False)
        indices = np.flatnonzero(is_shared[:-1] | is_shared[1:])
        count = len(indices)
        fillings = [(2 * count, -1), (count, -1), *[(count, 0)] * 4, (count + 1, 0)]
        find = compiled(_find_trunks, count, worth=_WORTH_COMPILING, sum_calls=True)
        # Python reads a number of its own arrays in a third of the time that one of NumPy takes.
        found = [array("q", [value]) * size for size, value in fillings]
        columns = [np.frombuffer(nodes, dtype=np.int64) for nodes in found]
        if find is not None:
            num_trunks = find(np.ascontiguousarray(common[indices]), *columns)
        else:
            num_trunks = _find_trunks(array("q", common[indices].tobytes()), *found)
        parents_of_indices, gaps_of_indices, *of_trunks = columns
        first, last, row, closing = (column[:num_trunks] for column in of_trunks[:4])
        # Children close before their parents, so trunks are numbered as they close.
        order = np.empty(num_trunks, dtype=np.int64)
        order[closing] = np.arange(num_trunks)
        # The last number is the one of no trunk.
        nodes = np.append(num_leaves + closing, _NO_TRUNK)
        parents = np.full(num_leaves + num_trunks, _NO_TRUNK, dtype=np.int64)
        gaps = np.full(num_leaves, _NO_TRUNK, dtype=np.int64)
        parents[indices] = nodes[parents_of_indices[:count]]
        parents[num_leaves:] = nodes[parents_of_indices[count:]][order]
        gaps[indices] = nodes[gaps_of_indices]
        first, last, row = (indices[column[order]] for column in (first, last, row))
        return cls(np.concatenate([sizes, shared[row]]), parents, gaps, first, last + 1)

    @property
    def num_leaves(self) -> int:
        """Leaves, which are samples."""
        return len(self.gaps)

    @cached_property
    def sums(self) -> Int64Array:
        """``int64[num_leaves + 1, num_budgets]``: running sum of what each leaf adds to the leaf
        before it.
        """
        additions = self.added_by(
            np.arange(self.num_leaves) - 1, np.arange(self.num_leaves), self.gaps
        )
        sums = np.zeros((self.num_leaves + 1, self.depths.shape[1]), dtype=np.int64)
        np.cumsum(additions, axis=0, out=sums[1:])
        return sums

    def depths_of(self, trunks: Int64Array) -> Int64Array:
        """Return the depths of trunks, 0 for -1: ``int64[n, num_budgets]``."""
        return np.where((trunks != _NO_TRUNK)[:, None], self.depths[trunks], 0)

    def added_by(self, before: Int64Array, leaves: Int64Array, trunks: Int64Array) -> Int64Array:
        """Return what leaves add to a pack in which another leaf is the one before them.

        This includes the room of a fork: a trunk repeats its last token for each branch after its
        first.

        Args:
            before: ``int64[n]``, the leaf before each leaf in its pack.
            leaves: ``int64[n]``.
            trunks: ``int64[n]``, the deepest trunk of both, -1 for none.

        Returns:
            ``int64[n, num_budgets]``.
        """
        upto = self.depths_of(trunks)
        additions = self.depths[leaves] - upto
        ends = np.minimum(self.depths[before, 0], self.depths[leaves, 0])
        additions[:, 0] += (trunks != _NO_TRUNK) & (ends > upto[:, 0])
        return additions

    def loads(self, first: Int64Array, stop: Int64Array) -> Int64Array:
        """Return the size of each range of leaves, with their trunks from the root:
        ``int64[n, num_budgets]``.
        """
        return self.depths[first] + self.sums[stop] - self.sums[first + 1]

    def between(self, before: Int64Array, leaves: Int64Array) -> Int64Array:
        """Return the deepest trunk that pairs of leaves share, -1 for none: ``int64[n]``.

        Args:
            before: ``int64[n]``, leaves.
            leaves: ``int64[n]``, later leaves.
        """
        depths = self.depths_of(self.gaps)[:, 0]
        return self.gaps[lowest(depths, before + 1, leaves + 1)]

    def without_crumbs(self) -> Forest:
        """Return the forest in which each crumb is repeated in its branches: a trunk below another
        trunk, if this repeats few tokens.

        A trunk in whose end a sample ends is a segment in any case.

        >>> forest = Forest.of(np.array([[90], [93], [95]]), np.array([[0], [80], [70]]))
        >>> forest.without_crumbs().depths[:, 0].tolist()  # 10 tokens are repeated for one branch
        [90, 93, 95, 70]
        """
        num_leaves, parents, tokens = self.num_leaves, self.parents, self.depths[:, 0]
        num_nodes = len(parents)
        has_parent = parents != _NO_TRUNK
        is_branch = has_parent & (tokens > tokens[parents])
        branches = np.bincount(parents[is_branch], minlength=num_nodes)
        is_end = np.zeros(num_nodes, dtype=np.bool_)
        is_end[parents[has_parent & ~is_branch]] = True
        is_crumb = has_parent & ~is_end
        is_crumb[:num_leaves] = False
        # The last number is the one of no trunk.
        target = np.append(np.arange(num_nodes), _NO_TRUNK)
        for trunk in np.flatnonzero(is_crumb).tolist():
            parent = parents[trunk]
            if (branches[trunk] - 1) * (tokens[trunk] - tokens[parent]) < CRUMB:
                target[trunk] = parent
                branches[parent] += branches[trunk] - 1
        while not np.array_equal(further := target[target], target):
            target = further
        return Forest.of(self.depths[:num_leaves], self.depths_of(target[self.gaps]))


def _find_trunks(
    common: Sequence[int],
    parents: MutableSequence[int],
    gaps: MutableSequence[int],
    first: MutableSequence[int],
    last: MutableSequence[int],
    row: MutableSequence[int],
    closing: MutableSequence[int],
    stack: MutableSequence[int],
) -> int:
    """Find the trunks of leaves by a stack of open trunks, and return their number; to be compiled.

    Args:
        common: of ``n`` leaves: tokens that leaf ``i`` shares with leaf ``i - 1``.
        parents: of ``2 n`` nodes, leaves and then trunks in the order in which they open, all -1;
            filled with numbers of trunks from 0.
        gaps: of leaves, all -1; filled with the trunk between each leaf and the one before it.
        first, last, row: filled for each trunk: its first leaf, its last, and a leaf that shares
            just the trunk with the one before it.
        closing: filled: how many trunks close before each.
        stack: room for ``n + 1`` numbers.

    Source: intervals of a suffix array, Abouelhoda, Kurtz and Ohlebusch (2004).
    """
    num_leaves = len(common)
    height, num_open, num_closed = 0, 0, 0
    for leaf in range(1, num_leaves + 1):
        depth = common[leaf] if leaf < num_leaves else 0
        below, start = leaf - 1, leaf - 1
        while height > 0 and common[row[stack[height - 1]]] > depth:
            height -= 1
            trunk = stack[height]
            parents[below] = trunk
            last[trunk] = leaf - 1
            closing[trunk] = num_closed
            num_closed += 1
            below, start = num_leaves + trunk, first[trunk]
        if depth > 0:
            if height == 0 or common[row[stack[height - 1]]] < depth:
                stack[height] = num_open
                first[num_open], row[num_open] = start, leaf
                height += 1
                num_open += 1
            parents[below] = stack[height - 1]
            gaps[leaf] = stack[height - 1]
    return num_open

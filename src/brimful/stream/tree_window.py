"""Window of samples of a stream that share the tokens that they begin with."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from brimful.base.ragged import offsets_of
from brimful.base.typing import AnyIntArray, Int64Array, Lengths
from brimful.plan.packing import Packing, PackResult
from brimful.trees.plan.bound import bound_of_trees
from brimful.trees.plan.forest import Forest
from brimful.trees.plan.pack_trees import pack_forest
from brimful.trees.plan.segments import TreeSegments, loads_of_trees, segments_of
from brimful.trees.prefixes import find_prefixes


class TreeWindow:
    """The forest of the samples of a window.

    Args:
        keys: tokens of each sample, as in ``find_prefixes``.
        least: shorter prefixes are not shared.

    >>> window = TreeWindow([np.array([5, 6, 7]), np.array([8]), np.array([5, 6, 9])], least=2)
    >>> packing = Packing(np.array([0, 2, 3]), np.array([0, 2, 1]))
    >>> window.loads(packing).tolist(), window.segments(packing).parents.tolist()
    ([5, 1], [-1, 0, 0, -1])
    """

    def __init__(self, keys: Sequence[AnyIntArray], *, least: int) -> None:
        lengths = np.array([len(row) for row in keys], dtype=np.int64)
        prefixes = find_prefixes(np.concatenate(keys), offsets_of(lengths), least=least)
        shared_tokens = prefixes.shared.astype(np.int64)
        self.order = prefixes.order
        """``int64[num_samples]``: the sample of each leaf."""
        self._whole = Forest.of(lengths[self.order, None], shared_tokens[:, None])
        self._forest = self._whole.without_crumbs()
        self._leaf_of = np.empty(len(lengths), dtype=np.int64)
        self._leaf_of[self.order] = np.arange(len(lengths))

    def pack(self, capacity: int, pack: Callable[[Lengths], Packing]) -> Packing:
        """Pack the samples.

        Args:
            capacity: maximum tokens of a pack, forks included.
            pack: packs items that share nothing, by their lengths.

        Returns:
            Packs of samples, by their numbers in the window.
        """
        capacities = np.array([capacity], dtype=np.int64)
        bound = bound_of_trees(self._whole, capacities).packs

        def pack_loads(loads: Int64Array) -> PackResult[Packing]:
            return PackResult(pack(loads[:, 0].astype(np.int32)), bound)

        packs = pack_forest(self._forest, capacities, pack_loads, bound=bound).packs
        return Packing(packs.offsets, self.order[packs.items])

    def loads(self, packing: Packing) -> Int64Array:
        """Return the tokens of packs of samples, forks included: ``int64[num_packs]``."""
        return loads_of_trees(self._forest, self._leaves(packing))[:, 0]

    def segments(self, packing: Packing) -> TreeSegments:
        """Return the segments of packs of samples, whose ``leaves`` are numbers in ``order``."""
        return segments_of(self._forest, self._leaves(packing))

    def _leaves(self, packing: Packing) -> Packing:
        """Return packs of leaves, ascending within each."""
        leaves = self._leaf_of[packing.items]
        pack = np.repeat(np.arange(len(packing)), packing.sizes)
        return Packing(packing.offsets, leaves[np.lexsort((leaves, pack))])

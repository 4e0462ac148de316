"""Search for a step of trees."""

from __future__ import annotations

import math

import numpy as np

from brimful.base.ragged import offsets_of, sums_of
from brimful.base.typing import Int64Array
from brimful.rl.spread_trees import spread_trees
from brimful.rl.step_plan import StepPlan
from brimful.rl.step_search import StepSearch
from brimful.rl.step_trees import StepForest


class TreeSearch(StepSearch):
    """Search for micro-batches with room for trees, whose leaves are the samples.

    Args:
        forest: the samples.
        ranks, multiple_of, is_step_barrier: see ``StepSearch``.
    """

    def __init__(
        self, forest: StepForest, ranks: int, multiple_of: int, is_step_barrier: bool
    ) -> None:
        super().__init__(ranks, multiple_of, is_step_barrier)
        self._forest = forest

    def least_micro_batches(self) -> int:
        return -(-self._forest.bound // self._ranks)

    def bins(self, micro_batches: int) -> Int64Array | None:
        return spread_trees(
            self._forest.forest,
            self._forest.capacities,
            num_ranks=self._ranks,
            micro_batches=micro_batches,
            is_step_barrier=self._is_step_barrier,
        )

    def plan_of(self, bin_of: Int64Array, micro_batches: int, targets: Int64Array) -> StepPlan:
        shape = self._ranks, micro_batches
        trees, costs = self._forest.trees(bin_of, math.prod(shape))
        return StepPlan(
            capacity=int(self._forest.capacities[0]),
            dp_world_size=self._ranks,
            num_micro_batches=micro_batches,
            order=trees.samples,
            offsets=offsets_of(np.bincount(bin_of, minlength=math.prod(shape))),
            tokens=sums_of(trees.lengths, trees.offsets).reshape(shape),
            costs=costs.reshape(shape),
            loss_tokens=targets,
            trees=trees,
        )

    def refuse_too_few(self, micro_batches: int) -> None:
        self.refuse_fewer(self._forest.forest.num_leaves, "sample", micro_batches)

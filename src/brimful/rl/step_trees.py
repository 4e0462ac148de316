"""Samples of a step as a forest: what they share, and what each adds to its micro-batch; and the
search for a step of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from brimful.base.ragged import offsets_of, sums_of
from brimful.base.sharing import LEAST_SHARED
from brimful.base.typing import Float64Array, Int64Array, IntArrayLike
from brimful.base.wording import setting
from brimful.errors import InvalidLengthsError, SettingsError
from brimful.plan.policies.budgets import DERIVED
from brimful.plan.schedule.cost_model import CostModel
from brimful.plan.schedule.pack_costs import pack_costs, sample_costs
from brimful.rl.spread_trees import spread_trees
from brimful.rl.step_items import StepCost, StepItems
from brimful.rl.step_plan import StepPlan, StepTrees
from brimful.rl.step_search import StepSearch
from brimful.trees.plan.bound import bound_of_trees
from brimful.trees.plan.forest import Forest
from brimful.trees.plan.segments import loads_of_trees, packs_of, segments_of
from brimful.trees.prefixes import Prefixes, find_prefixes

NO_LIMIT = 2**62
"""Capacity of what is not limited."""

_PATCHES = "patches of the tower"


def find_step_prefixes(
    input_ids: Sequence[npt.ArrayLike],
    *,
    groups: IntArrayLike | None = None,
    least: int = LEAST_SHARED,
) -> Prefixes:
    """Find the prefixes that the samples of a step share, for ``plan_step(…, prefixes=…)``.

    Args:
        input_ids: tokens of each sample, prompt and answer; arrays are read faster than lists. Of
            samples with media, keys that are equal where everything the model reads is.
        groups: ``int[num_samples]``: only samples of one number share, such as rollouts of one
            prompt from one version of the policy; None for all.
        least: shorter prefixes count as none.

    Raises:
        SettingsError: ``least`` is below 1.

    >>> prefixes = find_step_prefixes([[5, 6, 7], [8], [5, 6, 9]], least=2)
    >>> prefixes.order.tolist(), prefixes.shared.tolist()
    ([0, 2, 1], [0, 2, 0])
    """
    rows = [np.asarray(row) for row in input_ids]
    offsets = offsets_of([len(row) for row in rows])
    return find_prefixes(np.concatenate(rows), offsets, groups=groups, least=least)


class StepForest(NamedTuple):
    """The samples of a step as leaves of a forest, whose last column is the cost."""

    forest: Forest
    """Budgets, patches if they cost something, and the cost in whole numbers; without crumbs."""
    bound: int
    """Micro-batches that any plan needs."""
    capacities: Int64Array
    """``int64[num_columns - 1]``: of all columns except the cost."""
    samples: Int64Array
    """``int64[num_leaves]``: the sample of each leaf."""
    model: CostModel
    """Cost of tokens and patches."""
    has_patches: bool
    """True if the column before the last is patches that cost something."""

    @classmethod
    def of(cls, items: StepItems, prefixes: Prefixes, cost: StepCost | None) -> StepForest:
        """Return the forest of all samples of a step.

        A budget counts along the path of a sample, like its tokens, if it follows from them or if
        ``prefixes.amounts`` has it, and for each sample otherwise: targets are not shared. The
        cost of a token is the one that it has in its sample.

        Raises:
            InvalidLengthsError: prefixes of other samples.
            SettingsError: the costs are numbers for each sample.
        """
        order = prefixes.order
        _check_prefixes(prefixes, items.sizes[:, 0])
        if not (cost is None or isinstance(cost, CostModel)):
            raise SettingsError(
                f"{setting('cost')} of each sample says nothing of the part that it shares: give a "
                "CostModel, or none to count tokens"
            )
        model = CostModel(linear=1, quadratic=0) if cost is None else cost
        columns = dict(zip(items.budgets.names, items.sizes[order].T, strict=True))
        tokens = prefixes.shared.astype(np.int64)
        trunk_columns = {
            name: tokens
            if name == "tokens"
            else prefixes.amounts[name]
            if name in prefixes.amounts
            else DERIVED[name](tokens)
            if name in DERIVED and name != "samples"
            else np.zeros_like(tokens)
            for name in columns
        }
        costs = [sample_costs(one["tokens"], model) for one in (columns, trunk_columns)]
        if items.patches is not None:
            columns[_PATCHES] = items.patches[order]
            trunk_columns[_PATCHES] = prefixes.amounts.get("patches", np.zeros_like(tokens))
            for one, values in zip((columns, trunk_columns), costs, strict=True):
                values += model.encoder_linear * one[_PATCHES]
        # Sums of all samples, times the micro-batches, are compared in 64 bits.
        levels = 2.0 ** min(31, 62 - 2 * len(order).bit_length())
        unit = max(float(costs[0].max()), 1e-300) / levels
        sizes, of_trunks = (
            np.stack([*one.values(), (values / unit).astype(np.int64)], axis=1)
            for one, values in zip((columns, trunk_columns), costs, strict=True)
        )
        forest = Forest.of(sizes, of_trunks)
        limits = [NO_LIMIT] * (len(columns) - len(items.budgets.names))
        capacities = np.append(items.budgets.capacities, np.array(limits, dtype=np.int64))
        bound = bound_of_trees(forest, np.append(capacities, NO_LIMIT)).packs
        forest = forest.without_crumbs()
        return cls(forest, bound, capacities, order, model, items.patches is not None)

    def trees(self, bin_of: Int64Array, num_bins: int) -> tuple[StepTrees, Float64Array]:
        """Return the trees of micro-batches, and the cost of each.

        Args:
            bin_of: ``int64[num_leaves]``, the micro-batch of each leaf.
            num_bins: number of micro-batches.
        """
        packs = packs_of(bin_of, num_bins)
        one = segments_of(self.forest, packs)
        patches = loads_of_trees(self.forest, packs)[:, -2] if self.has_patches else None
        costs = pack_costs(one.offsets, one.lengths, self.model, depths=one.starts, patches=patches)
        samples = self.samples[one.leaves]
        return StepTrees(one.offsets, samples, one.starts, one.lengths, one.parents), costs


def _check_prefixes(prefixes: Prefixes, lengths: Int64Array) -> None:
    """Refuse prefixes of other samples than the ones with these lengths.

    Raises:
        InvalidLengthsError: names both numbers.
    """
    order, shared_tokens = prefixes.order, prefixes.shared
    if len(order) != len(lengths):
        raise InvalidLengthsError(
            f"the prefixes are of {len(order):,} samples and the lengths of {len(lengths):,}: "
            "find them in the samples of this step"
        )
    tokens = lengths[order]
    too_long = shared_tokens > np.minimum(tokens, np.roll(tokens, 1))
    if too_long.any():
        index = int(np.argmax(too_long))
        raise InvalidLengthsError(
            f"sample {int(order[index])} has {int(tokens[index]):,} tokens and the prefixes say "
            f"that it shares {int(shared_tokens[index]):,} with sample {int(order[index - 1])}: find them "
            "in the samples of this step"
        )


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

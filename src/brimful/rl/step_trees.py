"""Samples of a step as a forest: what they share, and what each adds to its micro-batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from brimful.base.ragged import offsets_of
from brimful.base.typing import Float64Array, Int64Array, IntArrayLike
from brimful.base.wording import setting
from brimful.errors import InvalidLengthsError, SettingsError
from brimful.lengths.prefixes import LEAST_SHARED, Prefixes, find_prefixes
from brimful.plan.policies.budgets import DERIVED
from brimful.plan.schedule.cost_model import CostModel
from brimful.plan.schedule.pack_costs import sample_costs
from brimful.plan.trees.forest import Forest
from brimful.plan.trees.segments import loads_of_trees, packs_of, segments_of
from brimful.rl.step_items import StepCost, StepItems
from brimful.rl.step_plan import StepTrees

NO_LIMIT = 2**62
"""Capacity of costs."""


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
    """Budgets, and the cost in whole numbers."""
    samples: Int64Array
    """``int64[num_leaves]``: the sample of each leaf."""
    unit: float
    """Cost of the model for a cost of 1 in the forest."""

    @classmethod
    def of(cls, items: StepItems, prefixes: Prefixes, cost: StepCost | None) -> StepForest:
        """Return the forest of all samples of a step.

        A budget counts along the path of a sample, like its tokens, if it follows from them or if
        ``prefixes.amounts`` has it, and for each sample otherwise: targets are not shared. The
        cost of a token is the one that it has in its sample, so that a segment costs the difference
        between its end and its begin.

        Raises:
            InvalidLengthsError: prefixes of other samples.
            SettingsError: the costs are numbers for each sample.
        """
        order, names = prefixes.order, items.budgets.names
        tokens = items.sizes[order, 0]
        shared_tokens = prefixes.shared.astype(np.int64)
        if len(order) != len(items.sizes):
            raise InvalidLengthsError(
                f"the prefixes are of {len(order):,} samples and the lengths of "
                f"{len(items.sizes):,}: find them in the samples of this step"
            )
        too_long = shared_tokens > np.minimum(tokens, np.roll(tokens, 1))
        if too_long.any():
            place = int(np.argmax(too_long))
            raise InvalidLengthsError(
                f"sample {int(order[place])} has {int(tokens[place]):,} tokens and the prefixes "
                f"say that it shares {int(shared_tokens[place]):,} with sample "
                f"{int(order[place - 1])}: find them in the samples of this step"
            )
        if not (cost is None or isinstance(cost, CostModel)):
            raise SettingsError(
                f"{setting('cost')} of each sample says nothing of the part that it shares: give a "
                "CostModel, or none to count tokens"
            )
        sizes = np.append(items.sizes[order], np.zeros((len(order), 1), np.int64), axis=1)
        shared = np.zeros_like(sizes)
        shared[:, 0] = shared_tokens
        for column, name in enumerate(names[1:], start=1):
            if name in prefixes.amounts:
                shared[:, column] = prefixes.amounts[name]
            elif name in DERIVED and name != "samples":
                shared[:, column] = DERIVED[name](shared_tokens)
        costs = np.stack([_costs(sizes[:, 0], cost), _costs(shared_tokens, cost)])
        # Sums of all samples, times the micro-batches, are compared in 64 bits.
        levels = 2.0 ** min(31, 62 - 2 * len(order).bit_length())
        unit = max(float(costs.max()), 1e-300) / levels
        sizes[:, -1], shared[:, -1] = (costs / unit).astype(np.int64)
        return cls(Forest.of(sizes, shared), order, unit)

    def trees(self, bin_of: Int64Array, num_bins: int) -> tuple[StepTrees, Float64Array]:
        """Return the trees of micro-batches, and the cost of each.

        Args:
            bin_of: ``int64[num_leaves]``, the micro-batch of each leaf.
            num_bins: number of micro-batches.
        """
        packs = packs_of(bin_of, num_bins)
        segments = segments_of(self.forest, packs)
        costs = loads_of_trees(self.forest, packs)[:, -1].astype(np.float64) * self.unit
        return StepTrees(
            segments.offsets,
            self.samples[segments.leaves],
            segments.starts,
            segments.lengths,
            segments.parents,
        ), costs


def _costs(tokens: Int64Array, cost: StepCost | None) -> Float64Array:
    if isinstance(cost, CostModel):
        return sample_costs(tokens, cost)
    return tokens.astype(np.float64)

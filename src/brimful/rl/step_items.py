"""Samples of a step as items: sizes, costs and groups, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from brimful.base.typing import Float64Array, Int64Array, IntArrayLike, Lengths
from brimful.errors import InvalidLengthsError, OversizedSampleError, SettingsError
from brimful.lengths.table import LengthTable
from brimful.lengths.targets import as_lengths
from brimful.plan.packing import LengthsLike
from brimful.plan.policies.budgets import LOSS_TOKENS, Budgets
from brimful.plan.policies.groups import Groups, as_groups, group_items
from brimful.plan.policies.overflow import Overflow
from brimful.plan.schedule.balance import quantize
from brimful.plan.schedule.cost_model import CostModel
from brimful.plan.schedule.pack_costs import pack_costs, sample_costs
from brimful.rl.fill_bins import scattered

StepCost: TypeAlias = CostModel | npt.NDArray[np.floating] | Sequence[float]
"""A cost model, or the cost of each sample: ``float[num_samples]``, in any unit."""


class GroupsShare(str, Enum):
    """Unit that all samples of a group share."""

    RANK = "rank"
    """They are on one rank, in any of its micro-batches: for rollouts of a prompt, whose mean is
    computed there.
    """
    MICRO_BATCH = "micro_batch"
    """They are in one micro-batch: for preference pairs, whose loss needs both samples."""


@dataclass(frozen=True)
class StepItems:
    """The samples of a step.

    Attributes:
        budgets: names and capacities, tokens first.
        sizes: ``int64[num_samples, num_budgets]``.
        costs: ``float64[num_samples]``.
        weights: ``int64[num_samples]``: the costs as whole numbers of at least 1, the same on every
            platform.
        groups: members of each group; None without groups.
        has_own_costs: costs do not follow from the lengths: samples of equal length may have
            different costs.
        patches: ``int32[num_samples]``: patches, if they cost something; None otherwise.
    """

    budgets: Budgets
    sizes: Int64Array
    costs: Float64Array
    weights: Int64Array
    groups: Groups | None
    has_own_costs: bool
    patches: Lengths | None = None

    def group_sums(self, values: Int64Array) -> Int64Array:
        """Sum values of samples by group: ``int64[num_groups]``."""
        assert self.groups is not None
        return np.add.reduceat(values[self.groups.members], self.groups.offsets[:-1])


def prepare_step_items(
    lengths: LengthsLike,
    *,
    capacity: int,
    cost: StepCost | None,
    groups: IntArrayLike | None,
    budgets: Mapping[str, int] | None,
    loss_tokens: IntArrayLike | None = None,
) -> StepItems:
    """Check the samples of a step; arguments and errors are as in ``plan_step``. Pure: no I/O."""
    limits = Budgets.of(capacity, budgets)
    tokens = lengths.tokens if isinstance(lengths, LengthTable) else as_lengths(lengths)
    if len(tokens) == 0:
        raise InvalidLengthsError("no lengths: nothing to plan")
    if int(tokens.min()) < 1:
        sample = int(np.argmax(tokens < 1))
        raise InvalidLengthsError(
            f"sample {sample} has length {int(tokens[sample])}; every sample needs at least 1 token"
        )
    if len(limits.names) == 1:
        sizes = tokens.astype(np.int64).reshape(-1, 1)
    else:
        columns = lengths.budgets if isinstance(lengths, LengthTable) else {"tokens": tokens}
        if loss_tokens is not None:
            columns = {**columns, LOSS_TOKENS: as_lengths(loss_tokens, LOSS_TOKENS)}
        table = LengthTable(columns)
        sizes = limits.sizes(table, lengths=tokens, sample_ids=None, rounded=tokens)
    if (sizes.max(axis=0) > limits.capacities).any():
        text, larger, _ = limits.describe_oversized(sizes)
        raise OversizedSampleError(f"{text}. Cut or leave them out before, or {larger}")
    patches = None
    if cost is None:
        costs = sizes[:, 0].astype(np.float64)
    elif isinstance(cost, CostModel):
        if cost.encoder_linear and isinstance(lengths, LengthTable):
            patches = lengths.budgets.get("patches")
        if patches is not None:
            costs = pack_costs(np.arange(len(tokens) + 1), sizes[:, 0], cost, patches=patches)
        else:
            costs = sample_costs(sizes[:, 0], cost)
    else:
        costs = np.asarray(cost)
        if costs.dtype.kind not in "iuf" or costs.shape != (len(tokens),):
            raise SettingsError(
                f"cost must be a CostModel, or one number for each of {len(tokens):,} samples, "
                f"and is {costs.dtype} of shape {costs.shape}"
            )
        costs = costs.astype(np.float64)
    # Sums of weights, times a number of micro-batches, are compared in 64 bits.
    excess = max(0, 31 - (62 - 2 * len(tokens).bit_length()))
    weights = np.maximum(quantize(costs, len(tokens))[:, 0] >> excess, 1)
    grouping = None
    if groups is not None:
        ids = as_groups(groups, num_samples=len(tokens), policy=Overflow.ERROR)
        grouping = group_items(sizes, ids)
    has_own_costs = cost is not None and not isinstance(cost, CostModel)
    return StepItems(limits, sizes, costs, weights, grouping, has_own_costs, patches)


def samples_of(groups: Groups, bin_of_group: Int64Array) -> Int64Array:
    """Return the bin of each sample, the bin of its group: ``int64[num_samples]``."""
    return scattered(np.repeat(bin_of_group, np.diff(groups.offsets)), groups.members)

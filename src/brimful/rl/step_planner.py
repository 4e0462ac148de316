"""Entry point of planning a step: from lengths to a ``StepPlan``."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from brimful.base.arguments import CAPACITY_NAMES, understands
from brimful.base.checks import choice_of, setting_number, whole_number
from brimful.base.compiling import warming_up
from brimful.base.typing import Int64Array, IntArrayLike
from brimful.errors import InvalidLengthsError, SettingsError
from brimful.lengths.targets import as_lengths
from brimful.plan.packing import LengthsLike
from brimful.plan.planner import plan_packs
from brimful.plan.schedule.balance import Barrier
from brimful.rl.context_parallel import plan_context_parallel
from brimful.rl.item_search import ItemSearch
from brimful.rl.step_items import (
    GroupsShare,
    StepCost,
    StepItems,
    prepare_step_items,
)
from brimful.rl.step_plan import StepPlan
from brimful.rl.step_search import StepSearch
from brimful.rl.step_trees import StepForest, TreeSearch, find_step_prefixes
from brimful.trees.prefixes import Prefixes


@understands(capacity=(*CAPACITY_NAMES, "max_tokens_per_gpu", "max_token_len"))
def plan_step(
    lengths: LengthsLike,
    *,
    capacity: int,
    dp_world_size: int,
    cost: StepCost | None = None,
    barrier: Barrier | str = Barrier.MICRO_BATCH,
    groups: IntArrayLike | None = None,
    groups_share: GroupsShare | str = GroupsShare.RANK,
    multiple_of: int = 1,
    min_micro_batches: int = 1,
    budgets: Mapping[str, int] | None = None,
    loss_tokens: IntArrayLike | None = None,
    prefixes: Prefixes | None = None,
) -> StepPlan:
    """Divide the samples of one step among ranks and micro-batches of equal cost.

    For training with new samples at each step, such as reinforcement learning. No micro-batch
    exceeds a budget, all ranks have the same number of micro-batches, none is empty, and every
    sample is in exactly one. The number is the least for which room is found, rounded up to
    ``multiple_of``: then samples are spread thinner, without dummies.

    Pure: no I/O, no randomness, no communication; the same arguments give the same plan on every
    rank. Loads are whole numbers, so that comparisons do not depend on rounding. From 100 samples,
    compiled code runs if numba is installed: ``warm_up`` loads it before the first step.

    ::

        lengths 3 3 5 6 1 1, capacity 7, 2 ranks      19 tokens: at least 3 micro-batches, 4 for equal numbers
        rank 0     6   | 3
        rank 1     5 1 | 3 1

    Groups that share a rank limit the balance: a step takes at least the time of its slowest group
    and, if ranks wait at each micro-batch, at least the time of the long samples of one group in
    sequence. Several assignments of groups to ranks are planned, each is improved by exchanges
    between ranks, and the shortest step is taken. In practice it is within a thousandth of this
    bound if ranks wait once, and a few percent above equal ranks if they wait at each micro-batch.

    With ``prefixes``, samples that begin with the same tokens share them in a micro-batch: its
    tokens and its cost are of the tree, and samples stay together as far as this makes the step
    shorter. ``pack_step`` makes packs of trees from this plan.

    Args:
        lengths: whole numbers, tokens of each sample; or a ``LengthTable``, whose columns
            ``budgets`` name.
        capacity: maximum tokens of a micro-batch. Trainers' names, such as ``max_tokens_per_gpu``,
            are accepted.
        dp_world_size: data-parallel ranks.
        cost: model of the cost to balance (``CostModel.of_model`` reads a ``config.json``), or the
            cost of each sample; None counts tokens, which is right only for short samples.
        barrier: the points at which ranks wait for each other: ``micro_batch`` if parameters are
            sharded (FSDP, ZeRO-3), ``step`` if gradients are summed once (Megatron, DDP, ZeRO-1).
        groups: ``int64[num_samples]``: samples of the same number, from 0, stay together; a sample
            with -1 is alone.
        groups_share: unit that a group shares: a ``rank``, in any of its micro-batches, or one
            ``micro_batch``.
        multiple_of: the number of micro-batches of a rank is a multiple of this number, such as
            pipeline stages.
        min_micro_batches: minimum micro-batches of a rank.
        budgets: limits of other quantities in a micro-batch, see ``plan_packs``: columns of the
            table, ``samples``, ``squares``, and ``loss_tokens`` if they are given.
        loss_tokens: ``int64[num_samples]``: targets of each sample, for ``StepPlan.weights``; all
            tokens if None.
        prefixes: prefixes that samples share, from ``find_step_prefixes``; None to share nothing.
            A branch may repeat the last token of its trunk, so each one after the first of its
            trunk needs room for one token more.

    Raises:
        InvalidLengthsError: no samples, a length below 1, fewer samples than the ranks need
            micro-batches, or groups that leave a rank with too few.
        OversizedSampleError: a sample, or a group that shares a micro-batch, exceeds a capacity.
        SettingsError: an impossible number, an unknown name or budget; groups, or the cost of each
            sample, with prefixes.

    Cost: O(n·log n); about ten times as long with groups; under several budgets O(n·micro-batches).
    Source: longest processing time first (Graham, 1969), in slices of similar cost (hierarchical
    balance packing, Yao et al., 2025), each filled up to the cost of its most expensive sample.

    >>> step = plan_step([3, 3, 5, 6, 1, 1], capacity=7, dp_world_size=2)
    >>> [[rows.tolist() for rows in step.micro_batches(rank)] for rank in range(2)]
    [[[3], [1]], [[2, 4], [0, 5]]]
    >>> from brimful.rl import find_step_prefixes
    >>> samples = [[5, 6, 7, 8], [1, 2, 3], [5, 6, 7, 9], [1, 2, 4]]
    >>> step = plan_step(
    ...     [4, 3, 4, 3], capacity=6, dp_world_size=2, prefixes=find_step_prefixes(samples, least=2)
    ... )
    >>> step.micro_batches(0)[0].tolist(), step.micro_batches(1)[0].tolist(), step.tokens.tolist()
    ([0, 2], [1, 3], [[5], [4]])
    """
    multiple = whole_number("multiple_of", multiple_of, minimum=1)
    ranks = whole_number("dp_world_size", dp_world_size, minimum=1)
    min_micro_batches = whole_number("min_micro_batches", min_micro_batches, minimum=1)
    capacity = setting_number("capacity", capacity, minimum=1, maximum=2**31 - 1)
    is_step_barrier = choice_of(Barrier, barrier, argument="barrier") is Barrier.STEP
    unit = choice_of(GroupsShare, groups_share, argument="groups_share")
    items = prepare_step_items(
        lengths,
        capacity=capacity,
        cost=cost,
        groups=groups,
        budgets=budgets,
        loss_tokens=loss_tokens,
    )
    targets = _targets(items, loss_tokens)
    search: StepSearch
    if prefixes is None:
        search = ItemSearch(items, ranks, multiple, is_step_barrier, unit is GroupsShare.RANK)
    else:
        if groups is not None:
            raise SettingsError(
                "groups keep samples on one rank, and prefixes divide them where that is faster: "
                "leave groups out, or give them to find_step_prefixes, whose samples share only "
                "within a group"
            )
        forest = StepForest.of(items, prefixes, cost)
        search = TreeSearch(forest, ranks, multiple, is_step_barrier)
    step = search.plan(min_micro_batches, targets)
    assert int(np.diff(step.offsets).min()) >= 1
    assert int(step.tokens.max()) <= capacity
    return step


def _targets(items: StepItems, loss_tokens: IntArrayLike | None) -> Int64Array:
    tokens = items.sizes[:, 0]
    if loss_tokens is None:
        return tokens.copy()
    targets = as_lengths(loss_tokens, "loss_tokens").astype(np.int64)
    if len(targets) != len(tokens):
        raise InvalidLengthsError(
            f"loss_tokens must be one number for each of {len(tokens):,} samples and are "
            f"{len(targets):,}"
        )
    wrong = (targets < 0) | (targets > tokens)
    if wrong.any():
        sample = int(np.argmax(wrong))
        raise InvalidLengthsError(
            f"loss_tokens: sample {sample} has {int(targets[sample]):,} targets in "
            f"{int(tokens[sample]):,} tokens"
        )
    return targets


def warm_up() -> bool:
    """Load the compiled code of ``plan_step``, ``find_step_prefixes``, ``plan_context_parallel`` and
    ``plan_packs``; compile it the first time.

    This takes some seconds on a new machine and half a second later; without this call, the first
    training step pays for it. After this call, plans of any size run compiled in this process.
    Without numba nothing is loaded, and plans are the same.

    Returns:
        True if compiled code is available.

    >>> warm_up()  # doctest: +SKIP
    True
    """
    with warming_up() as has_compiler:
        # Enough samples to reach every loop. Some cost more than the mean, so that slices are
        # filled to their level.
        lengths = np.r_[np.full(3, 64), np.arange(64) % 7 + 8]
        for barrier in ("micro_batch", "step"):
            plan_step(
                lengths,
                capacity=64,
                dp_world_size=2,
                cost=lengths.astype(np.float64) ** 2,
                barrier=barrier,
            )
        groups = np.arange(len(lengths)) // 2
        plan_step(
            lengths,
            capacity=64,
            dp_world_size=2,
            cost=lengths.astype(np.float64) ** 2,
            groups=groups,
        )
        plan_step(lengths, capacity=64, dp_world_size=2, budgets={"samples": 16})
        plan_context_parallel(lengths, max_tokens_per_rank=64, world_size=4)
        for dtype in (np.int32, np.int64):
            plan_packs(lengths.astype(dtype), capacity=64)
            samples = [np.arange(length).astype(dtype) // 8 for length in lengths.tolist()]
            prefixes = find_step_prefixes(samples, least=8)
            plan_step(lengths, capacity=64, dp_world_size=2, prefixes=prefixes)
    return has_compiler

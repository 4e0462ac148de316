"""Entry point of planning a step: from lengths to a ``StepPlan``."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from brimful.base.arguments import CAPACITY_NAMES, understands
from brimful.base.checks import choice_of, setting_number, whole_number
from brimful.base.compiling import warming_up
from brimful.base.ragged import offsets_of, sums_of
from brimful.base.typing import Int64Array, IntArrayLike
from brimful.base.wording import counted, setting
from brimful.errors import InvalidLengthsError, OversizedSampleError, SettingsError
from brimful.lengths.prefixes import Prefixes
from brimful.lengths.targets import as_lengths
from brimful.plan.packing import LengthsLike
from brimful.plan.planner import plan_packs
from brimful.plan.policies.groups import ALONE
from brimful.plan.schedule.balance import Barrier
from brimful.rl.context_parallel import plan_context_parallel
from brimful.rl.fill_bins import scattered
from brimful.rl.spread_samples import deal_large_first, placing_order, ranks_of_groups, spread
from brimful.rl.spread_trees import spread_trees
from brimful.rl.step_items import (
    GroupsShare,
    StepCost,
    StepItems,
    prepare_step_items,
    samples_of,
)
from brimful.rl.step_plan import StepPlan
from brimful.rl.step_trees import StepForest, find_step_prefixes
from brimful.rl.within_ranks import exchange_within_ranks, spread_within_ranks


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
    search: _Search | _TreeSearch
    if prefixes is None:
        search = _Search(items, ranks, multiple, is_step_barrier, unit is GroupsShare.RANK)
    else:
        if groups is not None:
            raise SettingsError(
                "groups keep samples on one rank, and prefixes divide them where that is faster: "
                "leave groups out, or give them to find_step_prefixes, whose samples share only "
                "within a group"
            )
        forest = StepForest.of(items, prefixes, cost)
        search = _TreeSearch(forest, ranks, multiple, is_step_barrier)
    micro_batches = -(-max(min_micro_batches, search.least_micro_batches()) // multiple) * multiple
    search.refuse_too_few(micro_batches)
    while (bin_of := search.bins(micro_batches)) is None:
        micro_batches += multiple
        search.refuse_too_few(micro_batches)
    step = search.plan(bin_of, micro_batches, targets)
    assert int(np.diff(step.offsets).min()) >= 1
    assert int(step.tokens.max()) <= capacity
    return step


class _Search:
    """Search for a number of micro-batches with room for all items."""

    def __init__(
        self,
        items: StepItems,
        ranks: int,
        multiple_of: int,
        is_step_barrier: bool,
        do_groups_share_ranks: bool,
    ) -> None:
        self._items = items
        self._ranks = ranks
        self._multiple_of = multiple_of
        self._is_step_barrier = is_step_barrier
        groups, capacities = items.groups, items.budgets.capacities
        self._is_grouped_by_rank = groups is not None and do_groups_share_ranks
        sizes, weights = items.sizes, items.weights
        if groups is not None:
            sizes, weights = groups.sizes, items.group_sums(weights)
            if not do_groups_share_ranks and (sizes > capacities).any():
                ids = np.arange(len(items.sizes))
                text, larger, _ = groups.describe_oversized(items.budgets, items.sizes, ids)
                raise OversizedSampleError(
                    f"{text}. Choose {setting('groups_share', 'rank')}, or {larger}"
                )
        # Items, or groups of items, in the order of placement.
        has_ties = items.has_own_costs or groups is not None
        self._order = placing_order(sizes, capacities, weights if has_ties else None)
        self._sizes, self._weights = sizes.take(self._order, axis=0), weights.take(self._order)

    def least_micro_batches(self) -> int:
        """Return a lower bound on the number of micro-batches of a rank."""
        items, capacities = self._items, self._items.budgets.capacities
        # Two items above half a capacity never share a micro-batch.
        num_needed = max(
            int((-(-items.sizes.sum(axis=0) // capacities)).max()),
            int((items.sizes > capacities // 2).sum(axis=0).max()),
        )
        least = -(-num_needed // self._ranks)
        if self._is_grouped_by_rank:
            least = max(least, int((-(-self._sizes // capacities)).max()))
        return least

    def bins(self, micro_batches: int) -> Int64Array | None:
        """Return the micro-batch of each sample; None if no room is found."""
        if self._is_grouped_by_rank:
            return self._bins_within_ranks(micro_batches)
        placement = spread(
            self._sizes,
            self._weights,
            self._items.budgets.capacities,
            num_ranks=self._ranks,
            micro_batches=micro_batches,
            is_step_barrier=self._is_step_barrier,
        )
        if placement is None:
            return None
        bin_of = scattered(placement, self._order)
        return bin_of if self._items.groups is None else samples_of(self._items.groups, bin_of)

    def _bins_within_ranks(self, micro_batches: int) -> Int64Array | None:
        items, groups, ranks = self._items, self._items.groups, self._ranks
        assert groups is not None
        capacities = items.budgets.capacities
        by_size = placing_order(
            items.sizes, capacities, items.weights if items.has_own_costs else None
        )

        def bins_of(rank_of: Int64Array) -> tuple[Int64Array | None, float]:
            """Return the micro-batch of each sample for given ranks, and the time of the step; None
            without room.
            """
            placement = spread_within_ranks(
                items.sizes[by_size],
                items.weights[by_size],
                capacities,
                rank_of[by_size],
                num_ranks=ranks,
                micro_batches=micro_batches,
                is_step_barrier=self._is_step_barrier,
            )
            if placement is None:
                return None, 0.0
            bin_of = scattered(placement, by_size)
            return bin_of, self._time(bin_of, micro_batches)

        best, best_time = None, 0.0
        # If ranks wait at each micro-batch, also try to divide samples above the mean first.
        large = None if self._is_step_barrier else self._ranks_by_large_samples(micro_batches)
        if large is not None:
            best, best_time = bins_of(large)
        # No plan takes less time: ranks are equal, or one has the slowest group.
        ideal = max(float(self._weights.sum()) / ranks, float(self._weights.max()))
        num_samples = np.diff(groups.offsets)[self._order]
        starved = []
        for rank_of_placed, is_last_resort in ranks_of_groups(
            self._sizes,
            self._weights,
            capacities,
            num_samples,
            num_ranks=ranks,
            micro_batches=micro_batches,
        ):
            if is_last_resort and best is not None:
                break
            rank_of = samples_of(groups, scattered(rank_of_placed, self._order))
            starved.append(self._is_starved(rank_of, micro_batches))
            if starved[-1]:
                continue
            bin_of, time = bins_of(rank_of)
            if bin_of is not None and (best is None or time < best_time):
                best, best_time = bin_of, time
            if bin_of is not None and best_time - ideal <= ideal / 512:
                break
        if best is None and starved and all(starved):
            # No assignment gives each rank a sample for each micro-batch: more micro-batches do not
            # help.
            self.refuse_too_few(micro_batches, is_starved=True)
        if best is None or self._is_step_barrier or len(capacities) > 1:
            return best
        return exchange_within_ranks(
            items.sizes[:, 0],
            items.weights,
            best,
            capacity=int(capacities[0]),
            micro_batches=micro_batches,
        )

    def _ranks_by_large_samples(self, micro_batches: int) -> Int64Array | None:
        """Return the rank of each sample, with samples above the mean micro-batch divided first;
        None without any.
        """
        items, groups = self._items, self._items.groups
        assert groups is not None
        mean = int(items.weights.sum()) // (self._ranks * micro_batches)
        large = items.group_sums(np.where(items.weights > mean, items.weights, 0))
        if np.count_nonzero(large) < 2:
            return None
        room = items.budgets.capacities * micro_batches
        rank_of_group = deal_large_first(
            groups.sizes, items.group_sums(items.weights), large, room, num_ranks=self._ranks
        )
        if rank_of_group is None:
            return None
        rank_of = samples_of(groups, rank_of_group)
        return None if self._is_starved(rank_of, micro_batches) else rank_of

    def _is_starved(self, rank_of: Int64Array, micro_batches: int) -> bool:
        """Return whether a rank has fewer samples than micro-batches."""
        return int(np.bincount(rank_of, minlength=self._ranks).min()) < micro_batches

    def _time(self, bin_of: Int64Array, micro_batches: int) -> float:
        """Return the time of the step: of the slowest rank, or of the slowest rank in each
        micro-batch, summed.
        """
        work = np.bincount(
            bin_of, weights=self._items.weights, minlength=self._ranks * micro_batches
        )
        work = work.reshape(self._ranks, micro_batches)
        return float(work.sum(axis=1).max() if self._is_step_barrier else work.max(axis=0).sum())

    def plan(self, bin_of: Int64Array, micro_batches: int, targets: Int64Array) -> StepPlan:
        """Return the plan with these micro-batches of samples, and their targets."""
        items, shape = self._items, (self._ranks, micro_batches)
        num_bins = math.prod(shape)
        # NumPy sorts 16-bit keys by radix; sums of tokens are exact below 2**53.
        keys = bin_of.astype(np.uint16) if num_bins < 1 << 16 else bin_of
        tokens = np.bincount(bin_of, weights=items.sizes[:, 0], minlength=num_bins)
        costs = np.bincount(bin_of, weights=items.costs, minlength=num_bins)
        return StepPlan(
            capacity=int(items.budgets.capacities[0]),
            dp_world_size=self._ranks,
            num_micro_batches=micro_batches,
            order=np.argsort(keys, kind="stable"),
            offsets=offsets_of(np.bincount(bin_of, minlength=num_bins)),
            tokens=tokens.astype(np.int64).reshape(shape),
            costs=costs.astype(np.float64).reshape(shape),
            loss_tokens=targets,
        )

    def refuse_too_few(self, micro_batches: int, *, is_starved: bool = False) -> None:
        """Raise if the micro-batches outnumber the items, or if the groups leave a rank with fewer.

        Raises:
            InvalidLengthsError: names both numbers, and the settings that they follow from.
        """
        num_samples, num_items = len(self._items.sizes), len(self._sizes)
        num_needed = self._ranks * micro_batches
        ranks = counted(self._ranks, "rank")
        problem = ""
        if not self._is_grouped_by_rank:
            noun = "sample" if self._items.groups is None else "group"
            if num_items < num_needed:
                problem = (
                    f"{counted(num_items, noun)} cannot fill {ranks} of {micro_batches:,} "
                    f"micro-batches ({num_needed:,}), and none may be empty"
                )
        elif num_items < self._ranks:
            problem = f"{counted(num_items, 'group')} cannot give each of {ranks} one"
        elif num_samples < num_needed or is_starved:
            groups = self._items.groups
            assert groups is not None
            group = int(self._order[0])
            name = int(groups.names[group])
            begin, end = groups.offsets[group : group + 2].tolist()
            largest = f"group {name} of {end - begin:,} samples"
            if name == ALONE:
                largest = f"sample {int(groups.members[begin])}"
            problem = (
                f"{ranks} of {micro_batches:,} micro-batches, with room for {largest}, need "
                f"{num_needed:,} samples, evenly divided, and the groups leave a rank with fewer"
            )
        if problem:
            raise _too_few(problem, 1 if is_starved else self._multiple_of)


class _TreeSearch:
    """Search for a number of micro-batches with room for all trees."""

    def __init__(
        self,
        forest: StepForest,
        ranks: int,
        multiple_of: int,
        is_step_barrier: bool,
    ) -> None:
        self._forest = forest
        self._ranks = ranks
        self._multiple_of = multiple_of
        self._is_step_barrier = is_step_barrier

    def least_micro_batches(self) -> int:
        """Return a lower bound on the number of micro-batches of a rank."""
        return -(-self._forest.bound // self._ranks)

    def bins(self, micro_batches: int) -> Int64Array | None:
        """Return the micro-batch of each leaf; None if no room is found."""
        return spread_trees(
            self._forest.forest,
            self._forest.capacities,
            num_ranks=self._ranks,
            micro_batches=micro_batches,
            is_step_barrier=self._is_step_barrier,
        )

    def plan(self, bin_of: Int64Array, micro_batches: int, targets: Int64Array) -> StepPlan:
        """Return the plan with these micro-batches of leaves, and the targets of samples."""
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
        """Raise if the micro-batches outnumber the samples.

        Raises:
            InvalidLengthsError: names both numbers, and the settings that they follow from.
        """
        num_samples, num_needed = self._forest.forest.num_leaves, self._ranks * micro_batches
        if num_samples < num_needed:
            raise _too_few(
                f"{counted(num_samples, 'sample')} cannot fill {counted(self._ranks, 'rank')} of "
                f"{micro_batches:,} micro-batches ({num_needed:,}), and none may be empty",
                self._multiple_of,
            )


def _too_few(problem: str, multiple_of: int) -> InvalidLengthsError:
    way = f", or {setting('multiple_of', 1)}" if multiple_of > 1 else ""
    return InvalidLengthsError(
        f"{problem}: use fewer ranks, more samples, a larger {setting('capacity')}{way}"
    )


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

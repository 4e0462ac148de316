"""Search for a step of samples that share nothing, with groups that stay together."""

from __future__ import annotations

import math

import numpy as np

from brimful.base.ragged import offsets_of
from brimful.base.typing import Int64Array
from brimful.base.wording import counted, setting
from brimful.errors import OversizedSampleError
from brimful.plan.policies.groups import ALONE
from brimful.rl.fill_bins import scattered
from brimful.rl.spread_samples import deal_large_first, placing_order, ranks_of_groups, spread
from brimful.rl.step_items import StepItems, samples_of
from brimful.rl.step_plan import StepPlan
from brimful.rl.step_search import StepSearch, too_few
from brimful.rl.within_ranks import exchange_within_ranks, spread_within_ranks


class ItemSearch(StepSearch):
    """Search for micro-batches with room for items, which are samples or groups of samples.

    Args:
        items: the samples.
        ranks, multiple_of, is_step_barrier: see ``StepSearch``.
        do_groups_share_ranks: a group stays on one rank; otherwise in one micro-batch.

    Raises:
        OversizedSampleError: a group that shares a micro-batch exceeds a capacity.
    """

    def __init__(
        self,
        items: StepItems,
        ranks: int,
        multiple_of: int,
        is_step_barrier: bool,
        do_groups_share_ranks: bool,
    ) -> None:
        super().__init__(ranks, multiple_of, is_step_barrier)
        self._items = items
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

    def plan_of(self, bin_of: Int64Array, micro_batches: int, targets: Int64Array) -> StepPlan:
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
        if not self._is_grouped_by_rank:
            noun = "sample" if self._items.groups is None else "group"
            self.refuse_fewer(len(self._sizes), noun, micro_batches)
            return
        num_needed, ranks = self._ranks * micro_batches, counted(self._ranks, "rank")
        if len(self._sizes) < self._ranks:
            problem = f"{counted(len(self._sizes), 'group')} cannot give each of {ranks} one"
        elif len(self._items.sizes) < num_needed or is_starved:
            groups = self._items.groups
            assert groups is not None
            group = int(self._order[0])
            name = int(groups.names[group])
            first, end = groups.offsets[group : group + 2].tolist()
            largest = f"group {name} of {end - first:,} samples"
            if name == ALONE:
                largest = f"sample {int(groups.members[first])}"
            problem = (
                f"{ranks} of {micro_batches:,} micro-batches, with room for {largest}, need "
                f"{num_needed:,} samples, evenly divided, and the groups leave a rank with fewer"
            )
        else:
            return
        raise too_few(problem, 1 if is_starved else self._multiple_of)

"""Trees spread over an exact number of micro-batches of equal cost, and cut only where that pays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from brimful.base.typing import Float64Array, Int64Array
from brimful.plan.fit.spread import occupy_empty_bins
from brimful.plan.schedule.balance import assign_to_ranks
from brimful.rl.fill_bins import run_loop
from brimful.trees.plan.forest import Forest
from brimful.trees.plan.segments import loads_of_trees, packs_of

_PRECISION = 512
"""Parts of the mean cost of a micro-batch; levels that differ by less than one are equal."""


def spread_trees(
    forest: Forest,
    capacities: Int64Array,
    *,
    num_ranks: int,
    micro_batches: int,
    is_step_barrier: bool,
) -> Int64Array | None:
    """Divide the samples of trees among micro-batches so that ranks wait as little as possible.

    This is packing with the cost as one more budget, whose capacity, the level, is the least with
    which the micro-batches suffice (MULTIFIT). All costs are of what a sample adds to its pack::

        trunk of 4, branches 5 3 3 and 5 5, two micro-batches of level 15
        by trees      4 + 5 3 3 | 4 + 5 5         15 and 14

    A tree is placed whole in the micro-batch that it fits best. If none has room for it, its first
    samples fill the emptiest, and the others are a tree to place: each cut repeats a trunk. If the
    longest samples cost more than the level, they are in the same slice of micro-batches on all
    ranks, whose level is higher.

    Pure: no I/O, no randomness.

    Args:
        forest: no leaf alone exceeds a capacity. The last of its columns is the cost.
        capacities: ``int64[num_budgets]``, tokens first, without the cost.
        num_ranks, micro_batches: number of ranks, and of micro-batches of each; their product is at
            most the number of samples.
        is_step_barrier: ranks wait once per step.

    Returns:
        ``int64[num_leaves]``: the micro-batch ``rank · micro_batches + bin_index`` of each sample; None
        without room.

    Source: MULTIFIT (Coffman, Garey and Johnson, 1978), for jobs that are split and prepared again
    on each machine (Xing and Zhang, 2000).
    """
    shape = micro_batches, num_ranks
    num_bins = micro_batches * num_ranks
    best, best_time = None, 0
    for order in _orders(forest):
        bin_of = _least_level(forest, capacities, order, shape)
        if bin_of is None:
            continue
        occupy_empty_bins(bin_of, num_bins)
        costs = loads_of_trees(forest, packs_of(bin_of, num_bins))[:, -1]
        by_cost = np.argsort(-costs, kind="stable")
        bins = assign_to_ranks(
            by_cost.reshape(1, micro_batches, num_ranks), costs, (num_ranks, micro_batches, 1)
        )[0, :, :, 0]
        work = costs[bins]
        time = int(work.sum(axis=1).max() if is_step_barrier else work.max(axis=0).sum())
        if best is None or time < best_time:
            bin_index = np.empty(num_bins, dtype=np.int64)
            bin_index[bins.reshape(-1)] = np.arange(num_bins)
            best, best_time = bin_index[bin_of], time
    return best


def _orders(forest: Forest) -> list[tuple[Int64Array, Int64Array]]:
    """Return the first leaf of each tree, and the leaf after its last, in two orders: by cost, and
    by the cost of the trunk, so that trees that are cheap to cut come last.
    """
    roots = np.flatnonzero(forest.gaps < 0)
    stops = np.append(roots[1:], forest.num_leaves)
    costs = forest.loads(roots, stops)[:, -1]
    # The least that a cut repeats; a cut before the first leaf of a tree would cut nothing.
    cuts = np.where(forest.gaps >= 0, forest.depths[forest.gaps, -1], costs.max())
    trunks = np.where(stops - roots > 1, np.minimum.reduceat(cuts, roots), 0)
    by_cost = np.argsort(-costs, kind="stable")
    orders = [by_cost]
    if trunks.any():
        orders.append(by_cost[np.argsort(-trunks[by_cost], kind="stable")])
    return [(roots[order], stops[order]) for order in orders]


def _least_level(
    forest: Forest,
    capacities: Int64Array,
    order: tuple[Int64Array, Int64Array],
    shape: tuple[int, int],
) -> Int64Array | None:
    """Return the micro-batch of each leaf, ``slice · num_ranks + rank``, with the least level that
    has room for all; None if no level has.
    """
    micro_batches, num_ranks = shape
    first, stop = order
    total = int(forest.loads(first, stop)[:, -1].sum())
    # A slice has at least the level of the most costly sample that comes to it.
    path_costs = np.sort(forest.depths[: forest.num_leaves, -1])[::-1]
    floors = path_costs[np.arange(micro_batches) * num_ranks]
    earlier_floors = np.cumsum(floors) - floors
    mean = -(-total // num_ranks)
    ideal = int(((mean - earlier_floors) // np.arange(micro_batches, 0, -1)).min())
    unit = max(ideal // _PRECISION, 1)
    rate = _most_cost_of_token(forest)

    def filled(level: int) -> Int64Array | None:
        bin_of = np.full(forest.num_leaves, -1, dtype=np.int64)
        levels = np.repeat(np.maximum(floors, level), num_ranks)
        has_room = run_loop(
            fill_trees, first, stop, forest.depths, forest.sums, capacities, levels, rate,
            results=(bin_of,),
        )  # fmt: skip
        return bin_of if has_room else None

    fails, step = 0, 1
    while (best := filled(ideal + fails + step * unit)) is None:
        # With this level a micro-batch has room for all: capacities in tokens are in the way.
        if ideal + fails > total:
            return None
        fails, step = fails + step * unit, 2 * step
    works = fails + step * unit
    while works - fails > unit:
        middle = (works + fails) // 2
        bin_of = filled(ideal + middle)
        if bin_of is None:
            fails = middle
        else:
            best, works = bin_of, middle
    return best


def _most_cost_of_token(forest: Forest) -> int:
    """Return the most that a token costs in any range of leaves, rounded up."""
    increments = np.diff(forest.sums, axis=0)
    paths = forest.depths[: forest.num_leaves]
    tokens = np.concatenate([increments[:, 0], paths[:, 0]])
    costs = np.concatenate([increments[:, -1], paths[:, -1]])
    ratio: Float64Array = costs / np.maximum(tokens, 1)
    return int(ratio.max()) + 1


def fill_trees(
    firsts: Sequence[int],
    stops: Sequence[int],
    depths: Sequence[Sequence[int]],
    sums: Sequence[Sequence[int]],
    capacities: Sequence[int],
    levels: Sequence[int],
    rate: int,
    bin_of: list[int],
) -> bool:
    """Write the micro-batch of each leaf; return false if one has no room. To be compiled.

    ::

        level 9      trees 7, 6, and 5 with a trunk of 2
        bin 0        7 | 2           the first sample of the last tree: trunk 2, nothing else fits
        bin 1        6 | 3

    Args:
        firsts, stops: ``int64[num_trees]``: the leaves of each tree, in the order of placement.
        depths, sums: of the forest: a range of leaves takes
            ``depths[first] + sums[stop] - sums[first + 1]``.
        capacities: ``int64[num_budgets]``.
        levels: ``int64[num_bins]``: capacities in cost.
        rate: cost of a token at most.
        bin_of: ``int64[num_leaves]``; changed in place.

    >>> depths, sums = np.array([[3, 3], [3, 3], [2, 2]]), np.array([[0, 0], [3, 3], [4, 4], [6, 6]])
    >>> bin_of = np.zeros(3, dtype=np.int64)
    >>> fill_trees([0, 2], [2, 3], depths, sums, [9], [4, 2], 1, bin_of), bin_of.tolist()
    (True, [0, 0, 1])
    """
    num_budgets = len(capacities)
    num_bins = len(levels)
    shift = 0
    while num_bins >> shift:
        shift += 1
    mask = (1 << shift) - 1
    rooms = [[0 for _ in range(num_budgets + 1)] for _ in range(num_bins)]
    # Bins by the most cost that they may have room for, whichever limit is in the way: ascending,
    # one key each.
    keys = [0]
    keys.pop()
    for bin_index in range(num_bins):
        for budget in range(num_budgets):
            rooms[bin_index][budget] = capacities[budget]
        rooms[bin_index][num_budgets] = levels[bin_index]
        keys.append((min(levels[bin_index], rate * capacities[0]) << shift) | bin_index)
    keys.sort()
    for tree in range(len(firsts)):
        first, stop = firsts[tree], stops[tree]
        while first < stop:
            end = stop
            cost = depths[first][num_budgets] + sums[stop][num_budgets]
            cost = (cost - sums[first + 1][num_budgets]) << shift
            low, high = 0, num_bins
            while low < high:
                middle = (low + high) // 2
                if keys[middle] >= cost:
                    high = middle
                else:
                    low = middle + 1
            # The fullest bin with room for all.
            slot = -1
            while low < num_bins:
                room = rooms[keys[low] & mask]
                fits = True
                for budget in range(num_budgets + 1):
                    size = depths[first][budget] + sums[stop][budget] - sums[first + 1][budget]
                    if size > room[budget]:
                        fits = False
                        break
                if fits:
                    slot = low
                    break
                low += 1
            if slot < 0:
                # The emptiest bin with room for the first leaf, and as many after it as fit.
                low = num_bins - 1
                while low >= 0:
                    room = rooms[keys[low] & mask]
                    fits = True
                    for budget in range(num_budgets + 1):
                        if depths[first][budget] > room[budget]:
                            fits = False
                            break
                    if fits:
                        slot = low
                        break
                    low -= 1
                if slot < 0:
                    return False
                room = rooms[keys[slot] & mask]
                low, high = first + 1, stop - 1
                while low < high:
                    middle = (low + high + 1) // 2
                    fits = True
                    for budget in range(num_budgets + 1):
                        size = depths[first][budget] + sums[middle][budget]
                        if size - sums[first + 1][budget] > room[budget]:
                            fits = False
                            break
                    if fits:
                        low = middle
                    else:
                        high = middle - 1
                # A shorter range would repeat no less: what it leaves out holds the trunk of the cut.
                end = low
            bin_index = keys[slot] & mask
            room = rooms[bin_index]
            for budget in range(num_budgets + 1):
                room[budget] -= depths[first][budget] + sums[end][budget] - sums[first + 1][budget]
            for leaf in range(first, end):
                bin_of[leaf] = bin_index
            # Room shrinks: the bin moves down among the keys.
            key = (min(room[num_budgets], rate * room[0]) << shift) | bin_index
            while slot > 0 and keys[slot - 1] > key:
                keys[slot] = keys[slot - 1]
                slot -= 1
            keys[slot] = key
            first = end
    return True

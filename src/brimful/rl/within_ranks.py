"""Samples with fixed ranks: each rank divides its samples among its micro-batches, then exchanges
them.
"""

from collections.abc import Sequence

import numpy as np

from brimful.base.typing import AnyIntArray, Int64Array
from brimful.rl.fill_bins import run_loop, scattered
from brimful.rl.levels import fill_common_levels
from brimful.rl.spread_samples import numbered_by_cost, spread


def spread_within_ranks(
    sizes: Int64Array,
    weights: Int64Array,
    capacities: Int64Array,
    rank_of: AnyIntArray,
    *,
    num_ranks: int,
    micro_batches: int,
    is_step_barrier: bool = False,
) -> Int64Array | None:
    """Divide the items of each rank among its micro-batches, so that costly micro-batches of all
    ranks run together.

    If ranks wait at each micro-batch, common levels come first; after them, least load first.

    Args:
        sizes, weights, capacities, is_step_barrier: see ``spread``.
        rank_of: ``int[num_items]``, the fixed rank of each item.

    Returns:
        See ``spread``; None if a rank has no room, or fewer items than micro-batches.
    """
    # NumPy sorts 16-bit keys by radix.
    by_rank = np.argsort(
        rank_of.astype(np.uint16) if num_ranks < 1 << 16 else rank_of, kind="stable"
    )
    offsets = np.searchsorted(rank_of[by_rank], np.arange(num_ranks + 1))
    if int(np.diff(offsets).min()) < micro_batches:
        return None
    sizes, weights = sizes[by_rank], weights[by_rank]
    slice_of = np.full(len(sizes), -1, dtype=np.int64)
    slices = 0
    if sizes.shape[1] == 1 and not is_step_barrier:
        # Weights that do not rise along the items of a rank: each is raised to the maximum of later
        # ones. With the base, weights of an earlier rank exceed all later weights: a running
        # maximum from the end restarts there.
        base = np.repeat(np.arange(num_ranks, 0, -1) << 32, np.diff(offsets))
        falling = np.maximum.accumulate((weights + base)[::-1])[::-1] - base
        slices = run_loop(
            fill_common_levels, sizes[:, 0], falling, offsets, int(capacities[0]),
            micro_batches, results=(np.arange(len(sizes) + 1), slice_of),
        )  # fmt: skip
    while (
        placement := _place_rest(
            sizes, weights, capacities, offsets, slice_of, slices, micro_batches
        )
    ) is None:
        if slices == 0:
            return None
        # The items that the levels left have no room: half as many levels may leave enough.
        slices //= 2
        slice_of[slice_of >= slices] = -1
    return scattered(
        placement + np.repeat(np.arange(num_ranks), np.diff(offsets)) * micro_batches, by_rank
    )


def _place_rest(
    sizes: Int64Array,
    weights: Int64Array,
    capacities: Int64Array,
    offsets: Int64Array,
    slice_of: Int64Array,
    slices: int,
    micro_batches: int,
) -> Int64Array | None:
    """Return the micro-batch of each item on its rank; items without a slice come after the
    slices.
    """
    num_ranks = len(offsets) - 1
    num_bins = micro_batches - slices
    placement = slice_of.copy()
    has_room = np.zeros(num_ranks, dtype=np.int64)
    if sizes.shape[1] == 1:
        run_loop(
            _place_least_loaded, sizes[:, 0], weights, offsets, int(capacities[0]), num_bins,
            results=(has_room, placement),
        )  # fmt: skip
        rest = np.flatnonzero((slice_of < 0) & (placement >= 0))
        if len(rest):
            bin_of = (
                np.repeat(np.arange(num_ranks), np.diff(offsets))[rest] * num_bins + placement[rest]
            )
            bin_of = numbered_by_cost(bin_of, weights[rest], num_ranks, num_bins, within_ranks=True)
            placement[rest] = bin_of % num_bins + slices
    for rank in np.flatnonzero(has_room == 0).tolist():
        first = int(offsets[rank])
        items = first + np.flatnonzero(slice_of[first : offsets[rank + 1]] < 0)
        if len(items) < num_bins or (len(items) and not num_bins):
            return None
        if not num_bins:
            continue
        # ``spread`` sorts its micro-batches by cost: micro-batches of the same number are similar
        # on all ranks.
        bins = spread(
            sizes[items],
            weights[items],
            capacities,
            num_ranks=1,
            micro_batches=num_bins,
            is_step_barrier=False,
        )
        if bins is None:
            return None
        placement[items] = bins + slices
    return placement


def _place_least_loaded(
    lengths: Sequence[int],
    weights: Sequence[int],
    offsets: Sequence[int],
    capacity: int,
    num_bins: int,
    has_room: list[int],
    slice_of: list[int],
) -> None:
    """Write the micro-batch of each unplaced item, from 0, rank by rank, and 1 for ranks with room;
    to be compiled.

    Items are placed, longest first, into the least loaded micro-batch with room. Items of a rank
    without room are left unchanged.
    """
    num_ranks = len(offsets) - 1
    loads = [0 for _ in range(num_bins)]
    tokens = [0 for _ in range(num_bins)]
    for rank in range(num_ranks):
        items = [item for item in range(offsets[rank], offsets[rank + 1]) if slice_of[item] < 0]
        if len(items) < num_bins or (num_bins == 0 and len(items) > 0):
            continue
        # By cost; if that leaves an item without room, by tokens, which evens out the
        # micro-batches.
        for use_cost in (1, 0):
            for bin_index in range(num_bins):
                loads[bin_index], tokens[bin_index] = 0, 0
            has_room[rank] = 1
            for item in items:
                best = -1
                for bin_index in range(num_bins):
                    if tokens[bin_index] + lengths[item] <= capacity and (
                        best < 0 or loads[bin_index] < loads[best]
                    ):
                        best = bin_index
                if best < 0:
                    has_room[rank] = 0
                    break
                slice_of[item] = best
                tokens[best] += lengths[item]
                loads[best] += weights[item] if use_cost else lengths[item]
            if has_room[rank]:
                break
        if has_room[rank] == 0:
            for item in items:
                slice_of[item] = -1


def exchange_within_ranks(
    lengths: Int64Array,
    weights: Int64Array,
    bin_of: Int64Array,
    *,
    capacity: int,
    micro_batches: int,
) -> Int64Array:
    """Move or exchange samples of a rank between its micro-batches while this shortens the step.

    A slice takes as long as its slowest rank. This rank moves a sample to another of its
    micro-batches, or exchanges samples, if the sum of both slices' times falls: work below the time
    of its slice costs nothing.

    ::

        costs of 2 ranks, 2 slices      9 8 | 3         slices take 17 and 12: 29
                                        6 5 | 7 5
        rank 0 moves 9 to its other slice       8 | 3 9         11 and 12: 23

    Pure: no I/O, no randomness.

    Args:
        lengths, weights: ``int64[num_items]``.
        bin_of: ``int64[num_items]``: the micro-batch ``rank · micro_batches + slice`` of each item;
            none is empty.
        capacity: capacity of a micro-batch.
        micro_batches: number of micro-batches of each rank.

    Returns:
        ``int64[num_items]``: micro-batches after the exchanges; none is empty.

    Cost: O(items of a micro-batch · items of a rank) for each exchange; at most two exchanges for
        each micro-batch.

    >>> weights, bin_of = np.array([9, 8, 3, 6, 5, 7, 5]), np.array([0, 0, 1, 2, 2, 3, 3])
    >>> exchange_within_ranks(
    ...     np.ones_like(weights), weights, bin_of, capacity=9, micro_batches=2
    ... ).tolist()
    [1, 0, 1, 2, 2, 3, 3]
    """
    # Rank after rank, so that the loop for a rank reads only its own items.
    by_rank = np.argsort(bin_of // micro_batches, kind="stable")
    rank_of, slice_of = np.divmod(bin_of[by_rank], micro_batches)
    offsets = np.searchsorted(rank_of, np.arange(int(rank_of[-1]) + 2))
    run_loop(
        _exchange_within_ranks, lengths[by_rank], weights[by_rank], offsets, capacity,
        micro_batches, results=(slice_of,),
    )  # fmt: skip
    return scattered(slice_of + rank_of * micro_batches, by_rank)


def _exchange_within_ranks(
    lengths: Sequence[int],
    weights: Sequence[int],
    offsets: Sequence[int],
    capacity: int,
    micro_batches: int,
    slice_of: list[int],
) -> int:
    """Exchange, and return the number of exchanges; to be compiled."""
    num_ranks = len(offsets) - 1
    # By micro-batch ``rank · micro_batches + slice``; times by slice.
    loads = [0 for _ in range(num_ranks * micro_batches)]
    tokens, counts = loads[:], loads[:]
    times = [0 for _ in range(micro_batches)]
    for rank in range(num_ranks):
        for item in range(offsets[rank], offsets[rank + 1]):
            bin_index = rank * micro_batches + slice_of[item]
            loads[bin_index] += weights[item]
            tokens[bin_index] += lengths[item]
            counts[bin_index] += 1
            times[slice_of[item]] = max(times[slice_of[item]], loads[bin_index])
    num_exchanges = 0
    is_better = True
    while is_better and num_exchanges < 2 * num_ranks * micro_batches:
        is_better = False
        for micro_batch in range(micro_batches):
            # While the slowest rank of this slice can be relieved, continue with the next slowest.
            for _ in range(num_ranks):
                slowest, second_time = 0, 0
                for rank in range(num_ranks):
                    load = loads[rank * micro_batches + micro_batch]
                    if load > loads[slowest * micro_batches + micro_batch]:
                        slowest = rank
                for rank in range(num_ranks):
                    if rank != slowest:
                        second_time = max(second_time, loads[rank * micro_batches + micro_batch])
                first, end = offsets[slowest], offsets[slowest + 1]
                source = slowest * micro_batches + micro_batch
                best_gain, best_given, best_taken, best_slice = 0, -1, -1, -1
                for given_item in range(first, end):
                    if slice_of[given_item] != micro_batch:
                        continue
                    # Moves first: a candidate before the items of the rank is one of its slices.
                    for candidate in range(
                        first - micro_batches if counts[source] > 1 else first, end
                    ):
                        other = candidate - first + micro_batches
                        weight, size = weights[given_item], lengths[given_item]
                        if candidate >= first:
                            other = slice_of[candidate]
                            weight, size = weight - weights[candidate], size - lengths[candidate]
                        target = slowest * micro_batches + other
                        if other == micro_batch or weight <= 0:
                            continue
                        if tokens[target] + size > capacity or tokens[source] - size > capacity:
                            continue
                        time_here = max(second_time, loads[source] - weight)
                        time_there = max(times[other], loads[target] + weight)
                        gain = times[micro_batch] + times[other] - time_here - time_there
                        if gain > best_gain:
                            best_gain, best_given, best_taken, best_slice = (
                                gain,
                                given_item,
                                candidate,
                                other,
                            )
                if best_given < 0:
                    break
                target = slowest * micro_batches + best_slice
                weight, size, count = weights[best_given], lengths[best_given], 1
                slice_of[best_given] = best_slice
                if best_taken >= first:
                    weight -= weights[best_taken]
                    size -= lengths[best_taken]
                    count = 0
                    slice_of[best_taken] = micro_batch
                loads[source] -= weight
                loads[target] += weight
                tokens[source] -= size
                tokens[target] += size
                counts[source] -= count
                counts[target] += count
                times[micro_batch] = max(second_time, loads[source])
                times[best_slice] = max(times[best_slice], loads[target])
                num_exchanges += 1
                is_better = True
    return num_exchanges

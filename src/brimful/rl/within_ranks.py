"""Samples with fixed ranks: each rank divides its samples among its micro-batches."""

from collections.abc import Sequence

import numpy as np

from brimful.base.typing import AnyIntArray, Int64Array
from brimful.rl.fill_bins import run_loop
from brimful.rl.levels import fill_common_levels
from brimful.rl.spread_samples import spread


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
    """Divide the items of each rank among its micro-batches, so that costly micro-batches of all ranks run together.

    If ranks wait at each micro-batch, common levels come first; after them, least load first.

    Args:
        sizes, weights, capacities, is_step_barrier: see ``spread``.
        rank_of: ``int[num_items]``, the fixed rank of each item.

    Returns:
        See ``spread``; None if a rank has no room, or fewer items than micro-batches.
    """
    # NumPy sorts 16-bit keys by radix.
    by_rank = np.argsort(rank_of.astype(np.uint16) if num_ranks < 1 << 16 else rank_of, kind="stable")
    offsets = np.searchsorted(rank_of[by_rank], np.arange(num_ranks + 1))
    if int(np.diff(offsets).min()) < micro_batches:
        return None
    sizes, weights = sizes[by_rank], weights[by_rank]
    slice_of = np.full(len(sizes), -1, dtype=np.int64)
    slices = 0
    has_one_budget = sizes.shape[1] == 1
    if has_one_budget and not is_step_barrier:
        slice_of, slices = fill_common_levels(
            sizes[:, 0],
            _falling_in_ranks(weights, offsets),
            offsets,
            capacity=int(capacities[0]),
            micro_batches=micro_batches,
        )
    while True:
        placement = _place_rest(sizes, weights, capacities, offsets, slice_of, slices, micro_batches)
        if placement is not None or slices == 0:
            break
        # The items that the levels left have no room: half as many levels may leave enough.
        slices //= 2
        slice_of[slice_of >= slices] = -1
    if placement is None:
        return None
    bin_of = np.empty(len(sizes), dtype=np.int64)
    bin_of[by_rank] = placement + np.repeat(np.arange(num_ranks), np.diff(offsets)) * micro_batches
    return bin_of


def _falling_in_ranks(weights: Int64Array, offsets: Int64Array) -> Int64Array:
    """Return weights that do not rise along the items of a rank: each is raised to the maximum of later weights."""
    num_ranks = len(offsets) - 1
    # With the base, weights of an earlier rank exceed all later weights: a running maximum from the end restarts there.
    base = np.repeat(np.arange(num_ranks, 0, -1) << 32, np.diff(offsets))
    falling: Int64Array = np.maximum.accumulate((weights + base)[::-1])[::-1] - base
    return falling


def _place_rest(
    sizes: Int64Array,
    weights: Int64Array,
    capacities: Int64Array,
    offsets: Int64Array,
    slice_of: Int64Array,
    slices: int,
    micro_batches: int,
) -> Int64Array | None:
    """Return the micro-batch of each item on its rank; items without a slice come after the slices."""
    num_ranks = len(offsets) - 1
    placement = slice_of.copy()
    has_room = np.zeros(num_ranks, dtype=np.int64)
    if sizes.shape[1] == 1:
        run_loop(
            _place_least_loaded, len(sizes), sizes[:, 0], weights, offsets, int(capacities[0]), int(slices),
            int(micro_batches), results=(has_room, placement),
        )  # fmt: skip
    for rank in np.flatnonzero(has_room == 0).tolist():
        begin = int(offsets[rank])
        items = begin + np.flatnonzero(slice_of[begin : offsets[rank + 1]] < 0)
        if slices == micro_batches:
            if len(items):
                return None
            continue
        if len(items) < micro_batches - slices:
            return None
        # ``spread`` sorts its micro-batches by cost: micro-batches of the same number are similar on all ranks.
        bins = spread(
            sizes[items],
            weights[items],
            capacities,
            num_ranks=1,
            micro_batches=micro_batches - slices,
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
    slices: int,
    micro_batches: int,
    has_room: list[int],
    slice_of: list[int],
) -> int:
    """Write the micro-batch of each unplaced item, rank by rank, and 1 for ranks with room; to be compiled.

    Items are placed, longest first, into the least loaded micro-batch with room after the slices. The micro-batches of
    a rank are then numbered by falling cost. Items of a rank without room are left unchanged.
    """
    num_ranks = len(offsets) - 1
    number_of_bins = micro_batches - slices
    loads = [0 for _ in range(number_of_bins)]
    tokens = [0 for _ in range(number_of_bins)]
    place_of = [0 for _ in range(number_of_bins)]
    num_placed = 0
    for rank in range(num_ranks):
        items = [item for item in range(offsets[rank], offsets[rank + 1]) if slice_of[item] < 0]
        if len(items) < number_of_bins or (number_of_bins == 0 and len(items) > 0):
            continue
        # By cost; if that leaves an item without room, by tokens, which evens out the micro-batches.
        for use_cost in (1, 0):
            for place in range(number_of_bins):
                loads[place], tokens[place] = 0, 0
            has_room[rank] = 1
            for item in items:
                best = -1
                for place in range(number_of_bins):
                    if tokens[place] + lengths[item] <= capacity and (best < 0 or loads[place] < loads[best]):
                        best = place
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
            continue
        for place in range(number_of_bins):
            loads[place] = 0
        for item in items:
            loads[slice_of[item]] += weights[item]
        for place in range(number_of_bins):
            position = 0
            for other in range(number_of_bins):
                if loads[other] > loads[place] or (loads[other] == loads[place] and other < place):
                    position += 1
            place_of[place] = slices + position
        for item in items:
            slice_of[item] = place_of[slice_of[item]]
        num_placed += len(items)
    return num_placed

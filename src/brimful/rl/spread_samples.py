"""Items spread over an exact number of micro-batches, none empty, none above a capacity."""

import numpy as np

from brimful.base.compiling import compiled
from brimful.base.typing import Int64Array
from brimful.plan.counts.histogram import Histogram
from brimful.plan.fit.best_fit_decreasing import best_fit_decreasing
from brimful.plan.fit.spread import occupy_empty_bins
from brimful.plan.packing import Packing
from brimful.plan.vector.pack_vectors import pack_vectors
from brimful.rl.fill_bins import WORTH_COMPILING, fill_least_loaded, place_rest
from brimful.rl.levels import fill_levels


def spread(
    sizes: Int64Array,
    weights: Int64Array,
    capacities: Int64Array,
    *,
    num_ranks: int,
    micro_batches: int,
    is_step_barrier: bool,
) -> Int64Array | None:
    """Divide items among micro-batches so that ranks wait as little as possible.

    Uses the first of these methods that succeeds: slices of equal cost, least load first by cost, least load first by
    tokens, best fit decreasing with packs divided until their number suffices. The last method finds room whenever
    ``plan_packs`` does.

    Pure: no I/O, no randomness.

    Args:
        sizes: ``int64[num_items, num_budgets]``, tokens first; in the order of ``placing_order``.
        weights: ``int64[num_items]``, the cost of each item as a whole number of at least 1.
        capacities: ``int64[num_budgets]``.
        num_ranks, micro_batches: number of ranks, and of micro-batches of each; their product is at most the number of
            items.
        is_step_barrier: ranks wait once per step, so that micro-batches need not be equal.

    Returns:
        ``int64[num_items]``: the micro-batch ``rank · micro_batches + number`` of each item; None without room.
    """
    num_bins = num_ranks * micro_batches
    ranks_by_cost = num_ranks if is_step_barrier else num_bins
    bins_of_unit = micro_batches if is_step_barrier else 1
    if sizes.shape[1] > 1:
        bin_of = fill_vectors(sizes, weights, capacities, num_units=ranks_by_cost, bins_per_unit=bins_of_unit)
        if bin_of is None:
            bin_of = _taken_apart(pack_vectors(sizes, capacities=capacities, seed=0).packs, sizes[:, 0], num_bins)
            is_step_barrier = False
    else:
        lengths, capacity = sizes[:, 0], int(capacities[0])
        bin_of = None
        if not is_step_barrier:
            bin_of = _in_levels(lengths, weights, capacity, num_ranks, micro_batches)
        if bin_of is None:
            bin_of = fill_least_loaded(
                lengths, weights, capacity=capacity, num_units=ranks_by_cost, bins_per_unit=bins_of_unit
            )
        if bin_of is None:
            is_step_barrier = False
            bin_of = fill_least_loaded(lengths, lengths, capacity=capacity, num_units=num_bins, bins_per_unit=1)
        if bin_of is None:
            counts = Histogram.of(lengths)
            packing = best_fit_decreasing(counts, capacity=capacity).assign(np.arange(len(lengths)))
            bin_of = _taken_apart(packing, lengths, num_bins)
    if bin_of is None:
        return None
    occupy_empty_bins(bin_of, num_bins)
    if is_step_barrier:
        return sort_within_ranks(bin_of, weights, num_ranks, micro_batches)
    return deal_to_ranks(bin_of, weights, num_ranks, micro_batches)


def placing_order(sizes: Int64Array, capacities: Int64Array, weights: Int64Array | None = None) -> Int64Array:
    """Return the items in the order in which they are placed: largest share of any capacity first.

    Args:
        sizes: ``int64[num_items, num_budgets]``.
        capacities: ``int64[num_budgets]``.
        weights: ``int64[num_items]``: of equally large items, the heaviest comes first; None to order them by position.

    >>> placing_order(np.array([[3], [5], [3]]), np.array([8])).tolist()
    [1, 0, 2]
    """
    if sizes.shape[1] == 1:
        keys = sizes[:, 0]
        largest = int(keys.max())
        keys = largest - keys
        # NumPy sorts 16-bit keys by radix: several times as fast as a comparison sort.
        keys = keys.astype(np.uint16) if largest < 1 << 16 else keys
    else:
        keys = -(sizes / capacities).max(axis=1)
    if weights is None:
        return np.argsort(keys, kind="stable")
    by_weight = np.argsort(-weights, kind="stable")
    return by_weight[np.argsort(keys[by_weight], kind="stable")]


def deal_to_ranks(bin_of: Int64Array, weights: Int64Array, num_ranks: int, micro_batches: int) -> Int64Array:
    """Put micro-batches of nearly equal cost into the same slice, and give each rank heavy and light ones in turn.

    ::

        costs of six micro-batches, two ranks      9 8 | 7 7 | 5 3
        rank 0                                     9     7     5          slices, every second one reversed:
        rank 1                                       8   7       3        21 and 18

    Returns:
        ``int64[num_items]``: the micro-batch ``rank · micro_batches + slice`` of each item.
    """
    costs = np.bincount(bin_of, weights=weights, minlength=num_ranks * micro_batches)  # exact below 2**53
    by_cost = np.argsort(-costs, kind="stable").reshape(micro_batches, num_ranks)
    by_cost[1::2] = by_cost[1::2, ::-1]
    place_of = np.empty(num_ranks * micro_batches, dtype=np.int64)
    place_of[by_cost.T.reshape(-1)] = np.arange(num_ranks * micro_batches)
    return place_of[bin_of]


def sort_within_ranks(bin_of: Int64Array, weights: Int64Array, num_ranks: int, micro_batches: int) -> Int64Array:
    """Sort the micro-batches of each rank, most costly first: if one exceeds the memory, the step fails at once.

    Args:
        bin_of: ``int64[num_items]``, the micro-batch ``rank · micro_batches + number`` of each item.

    Returns:
        ``int64[num_items]``, the micro-batches renumbered within the ranks.
    """
    costs = np.bincount(bin_of, weights=weights, minlength=num_ranks * micro_batches).reshape(num_ranks, micro_batches)
    by_cost = np.argsort(-costs, axis=1, kind="stable")
    place_of = np.empty_like(by_cost)
    np.put_along_axis(place_of, by_cost, np.arange(num_ranks * micro_batches).reshape(by_cost.shape), axis=1)
    return place_of.reshape(-1)[bin_of]


def _in_levels(
    lengths: Int64Array, weights: Int64Array, capacity: int, num_ranks: int, micro_batches: int
) -> Int64Array | None:
    """Fill slices to their level, and the remaining slices by least load; None if an item has no room."""
    # Costs are raised where necessary so that they fall with the lengths: a level then holds a little less.
    falling_order = np.maximum.accumulate(weights[::-1])[::-1]
    bin_of, slices = fill_levels(
        lengths, falling_order, capacity=capacity, num_ranks=num_ranks, micro_batches=micro_batches
    )
    if slices == micro_batches:
        return bin_of if int(bin_of.min()) >= 0 else None
    is_placed = place_rest(
        lengths,
        weights,
        bin_of,
        first_bin=num_ranks * slices,
        capacity=capacity,
        num_units=num_ranks * (micro_batches - slices),
        bins_per_unit=1,
    )
    return bin_of if is_placed else None


def _taken_apart(packing: Packing, lengths: Int64Array, num_bins: int) -> Int64Array | None:
    """Number the packs as bins, and let ``occupy_empty_bins`` fill empty bins; None with too many packs."""
    if len(packing) > num_bins:
        return None
    bin_of = np.empty(len(lengths), dtype=np.int64)
    bin_of[packing.items] = np.repeat(np.arange(len(packing)), packing.sizes)
    return bin_of


def fill_vectors(
    sizes: Int64Array, weights: Int64Array, capacities: Int64Array, *, num_units: int, bins_per_unit: int
) -> Int64Array | None:
    """Place items under several budgets, each in the least loaded unit, in its emptiest bin that has room.

    Empty bins are used first. This is ``fill_least_loaded`` without its data structures: room in one budget says
    nothing about another, so every bin is checked for every item.
    """
    bin_of = np.empty(len(sizes), dtype=np.int64)
    kernel = compiled(_scan_bins, len(sizes), worth=WORTH_COMPILING) or _scan_bins_in_numpy
    weights = np.ascontiguousarray(weights)  # also for a column of sizes, which would trigger another compilation
    is_placed = kernel(sizes, weights, capacities, num_units, bins_per_unit, bin_of)
    return bin_of if is_placed else None


def _scan_bins(
    sizes: Int64Array,
    weights: Int64Array,
    capacities: Int64Array,
    num_units: int,
    bins_per_unit: int,
    bin_of: Int64Array,
) -> bool:
    """Write the bin of each item; return false if one has no room. To be compiled."""
    sums = np.zeros((num_units * bins_per_unit, len(capacities)), dtype=np.int64)
    loads = np.zeros(num_units, dtype=np.int64)
    for item in range(len(sizes)):
        best = -1
        for place in range(len(sums)):
            unit = place // bins_per_unit
            if best >= 0:
                best_unit = best // bins_per_unit
                if loads[unit] > loads[best_unit]:
                    continue
                if loads[unit] == loads[best_unit] and sums[place, 0] >= sums[best, 0]:
                    continue
            has_room = True
            for column in range(len(capacities)):
                if sums[place, column] + sizes[item, column] > capacities[column]:
                    has_room = False
                    break
            if has_room:
                best = place
        if best < 0:
            return False
        for column in range(len(capacities)):
            sums[best, column] += sizes[item, column]
        loads[best // bins_per_unit] += weights[item]
        bin_of[item] = best
    return True


def _scan_bins_in_numpy(
    sizes: Int64Array,
    weights: Int64Array,
    capacities: Int64Array,
    num_units: int,
    bins_per_unit: int,
    bin_of: Int64Array,
) -> bool:
    """Do the same in NumPy, all bins of an item at once."""
    sums = np.zeros((num_units * bins_per_unit, len(capacities)), dtype=np.int64)
    loads = np.zeros(num_units * bins_per_unit, dtype=np.int64)  # load of the unit of each bin
    for item, size in enumerate(sizes):
        places = np.flatnonzero((sums + size <= capacities).all(axis=1))
        if len(places) == 0:
            return False
        places = places[loads[places] == loads[places].min()]
        best = int(places[np.argmin(sums[places, 0])])
        sums[best] += size
        first = best // bins_per_unit * bins_per_unit
        loads[first : first + bins_per_unit] += weights[item]
        bin_of[item] = best
    return True

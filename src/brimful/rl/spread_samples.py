"""Items spread over an exact number of micro-batches, none empty, none above a capacity."""

import numpy as np

from brimful.base.typing import Int64Array
from brimful.plan.counts.histogram import Histogram
from brimful.plan.fit.best_fit_decreasing import best_fit_decreasing
from brimful.plan.fit.spread import occupy_empty_bins
from brimful.plan.vector.pack_vectors import pack_vectors
from brimful.rl.fill_bins import fill_least_loaded, fill_vectors, scattered
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
    units, bins_of_unit = (num_ranks, micro_batches) if is_step_barrier else (num_bins, 1)
    lengths, capacity = sizes[:, 0], int(capacities[0])
    bin_of = None
    if sizes.shape[1] > 1:
        loads = np.zeros(units, dtype=np.int64)
        bin_of = fill_vectors(sizes, weights, capacities, loads=loads, bins_per_unit=bins_of_unit)
    else:
        if not is_step_barrier:
            bin_of = _in_levels(lengths, weights, capacity, num_ranks, micro_batches)
        if bin_of is None:
            bin_of = fill_least_loaded(lengths, weights, capacity=capacity, num_units=units, bins_per_unit=bins_of_unit)
    if bin_of is None:
        is_step_barrier = False
        if sizes.shape[1] > 1:
            packing = pack_vectors(sizes, capacities=capacities, seed=0).packs
        else:
            bin_of = fill_least_loaded(lengths, lengths, capacity=capacity, num_units=num_bins)
            if bin_of is None:
                runs = best_fit_decreasing(Histogram.of(lengths), capacity=capacity)
                packing = runs.assign(np.arange(len(lengths)))
        if bin_of is None:
            if len(packing) > num_bins:
                return None
            # Packs are bins, and ``occupy_empty_bins`` divides them until there are enough.
            bin_of = scattered(np.repeat(np.arange(len(packing)), packing.sizes), packing.items)
    occupy_empty_bins(bin_of, num_bins)
    return numbered_by_cost(bin_of, weights, num_ranks, micro_batches, within_ranks=is_step_barrier)


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


def numbered_by_cost(
    bin_of: Int64Array, weights: Int64Array, num_ranks: int, micro_batches: int, *, within_ranks: bool
) -> Int64Array:
    """Number the micro-batches by falling cost: if one exceeds the memory, the step fails at once.

    If they may change ranks, micro-batches of nearly equal cost are in the same slice, and each rank has heavy and
    light ones in turn::

        costs of six micro-batches, two ranks      9 8 | 7 7 | 5 3
        rank 0                                     9     7     5          slices, every second one reversed:
        rank 1                                       8   7       3        21 and 18

    Args:
        bin_of: ``int64[num_items]``, micro-batches in any order; of rank after rank if they stay ``within_ranks``.

    Returns:
        ``int64[num_items]``: the micro-batch ``rank · micro_batches + slice`` of each item.
    """
    numbers = np.arange(num_ranks * micro_batches)
    costs = np.bincount(bin_of, weights=weights, minlength=len(numbers))  # exact below 2**53
    if within_ranks:
        by_cost = np.argsort(-costs.reshape(num_ranks, micro_batches), axis=1, kind="stable")
        by_cost += numbers[::micro_batches, None]
    else:
        slices = np.argsort(-costs, kind="stable").reshape(micro_batches, num_ranks)
        slices[1::2] = slices[1::2, ::-1]
        by_cost = slices.T
    return scattered(numbers, by_cost.reshape(-1))[bin_of]


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
    units = num_ranks * (micro_batches - slices)
    first_bin = num_ranks * slices
    return fill_least_loaded(lengths, weights, capacity=capacity, num_units=units, bin_of=bin_of, first_bin=first_bin)

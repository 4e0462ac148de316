"""Items spread over an exact number of micro-batches, and groups dealt to ranks, none above a
capacity.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from brimful.base.typing import Int64Array
from brimful.plan.counts.histogram import Histogram
from brimful.plan.fit.best_fit_decreasing import best_fit_decreasing
from brimful.plan.fit.spread import occupy_empty_bins
from brimful.planners.vector.pack_vectors import pack_vectors
from brimful.rl.fill_bins import fill_least_loaded, fill_vectors, run_loop, scattered
from brimful.rl.levels import fill_levels

_LIMITS = 4
"""Number of token limits of a rank to try, from its whole room down to almost an equal share of all
tokens.
"""


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

    Uses the first of these methods that succeeds: slices of equal cost, least load first by cost,
    least load first by tokens, best fit decreasing with packs divided until their number suffices.
    The last method finds room whenever ``plan_packs`` does.

    Pure: no I/O, no randomness.

    Args:
        sizes: ``int64[num_items, num_budgets]``, tokens first; in the order of ``placing_order``.
        weights: ``int64[num_items]``, the cost of each item as a whole number of at least 1.
        capacities: ``int64[num_budgets]``.
        num_ranks, micro_batches: number of ranks, and of micro-batches of each; their product is at
            most the number of items.
        is_step_barrier: ranks wait once per step, so that micro-batches need not be equal.

    Returns:
        ``int64[num_items]``: the micro-batch ``rank · micro_batches + number`` of each item; None
        without room.
    """
    num_bins = num_ranks * micro_batches
    num_units, bins_of_unit = (num_ranks, micro_batches) if is_step_barrier else (num_bins, 1)
    lengths, capacity = sizes[:, 0], int(capacities[0])
    bin_of = None
    if sizes.shape[1] > 1:
        loads = np.zeros(num_units, dtype=np.int64)
        bin_of = fill_vectors(sizes, weights, capacities, loads=loads, bins_per_unit=bins_of_unit)
    else:
        if not is_step_barrier:
            # Slices up to their level, and the remaining slices by least load. Costs are raised
            # where necessary so that they fall with the lengths: a level then holds a little less.
            falling_order = np.maximum.accumulate(weights[::-1])[::-1]
            bin_of = np.full(len(lengths), -1, dtype=np.int64)
            slices = run_loop(
                fill_levels, lengths, falling_order, int(falling_order.sum()), capacity, num_ranks,
                micro_batches, results=(np.arange(len(lengths) + 1), bin_of),
            )  # fmt: skip
            if slices < micro_batches:
                units = num_ranks * (micro_batches - slices)
                bin_of = fill_least_loaded(
                    lengths, weights, capacity=capacity, num_units=units, bin_of=bin_of,
                    first_bin=num_ranks * slices,
                )  # fmt: skip
            elif int(bin_of.min()) < 0:
                bin_of = None
        if bin_of is None:
            bin_of = fill_least_loaded(
                lengths, weights, capacity=capacity, num_units=num_units, bins_per_unit=bins_of_unit
            )
    is_within_ranks = is_step_barrier and bin_of is not None
    if bin_of is None and sizes.shape[1] == 1:
        bin_of = fill_least_loaded(lengths, lengths, capacity=capacity, num_units=num_bins)
    if bin_of is None:
        if sizes.shape[1] > 1:
            packing = pack_vectors(sizes, capacities=capacities, seed=0).packs
        else:
            runs = best_fit_decreasing(Histogram.of(lengths), capacity=capacity)
            packing = runs.assign(np.arange(len(lengths)))
        if len(packing) > num_bins:
            return None
        # Packs are bins, and ``occupy_empty_bins`` divides them until there are enough.
        bin_of = scattered(np.repeat(np.arange(len(packing)), packing.sizes), packing.items)
    occupy_empty_bins(bin_of, num_bins)
    return numbered_by_cost(bin_of, weights, num_ranks, micro_batches, within_ranks=is_within_ranks)


def placing_order(
    sizes: Int64Array, capacities: Int64Array, weights: Int64Array | None = None
) -> Int64Array:
    """Return the items in the order in which they are placed: largest share of any capacity first.

    Args:
        sizes: ``int64[num_items, num_budgets]``.
        capacities: ``int64[num_budgets]``.
        weights: ``int64[num_items]``: of equally large items, the heaviest comes first; None to
            order them by position.

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
    bin_of: Int64Array,
    weights: Int64Array,
    num_ranks: int,
    micro_batches: int,
    *,
    within_ranks: bool,
) -> Int64Array:
    """Number the micro-batches by falling cost: if one exceeds the memory, the step fails at once.

    If they may change ranks, micro-batches of nearly equal cost are in the same slice, and each
    rank has heavy and light ones in turn::

        costs of six micro-batches, two ranks      9 8 | 7 7 | 5 3
        rank 0                                     9     7     5          slices, every second one reversed:
        rank 1                                       8   7       3        21 and 18

    Args:
        bin_of: ``int64[num_items]``, micro-batches in any order; of rank after rank if they stay
            ``within_ranks``.

    Returns:
        ``int64[num_items]``: the micro-batch ``rank · micro_batches + slice`` of each item.
    """
    bins = np.arange(num_ranks * micro_batches)
    costs = np.bincount(bin_of, weights=weights, minlength=len(bins))  # exact below 2**53
    if within_ranks:
        by_cost = np.argsort(-costs.reshape(num_ranks, micro_batches), axis=1, kind="stable")
        by_cost += bins[::micro_batches, None]
    else:
        slices = np.argsort(-costs, kind="stable").reshape(micro_batches, num_ranks)
        slices[1::2] = slices[1::2, ::-1]
        by_cost = slices.T
    return scattered(bins, by_cost.reshape(-1))[bin_of]


def ranks_of_groups(
    sizes: Int64Array,
    weights: Int64Array,
    capacities: Int64Array,
    counts: Int64Array,
    *,
    num_ranks: int,
    micro_batches: int,
) -> Iterator[tuple[Int64Array, bool]]:
    """Yield assignments of groups to ranks, and true for a last resort: equal by cost, tokens,
    samples.

    With only a budget of tokens, ranks are balanced by cost under several limits of tokens, and by
    exchanges between ranks: the samples of a rank that is full to its last token may not fit into
    its micro-batches, or only unequally.

    Pure: no I/O, no randomness.

    Args:
        sizes: ``int64[num_groups, num_budgets]``, in the order of ``placing_order``.
        weights, counts: ``int64[num_groups]``: cost and number of samples of each group.
        capacities: ``int64[num_budgets]``, limits of one micro-batch.
        num_ranks, micro_batches: number of ranks, and of micro-batches of each.
    """
    room = capacities * micro_batches
    if len(room) > 1:
        for keys in (weights, sizes[:, 0], counts):
            way = fill_vectors(sizes, keys, room, loads=np.zeros(num_ranks, dtype=np.int64))
            if way is not None:
                yield way, keys is not weights
        return
    tokens, most = sizes[:, 0], int(room[0])
    mean = -(-int(tokens.sum()) // num_ranks)
    limits = [most - (most - mean) * step // _LIMITS for step in range(_LIMITS)]
    for keys, limit in [*((weights, limit) for limit in limits), (tokens, most)]:
        way = fill_least_loaded(tokens, keys, capacity=limit, num_units=num_ranks)
        if way is None:
            continue
        exchanged = way.copy()
        run_loop(
            exchange_between_ranks, tokens, weights, limit, num_ranks,
            results=(exchanged,),
        )  # fmt: skip
        yield exchanged, False
        # The assignment that is equal in tokens leaves the largest room in the micro-batches.
        if keys is tokens:
            yield way, False
    way = fill_least_loaded(tokens, counts, capacity=most, num_units=num_ranks)
    if way is not None:
        yield way, True


def deal_large_first(
    sizes: Int64Array,
    weights: Int64Array,
    large_weights: Int64Array,
    room: Int64Array,
    *,
    num_ranks: int,
) -> Int64Array | None:
    """Give each group to a rank: first balance the cost of large samples, then the whole cost.

    ::

        groups (weight, of which large)    A 9, 8    B 8, 8    C 9, 0    D 8, 0          2 ranks
        only by weight                     A B | C D        both large samples on one rank: the other waits twice
        large first                        A D | B C

    Pure: no I/O, no randomness.

    Args:
        sizes: ``int64[num_groups, num_budgets]``.
        weights: ``int64[num_groups]``: cost of each group.
        large_weights: ``int64[num_groups]``: the cost of its samples above the mean micro-batch.
        room: ``int64[num_budgets]``: room of a rank in all its micro-batches.
        num_ranks: number of ranks.

    Returns:
        ``int64[num_groups]``: the rank of each group; None if a group has no room.

    Cost: O(groups · ranks).

    >>> weights, large = np.array([9, 9, 8, 8]), np.array([8, 0, 8, 0])
    >>> deal_large_first(np.ones((4, 1), dtype=np.int64), weights, large, np.array([2]), num_ranks=2).tolist()
    [0, 1, 1, 0]
    """
    by_large = np.argsort(-large_weights, kind="stable")
    by_large = by_large[large_weights[by_large] > 0]
    others = np.flatnonzero(large_weights == 0)
    others = others[np.argsort(-weights[others], kind="stable")]
    rank_of = np.full(len(sizes), -1, dtype=np.int64)
    loads = np.zeros(num_ranks, dtype=np.int64)
    sums = np.zeros((num_ranks, len(room)), dtype=np.int64)
    for groups, keys in ((by_large, large_weights), (others, weights)):
        ranks = fill_vectors(sizes[groups], keys[groups], room, loads=loads, sums=sums)
        if ranks is None:
            return None
        rank_of[groups] = ranks
        # The first round balanced the cost of large samples, the second balances the cost of all.
        loads[:] = 0
        np.add.at(loads, ranks, weights[groups])
    return rank_of


def exchange_between_ranks(
    sizes: Sequence[int], weights: Sequence[int], room: int, num_ranks: int, rank_of: list[int]
) -> int:
    """Move or exchange groups between the busiest rank and others until nothing helps; in place.

    ::

        weights 9 7 6 5 3, 2 ranks        9 5 3 | 7 6      17 and 13
        exchanged: 9 with 7               7 5 3 | 9 6      15 and 15

    The busiest rank is first tried with the least busy one, and the exchange that makes the two
    most equal is made. The exchanges end when the busiest rank is within a thousandth of the mean.

    Pure: no I/O, no randomness. To be compiled.

    Args:
        sizes: ``int64[num_groups]``: tokens.
        weights: ``int64[num_groups]``: cost, at least 1.
        room: tokens of a rank in all its micro-batches.
        num_ranks: number of ranks.
        rank_of: ``int64[num_groups]``: the rank of each group, changed in place.

    Returns:
        Number of exchanges.

    Cost: O(groups) for each exchange, and at most eight exchanges for each rank.

    >>> weights, rank_of = np.array([9, 7, 6, 5, 3]), np.array([0, 1, 1, 0, 0])
    >>> exchange_between_ranks([1] * 5, weights, 4, 2, rank_of), np.bincount(rank_of, weights).tolist()
    (1, [15.0, 15.0])
    """
    loads = [0 for _ in range(num_ranks)]
    tokens = loads[:]
    for group in range(len(sizes)):
        loads[rank_of[group]] += weights[group]
        tokens[rank_of[group]] += sizes[group]
    mean = (sum(loads) + num_ranks - 1) // num_ranks
    last_turn = [0 for _ in range(num_ranks)]
    for turn in range(8 * num_ranks):
        busiest = 0
        for rank in range(num_ranks):
            if loads[rank] > loads[busiest]:
                busiest = rank
        if loads[busiest] - mean <= mean >> 10:
            return turn
        best_given, best_taken, best_rank = -1, -1, -1
        givers = [group for group in range(len(sizes)) if rank_of[group] == busiest]
        # Marks of this turn: the ranks that were tried, and the busiest itself.
        last_turn[busiest] = turn + 1
        for _ in range(num_ranks - 1):
            other = -1
            for rank in range(num_ranks):
                if last_turn[rank] <= turn and (other < 0 or loads[rank] < loads[other]):
                    other = rank
            last_turn[other] = turn + 1
            # Moving half the difference is best; the moved amount must be less than the whole
            # difference.
            difference = loads[busiest] - loads[other]
            least_rest = difference
            # First -1: nothing is taken in exchange.
            takers = [
                group for group in range(-1, len(sizes)) if group < 0 or rank_of[group] == other
            ]
            for given_item in givers:
                for taken_item in takers:
                    weight, change = weights[given_item], sizes[given_item]
                    if taken_item >= 0:
                        weight, change = weight - weights[taken_item], change - sizes[taken_item]
                    rest = abs(difference - 2 * weight)
                    if (
                        rest < least_rest
                        and tokens[other] + change <= room
                        and tokens[busiest] - change <= room
                    ):
                        least_rest, best_given, best_taken, best_rank = (
                            rest,
                            given_item,
                            taken_item,
                            other,
                        )
            if best_rank >= 0:
                break
        if best_rank < 0:
            return turn
        weight, size = weights[best_given], sizes[best_given]
        rank_of[best_given] = best_rank
        if best_taken >= 0:
            weight -= weights[best_taken]
            size -= sizes[best_taken]
            rank_of[best_taken] = busiest
        loads[busiest] -= weight
        loads[best_rank] += weight
        tokens[busiest] -= size
        tokens[best_rank] += size
    return 8 * num_ranks

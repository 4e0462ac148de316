"""Groups dealt to ranks: groups stay whole, and ranks get equal work."""

from collections.abc import Iterator, Sequence

import numpy as np

from brimful.base.typing import Int64Array
from brimful.rl.exchange_samples import exchange_between_ranks
from brimful.rl.fill_bins import fill_least_loaded, run_loop
from brimful.rl.spread_samples import fill_vectors

_LIMITS = 4
"""Number of token limits of a rank to try, from its whole room down to almost an equal share of all tokens."""


def ranks_of_groups(
    sizes: Int64Array,
    weights: Int64Array,
    capacities: Int64Array,
    counts: Int64Array,
    *,
    num_ranks: int,
    micro_batches: int,
) -> Iterator[tuple[Int64Array, bool]]:
    """Yield assignments of groups to ranks, and true for a last resort: equal by cost, tokens, samples.

    With only a budget of tokens, ranks are balanced by cost under several limits of tokens, and by exchanges between
    ranks: the samples of a rank that is full to its last token may not fit into its micro-batches, or only unequally.

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
            way = fill_vectors(sizes, keys, room, num_units=num_ranks, bins_per_unit=1)
            if way is not None:
                yield way, keys is not weights
        return
    tokens, most = sizes[:, 0], int(room[0])
    mean = -(-int(tokens.sum()) // num_ranks)
    limits = [most - (most - mean) * number // _LIMITS for number in range(_LIMITS)]
    for keys, limit in [*((weights, limit) for limit in limits), (tokens, most)]:
        way = fill_least_loaded(tokens, keys, capacity=limit, num_units=num_ranks, bins_per_unit=1)
        if way is None:
            continue
        exchanged = way.copy()
        exchange_between_ranks(tokens, weights, exchanged, room=limit, num_ranks=num_ranks)
        yield exchanged, False
        # The assignment that is equal in tokens leaves the largest room in the micro-batches.
        if keys is tokens:
            yield way, False
    way = fill_least_loaded(tokens, counts, capacity=most, num_units=num_ranks, bins_per_unit=1)
    if way is not None:
        yield way, True


def deal_large_first(
    sizes: Int64Array, weights: Int64Array, large_weights: Int64Array, room: Int64Array, *, num_ranks: int
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
    # The first round balances the cost of large samples, the second the cost of all.
    rounds = ((by_large, large_weights), (others, weights))
    for groups, keys in rounds:
        loads = np.zeros(num_ranks, dtype=np.int64)
        placed = rank_of >= 0
        np.add.at(loads, rank_of[placed], weights[placed])
        sums = np.zeros(num_ranks * len(room), dtype=np.int64)
        for column in range(len(room)):
            np.add.at(sums[column :: len(room)], rank_of[placed], sizes[placed, column])
        has_room = run_loop(_deal, len(groups), groups, sizes, keys, room, results=(loads, sums, rank_of))
        if not has_room:
            return None
    return rank_of


def _deal(
    groups: Sequence[int],
    sizes: Sequence[Sequence[int]],
    keys: Sequence[int],
    room: Sequence[int],
    loads: list[int],
    sums: list[int],
    rank_of: list[int],
) -> bool:
    """Give each group to the least loaded rank with room; return false if no rank has room. To be compiled."""
    num_budgets = len(room)
    for group in groups:
        best = -1
        for rank in range(len(loads)):
            if best >= 0 and loads[rank] >= loads[best]:
                continue
            has_room = True
            for column in range(num_budgets):
                if sums[rank * num_budgets + column] + sizes[group][column] > room[column]:
                    has_room = False
            if has_room:
                best = rank
        if best < 0:
            return False
        rank_of[group] = best
        loads[best] += keys[group]
        for column in range(num_budgets):
            sums[best * num_budgets + column] += sizes[group][column]
    return True

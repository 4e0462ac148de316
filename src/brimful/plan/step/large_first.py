"""Groups to ranks, those with large samples first: no rank gets two micro-batches that all remaining_groups wait for."""

from heapq import heapify, heappop, heappush

import numpy as np

from brimful.typing import Int64Array


def deal_large_first(
    sizes: Int64Array, weights: Int64Array, large_weights: Int64Array, room: Int64Array, *, num_ranks: int
) -> Int64Array | None:
    """Give each group to a rank: first even in what large samples cost, then even in all.

    ::

        groups (weight, of which large)    A 9, 8    B 8, 8    C 9, 0    D 8, 0          2 ranks
        by weight alone                    A B | C D        both large samples on one rank: the other waits twice
        large first                        A D | B C

    Pure: no I/O, no randomness.

    Args:
        sizes: ``int64[num_groups, num_budgets]``.
        weights: ``int64[num_groups]``: cost of each group.
        large_weights: ``int64[num_groups]``: the part of it that samples above the mean micro-batch cost.
        room: ``int64[num_budgets]``: of a rank in all its micro-batches.
        num_ranks: of the step.

    Returns:
        ``int64[num_groups]``: the rank of each; None if one has no room.

    Cost: O(n·log n) where there is room.

    >>> weights, large = np.array([9, 9, 8, 8]), np.array([8, 0, 8, 0])
    >>> deal_large_first(np.ones((4, 1), dtype=np.int64), weights, large, np.array([2]), num_ranks=2).tolist()
    [0, 1, 1, 0]
    """
    rank_of = np.full(len(sizes), -1, dtype=np.int64)
    loads = np.zeros(num_ranks, dtype=np.int64)
    sums = np.zeros((num_ranks, sizes.shape[1]), dtype=np.int64)
    by_large = np.argsort(-large_weights, kind="stable")
    by_large = by_large[large_weights[by_large] > 0]
    remaining_groups = np.flatnonzero(large_weights == 0)
    remaining_groups = remaining_groups[np.argsort(-weights[remaining_groups], kind="stable")]
    for groups, keys in ((by_large, large_weights), (remaining_groups, weights)):
        # Loads of the first round are those of large samples, of the second those of all.
        ranks = [(0 if keys is large_weights else int(loads[rank]), rank) for rank in range(num_ranks)]
        heapify(ranks)
        for group in groups.tolist():
            full = []
            while ranks and bool((sums[ranks[0][1]] + sizes[group] > room).any()):
                full.append(heappop(ranks))
            if not ranks:
                return None
            load, rank = heappop(ranks)
            rank_of[group] = rank
            sums[rank] += sizes[group]
            loads[rank] += weights[group]
            for entry in (*full, (load + int(keys[group]), rank)):
                heappush(ranks, entry)
    return rank_of

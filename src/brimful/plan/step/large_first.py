"""Groups dealt to ranks, groups with large samples first: no rank gets two micro-batches that all others wait for."""

from collections.abc import Sequence

import numpy as np

from brimful.plan.step.fill import run_loop
from brimful.typing import Int64Array


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

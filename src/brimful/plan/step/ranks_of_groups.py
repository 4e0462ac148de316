"""Groups dealt to ranks: groups stay whole, and ranks get equal work."""

from collections.abc import Iterator

from brimful.plan.step.exchange import exchange_between_ranks
from brimful.plan.step.fill import fill_least_loaded
from brimful.plan.step.spread import fill_vectors
from brimful.typing import Int64Array

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

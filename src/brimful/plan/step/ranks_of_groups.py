"""Groups to ranks: each stays whole, and ranks get equal work."""

from collections.abc import Iterator

from brimful.plan.step.exchange import exchange_between_ranks
from brimful.plan.step.fill import fill_least_loaded
from brimful.plan.step.spread import fill_vectors
from brimful.typing import Int64Array

_LIMITS = 4
"""Limits of tokens of a rank that are tried, from its whole room down to near an equal share of all tokens."""


def ranks_of_groups(
    sizes: Int64Array,
    weights: Int64Array,
    capacities: Int64Array,
    counts: Int64Array,
    *,
    num_ranks: int,
    micro_batches: int,
) -> Iterator[tuple[Int64Array, bool]]:
    """Yield ways to give groups to ranks, and true for a last resort: equal by cost, tokens, samples.

    Under a budget of tokens alone, ranks are made equal by cost below several limits of tokens, and by exchanges between
    them: a rank that is full to its last token finds no room in its micro-batches, or no equal ones.

    Pure: no I/O, no randomness.

    Args:
        sizes: ``int64[num_groups, num_budgets]``, in the order of ``placing_order``.
        weights, counts: ``int64[num_groups]``: cost and samples of each.
        capacities: of one micro-batch.
        num_ranks, micro_batches: of the step.
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
        # Equal in tokens, it leaves most room in the micro-batches.
        if keys is tokens:
            yield way, False
    way = fill_least_loaded(tokens, counts, capacity=most, num_units=num_ranks, bins_per_unit=1)
    if way is not None:
        yield way, True

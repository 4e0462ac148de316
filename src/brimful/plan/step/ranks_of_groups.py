"""Groups to ranks: each stays whole, and ranks get equal work."""

from collections.abc import Iterator

import numpy as np

from brimful.plan.step.exchange import exchange_between_ranks
from brimful.plan.step.fill import fill_least_loaded
from brimful.plan.step.spread import fill_vectors
from brimful.typing import Int64Array


def ranks_of_groups(
    sizes: Int64Array,
    weights: Int64Array,
    capacities: Int64Array,
    counts: Int64Array,
    *,
    num_ranks: int,
    micro_batches: int,
) -> Iterator[Int64Array]:
    """Yield ways to give groups to ranks, best first: equal by cost, by tokens, by samples.

    Under a budget of tokens alone, each is improved by exchanges between ranks, and comes as it was behind that: a rank that
    is full to its last token may have no room in its micro-batches.

    Pure: no I/O, no randomness.

    Args:
        sizes: ``int64[num_groups, num_budgets]``, in the order of ``placing_order``.
        weights, counts: ``int64[num_groups]``: cost and samples of each.
        capacities: of one micro-batch.
    """
    room = capacities * micro_batches
    for keys in (weights, sizes[:, 0], counts):
        if len(room) > 1:
            way = fill_vectors(sizes, keys, room, num_units=num_ranks, bins_per_unit=1)
        else:
            way = fill_least_loaded(sizes[:, 0], keys, capacity=int(room[0]), num_units=num_ranks, bins_per_unit=1)
        if way is None:
            continue
        if len(room) == 1:
            exchanged = way.copy()
            exchange_between_ranks(sizes[:, 0], weights, exchanged, room=int(room[0]), num_ranks=num_ranks)
            if not np.array_equal(exchanged, way):
                yield exchanged
        yield way

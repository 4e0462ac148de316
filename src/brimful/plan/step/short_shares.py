"""Micro-batches with too few tokens or samples for all ranks get samples from others."""

import numpy as np

from brimful.typing import Int64Array


def occupy_all_ranks(
    lengths: Int64Array,
    micro_batch: Int64Array,
    group: Int64Array,
    degree: Int64Array,
    *,
    capacity: int,
    num_ranks: int,
) -> None:
    """Move samples from other micro-batches to micro-batches that leave ranks without a token; in place.

    Such a micro-batch shares a sample among more ranks than it has tokens; or no group can double its ranks, if the
    number of ranks is not a power of two.

    ::

        4 ranks     micro-batch 0: 9 | 9 | 8 2 | 8 2     micro-batch 1: 3 on all four
        after       micro-batch 0: 9 | 9 | 8 2 | 8       micro-batch 1: 3 on two, 2 on two

    Only groups that keep a sample give one, and the shortest samples are taken, so that little work moves; groups of
    the micro-batch itself come last. If no such sample is left, short shares and empty ranks remain.

    Args:
        lengths: ``int64[num_items]``, descending.
        micro_batch, group, degree: ``int64[num_items]``: groups are numbered within a micro-batch.
        capacity: maximum tokens of a rank.
        num_ranks: number of ranks of every micro-batch.
    """
    for number in short_micro_batches(lengths, micro_batch, group, degree, num_ranks).tolist():
        items = np.flatnonzero(micro_batch == number)
        members = [items[group[items] == name].tolist() for name in np.unique(group[items])]
        degrees = [_least_degree(lengths[rows], capacity) for rows in members]
        is_short = np.isin(micro_batch, short_micro_batches(lengths, micro_batch, group, degree, num_ranks))
        _, key, counts = np.unique(micro_batch * num_ranks + group, return_inverse=True, return_counts=True)
        # The last items are the shortest.
        donors = [item for item in np.flatnonzero(~is_short & (lengths <= capacity)).tolist() if counts[key[item]] > 1]
        while sum(degrees) < num_ranks:
            free = num_ranks - sum(degrees)
            shares = [
                (int(lengths[rows].sum()) / degrees[place], place)
                for place, rows in enumerate(members)
                if degrees[place] <= free and 2 * degrees[place] <= int(lengths[rows].min())
            ]
            if shares:
                degrees[max(shares)[1]] *= 2
                continue
            while donors and counts[key[donors[-1]]] < 2:
                donors.pop()
            if donors:
                item = donors.pop()
                counts[key[item]] -= 1
            else:
                shortest = [(int(lengths[rows[-1]]), place) for place, rows in enumerate(members) if len(rows) > 1]
                if not shortest:
                    return
                item = members[min(shortest)[1]].pop()
                # With one sample less, a group may need fewer ranks: recompute all degrees.
                degrees = [_least_degree(lengths[rows], capacity) for rows in members]
                if lengths[item] > capacity:
                    return
            members.append([item])
            degrees.append(1)
        for place, rows in enumerate(members):
            micro_batch[rows], group[rows], degree[rows] = number, place, degrees[place]


def short_micro_batches(
    lengths: Int64Array, micro_batch: Int64Array, group: Int64Array, degree: Int64Array, num_ranks: int
) -> Int64Array:
    """Return the micro-batches that share a sample among more ranks than it has tokens, or have unused ranks."""
    _, first_item = np.unique(micro_batch * num_ranks + group, return_index=True)
    ranks = np.bincount(micro_batch[first_item], weights=degree[first_item])
    return np.union1d(micro_batch[degree > lengths], np.flatnonzero(ranks < num_ranks))


def _least_degree(lengths: Int64Array, capacity: int) -> int:
    """Return the smallest degree at which a group holds these samples within the capacity."""
    degree = 1
    while int((lengths if degree == 1 else 2 * -(-lengths // (2 * degree))).sum()) > capacity:
        degree *= 2
    return degree

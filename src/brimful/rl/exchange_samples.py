"""Exchanges that shorten the waits of ranks: groups between ranks, and samples between the micro-batches of a rank."""

from collections.abc import Sequence

import numpy as np

from brimful.base.ragged import offsets_of
from brimful.base.typing import Int64Array
from brimful.rl.fill_bins import run_loop


def exchange_between_ranks(
    sizes: Int64Array, weights: Int64Array, rank_of: Int64Array, *, room: int, num_ranks: int
) -> None:
    """Move or exchange groups between the busiest rank and others until nothing helps; in place.

    ::

        weights 9 7 6 5 3, 2 ranks        9 5 3 | 7 6      17 and 13
        exchanged: 9 with 7               7 5 3 | 9 6      15 and 15

    The busiest rank is first tried with the least busy one, and the exchange that makes the two most equal is made. The
    exchanges end when the busiest rank is within a thousandth of the mean.

    Pure: no I/O, no randomness.

    Args:
        sizes: ``int64[num_groups]``: tokens.
        weights: ``int64[num_groups]``: cost, at least 1.
        rank_of: ``int64[num_groups]``: the rank of each group, changed in place.
        room: tokens of a rank in all its micro-batches.
        num_ranks: number of ranks.

    Cost: O(groups) for each exchange, and at most eight exchanges for each rank.

    >>> weights, rank_of = np.array([9, 7, 6, 5, 3]), np.array([0, 1, 1, 0, 0])
    >>> exchange_between_ranks(np.ones(5, dtype=np.int64), weights, rank_of, room=4, num_ranks=2)
    >>> np.bincount(rank_of, weights).tolist()
    [15.0, 15.0]
    """
    loads, tokens = (np.zeros(num_ranks, dtype=np.int64) for _ in range(2))
    np.add.at(loads, rank_of, weights)
    np.add.at(tokens, rank_of, sizes)
    run_loop(_exchange_between_ranks, len(sizes), sizes, weights, int(room), results=(loads, tokens, rank_of))


def _exchange_between_ranks(
    sizes: Sequence[int], weights: Sequence[int], room: int, loads: list[int], tokens: list[int], rank_of: list[int]
) -> int:
    """Exchange, and return the number of exchanges; to be compiled. ``loads`` and ``tokens`` are per rank."""
    num_ranks = len(loads)
    mean = 0
    for load in loads:
        mean += load
    mean = (mean + num_ranks - 1) // num_ranks
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
            # Moving half the difference is best; the moved amount must be less than the whole difference.
            difference = loads[busiest] - loads[other]
            least_rest = difference
            takers = [group for group in range(len(sizes)) if rank_of[group] == other]
            for given_item in givers:
                rest = abs(difference - 2 * weights[given_item])
                if rest < least_rest and tokens[other] + sizes[given_item] <= room:
                    least_rest, best_given, best_taken, best_rank = rest, given_item, -1, other
                for taken_item in takers:
                    rest = abs(difference - 2 * (weights[given_item] - weights[taken_item]))
                    change = sizes[given_item] - sizes[taken_item]
                    if rest < least_rest and tokens[other] + change <= room and tokens[busiest] - change <= room:
                        least_rest, best_given, best_taken, best_rank = rest, given_item, taken_item, other
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


def exchange_within_ranks(
    lengths: Int64Array,
    weights: Int64Array,
    bin_of: Int64Array,
    *,
    capacity: int,
    num_ranks: int,
    micro_batches: int,
) -> Int64Array:
    """Move or exchange samples of a rank between its micro-batches while this shortens the step.

    A slice takes as long as its slowest rank. This rank moves a sample to another of its micro-batches, or exchanges
    samples, if the sum of both slices' times falls: work below the time of its slice costs nothing.

    ::

        costs of 2 ranks, 2 slices      9 8 | 3         slices take 17 and 12: 29
                                        6 5 | 7 5
        rank 0 moves 9 to its other slice       8 | 3 9         11 and 12: 23

    Pure: no I/O, no randomness.

    Args:
        lengths, weights: ``int64[num_items]``.
        bin_of: ``int64[num_items]``: the micro-batch ``rank · micro_batches + slice`` of each item; none is empty.
        capacity: capacity of a micro-batch.
        num_ranks, micro_batches: number of ranks, and of micro-batches of each.

    Returns:
        ``int64[num_items]``: micro-batches after the exchanges; none is empty.

    Cost: O(items of a micro-batch · items of a rank) for each exchange; at most two exchanges for each micro-batch.

    >>> weights, bin_of = np.array([9, 8, 3, 6, 5, 7, 5]), np.array([0, 0, 1, 2, 2, 3, 3])
    >>> exchange_within_ranks(
    ...     np.ones_like(weights), weights, bin_of, capacity=9, num_ranks=2, micro_batches=2
    ... ).tolist()
    [1, 0, 1, 2, 2, 3, 3]
    """
    num_bins = num_ranks * micro_batches
    # Rank after rank, so that the loop for a rank reads only its own items.
    by_rank = np.argsort(bin_of // micro_batches, kind="stable")
    lengths, weights, slice_of = lengths[by_rank], weights[by_rank], bin_of[by_rank]
    loads, tokens, counts = (np.zeros(num_bins, dtype=np.int64) for _ in range(3))
    np.add.at(loads, slice_of, weights)
    np.add.at(tokens, slice_of, lengths)
    np.add.at(counts, slice_of, 1)
    offsets = offsets_of(counts)[::micro_batches]
    times = loads.reshape(num_ranks, micro_batches).max(axis=0)
    slice_of %= micro_batches
    run_loop(
        _exchange_within_ranks, len(lengths), lengths, weights, offsets, int(capacity), int(micro_batches),
        results=(loads, tokens, counts, times, slice_of),
    )  # fmt: skip
    exchanged = np.empty_like(bin_of)
    exchanged[by_rank] = slice_of + np.repeat(np.arange(num_ranks), np.diff(offsets)) * micro_batches
    return exchanged


def _exchange_within_ranks(
    lengths: Sequence[int],
    weights: Sequence[int],
    offsets: Sequence[int],
    capacity: int,
    micro_batches: int,
    loads: list[int],
    tokens: list[int],
    counts: list[int],
    times: list[int],
    slice_of: list[int],
) -> int:
    """Exchange, and return the number of exchanges; to be compiled.

    ``loads``, ``tokens`` and ``counts`` are by micro-batch ``rank · micro_batches + slice``, ``times`` by slice.
    """
    num_ranks = len(offsets) - 1
    num_exchanges = 0
    is_better = True
    while is_better and num_exchanges < 2 * num_ranks * micro_batches:
        is_better = False
        for number in range(micro_batches):
            # While the slowest rank of this slice can be relieved, continue with the next slowest.
            for _ in range(num_ranks):
                slowest, second_time = 0, 0
                for rank in range(num_ranks):
                    load = loads[rank * micro_batches + number]
                    if load > loads[slowest * micro_batches + number]:
                        slowest = rank
                for rank in range(num_ranks):
                    if rank != slowest:
                        second_time = max(second_time, loads[rank * micro_batches + number])
                begin, end = offsets[slowest], offsets[slowest + 1]
                source = slowest * micro_batches + number
                best_gain, best_given, best_taken, best_slice = 0, -1, -1, -1
                for given_item in range(begin, end):
                    if slice_of[given_item] != number:
                        continue
                    if counts[source] > 1:
                        time_here = max(second_time, loads[source] - weights[given_item])
                        for other in range(micro_batches):
                            target = slowest * micro_batches + other
                            if other == number or tokens[target] + lengths[given_item] > capacity:
                                continue
                            time_there = max(times[other], loads[target] + weights[given_item])
                            gain = times[number] + times[other] - time_here - time_there
                            if gain > best_gain:
                                best_gain, best_given, best_taken, best_slice = gain, given_item, -1, other
                    for taken_item in range(begin, end):
                        other = slice_of[taken_item]
                        weight = weights[given_item] - weights[taken_item]
                        if other == number or weight <= 0:
                            continue
                        target = slowest * micro_batches + other
                        change = lengths[given_item] - lengths[taken_item]
                        if tokens[target] + change > capacity or tokens[source] - change > capacity:
                            continue
                        time_here = max(second_time, loads[source] - weight)
                        time_there = max(times[other], loads[target] + weight)
                        gain = times[number] + times[other] - time_here - time_there
                        if gain > best_gain:
                            best_gain, best_given, best_taken, best_slice = gain, given_item, taken_item, other
                if best_given < 0:
                    break
                target = slowest * micro_batches + best_slice
                weight, size, count = weights[best_given], lengths[best_given], 1
                slice_of[best_given] = best_slice
                if best_taken >= 0:
                    weight -= weights[best_taken]
                    size -= lengths[best_taken]
                    count = 0
                    slice_of[best_taken] = number
                loads[source] -= weight
                loads[target] += weight
                tokens[source] -= size
                tokens[target] += size
                counts[source] -= count
                counts[target] += count
                times[number] = max(second_time, loads[source])
                times[best_slice] = max(times[best_slice], loads[target])
                num_exchanges += 1
                is_better = True
    return num_exchanges

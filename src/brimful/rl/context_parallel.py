"""Dynamic context parallelism: the number of ranks that share each sample, and the micro-batch of each sample."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from brimful.base.checks import check_share, setting_number, whole_number
from brimful.base.typing import AnyIntArray, Float64Array, Int64Array
from brimful.base.wording import counted
from brimful.errors import InvalidLengthsError, OversizedSampleError
from brimful.lengths.table import LengthTable
from brimful.plan.policies.budgets import examples_of
from brimful.rl.context_parallel_plan import ContextParallelPlan
from brimful.rl.fill_bins import run_loop
from brimful.rl.step_items import StepCost, prepare_step_items

_MORE_SLACK = 0.2
"""Slack of a second attempt, if the first shares a sample among more ranks than it has tokens."""

_MAX_CAPACITY = 2**31 - 1
"""Maximum tokens: lengths are int32."""


def plan_context_parallel(
    lengths: LengthTable | AnyIntArray | Sequence[int],
    *,
    max_tokens_per_rank: int,
    world_size: int,
    cost: StepCost | None = None,
    slack: float = 0.02,
) -> ContextParallelPlan:
    """Share long samples among many ranks, short ones among few, so that all ranks have equal work.

    Pure: no I/O, no randomness, no communication; the same arguments give the same plan on every rank.

    ::

        lengths 16 4 4 3 1, at most 8 tokens per rank, 4 ranks; cost by tokens
        ranks 0 and 1    16 (8 each)        degree 2
        rank 2           4 3                degree 1
        rank 3           4 1                degree 1

    A micro-batch has a level, the work of each of its ranks. Its groups of ranks take the longest unplaced samples,
    each with the smallest degree that keeps it within tokens and level, and are then filled up to both limits with the
    longest samples that fit. Levels are tried from the highest that tokens allow down to the longest sample alone on
    all ranks; the first level whose idle time stays within the slack is taken: high levels mean few micro-batches, low
    levels equal ranks.

    Args:
        lengths: tokens of each sample.
        max_tokens_per_rank: maximum tokens of a rank in a micro-batch; a share of a sample counts as padded to two
            equal chunks, which zigzag layouts cut.
        world_size: ranks of data and context parallelism together. If it is not a power of two, such as 12, a sample
            has at most the largest power of two below it (8), and every micro-batch needs enough samples for all ranks
            (two: 8 + 4).
        cost: see ``plan_step``; a sample on n ranks costs each of them 1 / n of its cost. None counts tokens.
        slack: idle share of all ranks' time, from 0 to 1, that is accepted for fewer micro-batches. If no level stays
            within it, the best level is taken.

    Raises:
        InvalidLengthsError: no samples, a length below 1, fewer tokens than ranks to share them, or too few samples if
            the number of ranks is not a power of two.
        OversizedSampleError: a sample does not fit on the ranks that may share it.
        SettingsError: an impossible number.

    Cost: O(n·log n) for each micro-batch. Source: levels as in hierarchical balance packing (Yao et al., 2025); the
    structure as in Megatron-Core's hybrid context parallelism (2025).

    >>> plan = plan_context_parallel([16, 4, 4, 3, 1], max_tokens_per_rank=8, world_size=4, slack=0.2)
    >>> plan.degree_of.tolist(), plan.tokens.tolist()
    ([2, 1, 1, 1, 1], [[8, 8, 7, 5]])
    """
    capacity = setting_number("max_tokens_per_rank", max_tokens_per_rank, minimum=2, maximum=_MAX_CAPACITY)
    ranks = whole_number("world_size", world_size, minimum=1)
    check_share("slack", slack)
    items = prepare_step_items(lengths, capacity=2**52, cost=cost, groups=None, budgets=None)
    tokens = items.sizes[:, 0]
    _refuse_oversized(tokens, capacity, ranks)
    order = np.argsort(-tokens, kind="stable")
    num_samples = len(tokens)
    falling_order = np.maximum.accumulate(items.weights[order][::-1])[::-1]
    # A low level may leave a last micro-batch of a few short samples, shared by more ranks than they have tokens. More
    # slack is tried first, samples of other micro-batches last.
    slacks = sorted({slack, max(slack, _MORE_SLACK), 1.0})
    attempts = [*((value, False) for value in slacks), *((value, True) for value in reversed(slacks))]
    for more_slack, may_borrow in attempts:
        micro_batch, group, degree = (np.zeros(num_samples, dtype=np.int64) for _ in range(3))
        sizes = (num_samples + 1, num_samples, num_samples, ranks, ranks, ranks)
        scratch = [np.zeros(size, dtype=np.int64) for size in sizes]
        number = run_loop(
            _fill_micro_batches, num_samples, tokens[order], falling_order, capacity, ranks, float(more_slack),
            results=(np.arange(num_samples), *scratch, micro_batch, group, degree),
        )  # fmt: skip
        if may_borrow:
            occupy_all_ranks(tokens[order], micro_batch, group, degree, capacity=capacity, num_ranks=ranks)
        if len(short_micro_batches(tokens[order], micro_batch, group, degree, ranks)) == 0:
            break
    return _plan_of_groups(
        tokens, items.costs, order, micro_batch, group, degree, capacity=capacity, ranks=ranks, number=number
    )


def _refuse_oversized(tokens: Int64Array, capacity: int, ranks: int) -> None:
    # The maximum degree.
    ranks = 1 << (ranks.bit_length() - 1)
    room = capacity if ranks == 1 else capacity // 2 * 2 * ranks
    rows = np.flatnonzero(tokens > room)
    if len(rows):
        tokens_needed = -(-int(tokens.max()) // ranks)
        tokens_needed = tokens_needed if ranks == 1 else tokens_needed + tokens_needed % 2
        raise OversizedSampleError(
            f"{len(rows):,} of {len(tokens):,} samples are longer than the {room:,} tokens that {counted(ranks, 'rank')} hold "
            f"together: sample {examples_of(rows, tokens[rows])}. Cut or leave them out before, use more ranks, or "
            f"max_tokens_per_rank={tokens_needed}"
        )


def _fill_micro_batches(
    lengths: list[int],
    weights: list[int],
    capacity: int,
    num_ranks: int,
    slack: float,
    unplaced: list[int],
    next_unplaced: list[int],
    group_of: list[int],
    best_group_of: list[int],
    degrees: list[int],
    best_degrees: list[int],
    loads: list[int],
    micro_batch_of: list[int],
    final_group_of: list[int],
    degree_of: list[int],
) -> int:
    """Write micro-batch, group and degree of each item, and return the number of micro-batches; to be compiled.

    ``unplaced`` lists the unplaced items, longest first; ``next_unplaced[i]`` leads to the first of them at or after ``i``
    that the current attempt has not placed.
    """
    num_unplaced = len(lengths)
    number = 0
    idle_time = 0
    work_done = 0
    while num_unplaced > 0:
        longest, heaviest = lengths[unplaced[0]], weights[unplaced[0]]
        # The least degree of the longest item, and how many items of this length fit its ranks: the highest level.
        degree = 1
        while longest > capacity if degree == 1 else 2 * ((longest + 2 * degree - 1) // (2 * degree)) > capacity:
            degree *= 2
        copies = 1
        while 2 * copies * longest <= degree * capacity:
            copies *= 2
        best_work, best_slowest = 0, 1
        while True:
            level = (heaviest * copies + degree - 1) // degree
            for place in range(num_unplaced + 1):
                next_unplaced[place] = place
            for place in range(num_unplaced):
                group_of[place] = -1
            free = num_ranks
            num_groups = 0
            work = 0
            last_degree = degree
            seed = 0
            while free > 0:
                while next_unplaced[seed] != seed:
                    next_unplaced[seed] = next_unplaced[next_unplaced[seed]]
                    seed = next_unplaced[seed]
                if seed == num_unplaced:
                    break
                # The smallest degree that keeps the seed within tokens and level; it never rises: groups are aligned.
                seed_length, seed_weight = lengths[unplaced[seed]], weights[unplaced[seed]]
                seed_degree = 1
                while seed_degree < last_degree and (
                    seed_weight > seed_degree * level
                    or (
                        seed_length
                        if seed_degree == 1
                        else 2 * ((seed_length + 2 * seed_degree - 1) // (2 * seed_degree))
                    )
                    > capacity
                ):
                    seed_degree *= 2
                # Too few ranks are left for the seed, as their number is not a power of two: a shorter seed takes them.
                if seed_degree > free:
                    seed += 1
                    continue
                last_degree = seed_degree
                room = capacity
                allowance = seed_degree * level
                load = 0
                place = seed
                while place < num_unplaced:
                    item = unplaced[place]
                    group_of[place] = num_groups
                    next_unplaced[place] = place + 1
                    if seed_degree == 1:
                        room -= lengths[item]
                    else:
                        room -= 2 * ((lengths[item] + 2 * seed_degree - 1) // (2 * seed_degree))
                    allowance -= weights[item]
                    load += weights[item]
                    # The first later item that fits: lengths and weights fall.
                    longest_fit = room if seed_degree == 1 else room // 2 * 2 * seed_degree
                    low, high = place + 1, num_unplaced
                    while low < high:
                        middle = (low + high) // 2
                        if lengths[unplaced[middle]] <= longest_fit and weights[unplaced[middle]] <= allowance:
                            high = middle
                        else:
                            low = middle + 1
                    place = low
                    while next_unplaced[place] != place:
                        next_unplaced[place] = next_unplaced[next_unplaced[place]]
                        place = next_unplaced[place]
                degrees[num_groups] = seed_degree
                loads[num_groups] = load
                work += load
                free -= seed_degree
                num_groups += 1
            # Ranks without work: the group with the largest work gets twice as many ranks, while enough are free.
            while free > 0:
                busiest = -1
                for group in range(num_groups):
                    if degrees[group] <= free and (
                        busiest < 0 or loads[group] * degrees[busiest] > loads[busiest] * degrees[group]
                    ):
                        busiest = group
                # Doubling any group needs more ranks than are free: ``occupy_all_ranks`` finds samples for them.
                if busiest < 0:
                    break
                free -= degrees[busiest]
                degrees[busiest] *= 2
            slowest = 0
            for group in range(num_groups):
                slowest = max(slowest, (loads[group] + degrees[group] - 1) // degrees[group])
            # A lower level means more micro-batches: it has to gain at least the slack. Floats, as products of two sums
            # exceed 64 bits.
            work_before = float(best_work) * float(slowest)
            if best_work == 0 or float(work) * float(best_slowest) - work_before > slack * work_before:
                best_work, best_slowest = work, slowest
                for place in range(num_unplaced):
                    best_group_of[place] = group_of[place]
                for group in range(num_groups):
                    best_degrees[group] = degrees[group]
            if idle_time + num_ranks * slowest - work <= slack * (work_done + work):
                break
            # The next lower level: half.
            if copies > 1:
                copies //= 2
            elif 2 * degree <= num_ranks:
                degree *= 2
            else:
                break
        idle_time += num_ranks * best_slowest - best_work
        work_done += best_work
        num_kept = 0
        for place in range(num_unplaced):
            item = unplaced[place]
            group = best_group_of[place]
            if group >= 0:
                micro_batch_of[item] = number
                final_group_of[item] = group
                degree_of[item] = best_degrees[group]
            else:
                unplaced[num_kept] = item
                num_kept += 1
        num_unplaced = num_kept
        number += 1
    return number


def _plan_of_groups(
    tokens: Int64Array,
    costs: Float64Array,
    order: Int64Array,
    micro_batch: Int64Array,
    group: Int64Array,
    degree: Int64Array,
    *,
    capacity: int,
    ranks: int,
    number: int,
) -> ContextParallelPlan:
    """Give ranks to the groups of each micro-batch, large degrees first: a group begins at a multiple of its degree."""
    # One row for each group, in the order of its ranks.
    key = (micro_batch * (ranks + 1) + (ranks - degree)) * ranks + group
    groups, first_item, group_of = np.unique(key, return_index=True, return_inverse=True)
    degrees = degree[first_item]
    first_ranks = np.cumsum(degrees) - degrees - micro_batch[first_item] * ranks
    if int(degrees.sum()) < number * ranks:
        raise InvalidLengthsError(
            f"some of {counted(ranks, 'rank')} have no sample of {len(tokens):,}: a sample is shared by a power of two of ranks. "
            f"Use more samples, or world_size={1 << (ranks.bit_length() - 1)}"
        )
    micro_batch_of, first_rank_of, degree_of = (np.empty(len(tokens), dtype=np.int64) for _ in range(3))
    micro_batch_of[order] = micro_batch
    first_rank_of[order] = first_ranks[group_of]
    degree_of[order] = degree
    short_rows = np.flatnonzero(tokens < degree_of)
    if len(short_rows):
        sample = int(short_rows[0])
        raise InvalidLengthsError(
            f"sample {sample} of {int(tokens[sample]):,} tokens would be shared by {int(degree_of[sample]):,} ranks, and none "
            f"may be empty: use fewer ranks, or more samples"
        )
    lengths = tokens[order]
    shares = np.where(degree == 1, lengths, 2 * -(-lengths // (2 * degree)))
    group_tokens = np.bincount(group_of, weights=shares, minlength=len(groups)).astype(np.int64)
    group_costs: Float64Array = np.bincount(group_of, weights=costs[order] / degree).astype(np.float64)
    assert int(group_tokens.max()) <= capacity
    return ContextParallelPlan(
        world_size=ranks,
        max_tokens_per_rank=capacity,
        num_micro_batches=number,
        micro_batch_of=micro_batch_of,
        first_rank_of=first_rank_of,
        degree_of=degree_of,
        tokens=np.repeat(group_tokens, degrees).reshape(number, ranks),
        costs=np.repeat(group_costs, degrees).reshape(number, ranks),
    )


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

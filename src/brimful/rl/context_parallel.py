"""Dynamic context parallelism: the number of ranks that share each sample, and the micro-batch of
each sample.
"""

from __future__ import annotations

import math

import numpy as np

from brimful.base.checks import check_share, setting_number, whole_number
from brimful.base.typing import AnyIntArray, Float64Array, Int64Array
from brimful.base.wording import counted
from brimful.errors import InvalidLengthsError, OversizedSampleError
from brimful.plan.packing import LengthsLike
from brimful.plan.policies.budgets import examples_of
from brimful.rl.fill_bins import run_loop, scattered
from brimful.rl.step_items import StepCost, prepare_step_items
from brimful.rl.step_plan import ContextParallelPlan

_MORE_SLACK = 0.2
"""Slack of a second attempt, if the first shares a sample among more ranks than it has tokens."""


def plan_context_parallel(
    lengths: LengthsLike,
    *,
    max_tokens_per_rank: int,
    world_size: int,
    cost: StepCost | None = None,
    slack: float = 0.02,
) -> ContextParallelPlan:
    """Share long samples among many ranks, short ones among few, so that all ranks have equal work.

    Pure: no I/O, no randomness, no communication; the same arguments give the same plan on every
    rank.

    ::

        lengths 16 4 4 3 1, at most 8 tokens per rank, 4 ranks; cost by tokens
        ranks 0 and 1    16 (8 each)        degree 2
        rank 2           4 3                degree 1
        rank 3           4 1                degree 1

    A micro-batch has a level, the work of each of its ranks. Its groups of ranks take the longest
    unplaced samples, each with the smallest degree that keeps it within tokens and level, and are
    then filled up to both limits with the longest samples that fit. Levels are tried from the
    highest that tokens allow down to the longest sample alone on all ranks; the first level whose
    idle time stays within the slack is taken: high levels mean few micro-batches, low levels equal
    ranks.

    Args:
        lengths: tokens of each sample.
        max_tokens_per_rank: maximum tokens of a rank in a micro-batch; a share of a sample counts
            as padded to two equal chunks, which zigzag layouts cut.
        world_size: ranks of data and context parallelism together. If it is not a power of two,
            such as 12, a sample has at most the largest power of two below it (8), and every
            micro-batch needs enough samples for all ranks (two: 8 + 4).
        cost: see ``plan_step``; a sample on n ranks costs each of them 1 / n of its cost. None
            counts tokens.
        slack: idle share of all ranks' time, from 0 to 1, that is accepted for fewer micro-batches.
            If no level stays within it, the best level is taken.

    Raises:
        InvalidLengthsError: no samples, a length below 1, fewer tokens than ranks to share them, or
            too few samples if the number of ranks is not a power of two.
        OversizedSampleError: a sample does not fit on the ranks that may share it.
        SettingsError: an impossible number.

    Cost: O(n·log n) for each micro-batch. Source: levels as in hierarchical balance packing (Yao et
    al., 2025); the structure as in Megatron-Core's hybrid context parallelism (2025).

    >>> plan = plan_context_parallel([16, 4, 4, 3, 1], max_tokens_per_rank=8, world_size=4, slack=0.2)
    >>> plan.degree_of.tolist(), plan.tokens.tolist()
    ([2, 1, 1, 1, 1], [[8, 8, 7, 5]])
    """
    capacity = setting_number(
        "max_tokens_per_rank", max_tokens_per_rank, minimum=2, maximum=2**31 - 1
    )
    ranks = whole_number("world_size", world_size, minimum=1)
    check_share("slack", slack)
    items = prepare_step_items(lengths, capacity=2**52, cost=cost, groups=None, budgets=None)
    tokens = items.sizes[:, 0]
    max_degree = 1 << (ranks.bit_length() - 1)
    room = capacity if max_degree == 1 else capacity // 2 * 2 * max_degree
    rows = np.flatnonzero(tokens > room)
    if len(rows):
        raise OversizedSampleError(
            f"{len(rows):,} of {len(tokens):,} samples are longer than the {room:,} tokens that "
            f"{counted(max_degree, 'rank')} hold together: sample "
            f"{examples_of(rows, tokens[rows])}. Cut or leave them out before, use more ranks, or "
            f"max_tokens_per_rank={int(_shares_of(tokens, np.array(max_degree)).max())}"
        )
    order = np.argsort(-tokens, kind="stable")
    num_samples = len(tokens)
    falling_order = np.maximum.accumulate(items.weights[order][::-1])[::-1]
    # A low level may leave a last micro-batch of a few short samples, shared by more ranks than
    # they have tokens. More slack is tried first, samples of other micro-batches last.
    slacks = sorted({slack, max(slack, _MORE_SLACK), 1.0})
    attempts = [
        *((value, False) for value in slacks),
        *((value, True) for value in reversed(slacks)),
    ]
    for more_slack, may_borrow in attempts:
        by_item = np.zeros((4, num_samples + 1), dtype=np.int64)
        by_group = np.zeros((3, ranks), dtype=np.int64)
        placement = np.zeros((3, num_samples), dtype=np.int64)
        run_loop(
            _fill_micro_batches, tokens[order], falling_order, capacity, ranks, float(more_slack),
            results=(by_item, by_group, placement),
        )  # fmt: skip
        if may_borrow:
            occupy_all_ranks(tokens[order], placement, capacity=capacity, num_ranks=ranks)
        if len(_short_micro_batches(tokens[order], placement, ranks)) == 0:
            break
    return _plan_of(tokens[order], placement, capacity, ranks, order, items.costs)


def _shares_of(lengths: Int64Array, degree: AnyIntArray) -> Int64Array:
    """Return the tokens of each of the ranks that share samples, padded to two equal chunks if
    there are several.
    """
    chunks = np.where(degree == 1, 1, 2 * degree)
    shares: Int64Array = chunks // degree * -(-lengths // chunks)
    return shares


def _fill_micro_batches(
    lengths: list[int],
    weights: list[int],
    capacity: int,
    num_ranks: int,
    slack: float,
    by_item: list[list[int]],
    by_group: list[list[int]],
    placement: list[list[int]],
) -> int:
    """Write micro-batch, group and degree of each item, and return the number of micro-batches; to
    be compiled.

    ``unplaced`` lists the unplaced items, longest first; ``next_unplaced[i]`` leads to the first of
    them at or after ``i`` that the current attempt has not placed. A share of degree n is padded to
    two of ``chunks = 2·n`` chunks.
    """
    unplaced, next_unplaced, group_of, best_group_of = (
        by_item[0],
        by_item[1],
        by_item[2],
        by_item[3],
    )
    degrees, best_degrees, loads = by_group[0], by_group[1], by_group[2]
    num_unplaced = len(lengths)
    for item in range(num_unplaced):
        unplaced[item] = item
    micro_batch = 0
    idle_time = 0
    work_done = 0
    while num_unplaced > 0:
        longest, heaviest = lengths[unplaced[0]], weights[unplaced[0]]
        # The least degree of the longest item, and how many items of this length fit its ranks: the
        # highest level.
        degree, chunks = 1, 1
        while chunks // degree * ((longest + chunks - 1) // chunks) > capacity:
            degree *= 2
            chunks = 2 * degree
        copies = 1
        while 2 * copies * longest <= degree * capacity:
            copies *= 2
        best_work, best_slowest = 0, 1
        while True:
            level = (heaviest * copies + degree - 1) // degree
            for index in range(num_unplaced + 1):
                next_unplaced[index] = index
                group_of[index] = -1
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
                # The smallest degree that keeps the seed within tokens and level; it never rises:
                # groups are aligned.
                seed_length, seed_weight = lengths[unplaced[seed]], weights[unplaced[seed]]
                seed_degree = 1
                chunks = 1
                while seed_degree < last_degree and (
                    seed_weight > seed_degree * level
                    or chunks // seed_degree * ((seed_length + chunks - 1) // chunks) > capacity
                ):
                    seed_degree *= 2
                    chunks = 2 * seed_degree
                # Too few ranks are left for the seed, as their number is not a power of two: a
                # shorter seed takes them.
                if seed_degree > free:
                    seed += 1
                    continue
                last_degree = seed_degree
                room = capacity
                allowance = seed_degree * level
                load = 0
                index = seed
                while index < num_unplaced:
                    item = unplaced[index]
                    group_of[index] = num_groups
                    next_unplaced[index] = index + 1
                    room -= chunks // seed_degree * ((lengths[item] + chunks - 1) // chunks)
                    allowance -= weights[item]
                    load += weights[item]
                    # The first later item that fits: lengths and weights fall.
                    longest_fit = room // (chunks // seed_degree) * chunks
                    low, high = index + 1, num_unplaced
                    while low < high:
                        middle = (low + high) // 2
                        if (
                            lengths[unplaced[middle]] <= longest_fit
                            and weights[unplaced[middle]] <= allowance
                        ):
                            high = middle
                        else:
                            low = middle + 1
                    index = low
                    while next_unplaced[index] != index:
                        next_unplaced[index] = next_unplaced[next_unplaced[index]]
                        index = next_unplaced[index]
                degrees[num_groups] = seed_degree
                loads[num_groups] = load
                work += load
                free -= seed_degree
                num_groups += 1
            # Ranks without work: the group with the largest work gets twice as many ranks, while
            # enough are free.
            while free > 0:
                busiest = -1
                for group in range(num_groups):
                    if degrees[group] <= free and (
                        busiest < 0
                        or loads[group] * degrees[busiest] > loads[busiest] * degrees[group]
                    ):
                        busiest = group
                # Doubling any group needs more ranks than are free: ``occupy_all_ranks`` finds
                # samples for them.
                if busiest < 0:
                    break
                free -= degrees[busiest]
                degrees[busiest] *= 2
            slowest = 0
            for group in range(num_groups):
                slowest = max(slowest, (loads[group] + degrees[group] - 1) // degrees[group])
            # A lower level means more micro-batches: it has to gain at least the slack. Floats, as
            # products of two sums exceed 64 bits.
            work_before = float(best_work) * float(slowest)
            if (
                best_work == 0
                or float(work) * float(best_slowest) - work_before > slack * work_before
            ):
                best_work, best_slowest = work, slowest
                best_group_of[:num_unplaced] = group_of[:num_unplaced]
                best_degrees[:num_groups] = degrees[:num_groups]
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
        for index in range(num_unplaced):
            item = unplaced[index]
            group = best_group_of[index]
            if group >= 0:
                placement[0][item] = micro_batch
                placement[1][item] = group
                placement[2][item] = best_degrees[group]
            else:
                unplaced[num_kept] = item
                num_kept += 1
        num_unplaced = num_kept
        micro_batch += 1
    return micro_batch


def _short_micro_batches(lengths: Int64Array, placement: Int64Array, num_ranks: int) -> Int64Array:
    """Return the micro-batches that share a sample among more ranks than it has tokens, or have
    unused ranks.
    """
    micro_batch, group, degree = placement
    _, first_item = np.unique(micro_batch * num_ranks + group, return_index=True)
    ranks = np.bincount(micro_batch[first_item], weights=degree[first_item])
    return np.union1d(micro_batch[degree > lengths], np.flatnonzero(ranks < num_ranks))


def occupy_all_ranks(
    lengths: Int64Array, placement: Int64Array, *, capacity: int, num_ranks: int
) -> None:
    """Move samples from other micro-batches to micro-batches that leave ranks without a token.

    Such a micro-batch shares a sample among more ranks than it has tokens; or no group can
    double its ranks, if the number of ranks is not a power of two.

    ::

        4 ranks     micro-batch 0: 9 | 9 | 8 2 | 8 2     micro-batch 1: 3 on all four
        after       micro-batch 0: 9 | 9 | 8 2 | 8       micro-batch 1: 3 on two, 2 on two

    Only groups that keep a sample give one, and the shortest samples are taken, so that little
    work moves; groups of the micro-batch itself come last. If no such sample is left, short
    shares and empty ranks remain.

    Args:
        lengths: ``int64[num_samples]``, descending.
        placement: ``int64[3, num_samples]``: micro-batch, group and degree of each sample; groups
            are numbered within a micro-batch. Changed in place.
        capacity: maximum tokens of a rank.
        num_ranks: number of ranks of every micro-batch.
    """
    micro_batch, group, degree = placement

    def least_degree(rows: list[int]) -> int:
        """Return the smallest degree at which a group holds these samples within the capacity."""
        least = 1
        while int(_shares_of(lengths[rows], np.array(least)).sum()) > capacity:
            least *= 2
        return least

    for index in _short_micro_batches(lengths, placement, num_ranks).tolist():
        items = np.flatnonzero(micro_batch == index)
        members = [items[group[items] == name].tolist() for name in np.unique(group[items])]
        degrees = [least_degree(rows) for rows in members]
        is_short = np.isin(micro_batch, _short_micro_batches(lengths, placement, num_ranks))
        key = micro_batch * num_ranks + group
        counts = np.bincount(key)
        # The last items are the shortest.
        donors = np.flatnonzero(~is_short & (lengths <= capacity) & (counts[key] > 1)).tolist()
        while (free := num_ranks - sum(degrees)) > 0:
            shares = [
                (int(lengths[rows].sum()) / degrees[member], member)
                for member, rows in enumerate(members)
                if degrees[member] <= free and 2 * degrees[member] <= int(lengths[rows].min())
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
                shortest = [
                    (int(lengths[rows[-1]]), member)
                    for member, rows in enumerate(members)
                    if len(rows) > 1
                ]
                if not shortest:
                    return
                item = members[min(shortest)[1]].pop()
                # With one sample less, a group may need fewer ranks: recompute all degrees.
                degrees = [least_degree(rows) for rows in members]
                if lengths[item] > capacity:
                    return
            members.append([item])
            degrees.append(1)
        for member, rows in enumerate(members):
            micro_batch[rows], group[rows], degree[rows] = (
                index,
                member,
                degrees[member],
            )


def _plan_of(
    lengths: Int64Array,
    placement: Int64Array,
    capacity: int,
    ranks: int,
    order: Int64Array,
    costs: Float64Array,
) -> ContextParallelPlan:
    """Give ranks to the groups of each micro-batch, large degrees first: a group begins at a
    multiple of its degree.
    """
    micro_batch, group, degree = placement
    shape = int(micro_batch.max()) + 1, ranks
    # One row for each group, in the order of its ranks.
    key = (micro_batch * (ranks + 1) + (ranks - degree)) * ranks + group
    _, first_item, group_of = np.unique(key, return_index=True, return_inverse=True)
    degrees = degree[first_item]
    first_ranks = np.cumsum(degrees) - degrees - micro_batch[first_item] * ranks
    if int(degrees.sum()) < math.prod(shape):
        raise InvalidLengthsError(
            f"some of {counted(ranks, 'rank')} have no sample of {len(lengths):,}: a sample is "
            "shared by a power of two of ranks. Use more samples, or "
            f"world_size={1 << (ranks.bit_length() - 1)}"
        )
    short_rows = np.flatnonzero(lengths < degree)
    if len(short_rows):
        row = short_rows[np.argmin(order[short_rows])]
        raise InvalidLengthsError(
            f"sample {int(order[row])} of {int(lengths[row]):,} tokens would be shared by "
            f"{int(degree[row]):,} ranks, and none may be empty: use fewer ranks, or more samples"
        )
    tokens = np.bincount(group_of, weights=_shares_of(lengths, degree)).astype(np.int64)
    group_costs: Float64Array = np.bincount(group_of, weights=costs[order] / degree).astype(
        np.float64
    )
    assert int(tokens.max()) <= capacity
    return ContextParallelPlan(
        world_size=ranks,
        max_tokens_per_rank=capacity,
        num_micro_batches=shape[0],
        micro_batch_of=scattered(micro_batch, order),
        first_rank_of=scattered(first_ranks[group_of], order),
        degree_of=scattered(degree, order),
        tokens=np.repeat(tokens, degrees).reshape(shape),
        costs=np.repeat(group_costs, degrees).reshape(shape),
    )

"""Packs of nearly equal cost on all ranks at the same time: no rank waits for another.

Ranks meet at barriers: at every micro-batch if parameters are sharded (FSDP gathers them layer by
layer), at every step if only gradients are summed. The slowest rank sets the time, so the time lost
at a barrier is the difference between the largest and the mean cost. Packs hold about the same
number of tokens, so they can be exchanged freely
between ranks and steps: nothing is repacked, memory does not change.

One window of two steps, two ranks, two micro-batches of one pack; each pack is shown as its cost::

    seeded order      9 2 7 1 | 8 3 6 2        the window: steps 0 and 1, four packs each
    sorted            9 8 7 6   3 2 2 1
    slices of 2       9 8 | 7 6 | 3 2 | 2 1    one pack for each rank: neighbors in cost meet at one barrier
    strata            A: 98 76    B: 32 21     one for each place of a rank in a step
    a step takes one slice of each stratum, at random:      step 0: 76 and 32     step 1: 98 and 21
    heaviest to the rank with the least load:               rank 0: 7+2  rank 1: 6+3
    micro-batches and ranks of each step in random order

Slicing sorted neighbors is the idea of hierarchical balance packing (Yao et al., 2025); with one
pack in a micro-batch no other division of the window into barriers has a smaller sum of maxima. The
window is bounded because of a result of WLB-LLM (Wang et al., 2025): packs that move far change the
contents of a step, and moves over eight global batches cost them 1.6 % of loss. The strata keep
heavy and light packs in every step with more than one place on a rank.

All decisions use whole numbers made from the costs, and stable sorts: they are the same on every
platform.
"""

from enum import Enum

import numpy as np
import numpy.typing as npt

from brimful.base.checks import choice_of
from brimful.base.rng import RandomStream
from brimful.base.typing import Float64Array, Int64Array
from brimful.errors import SettingsError
from brimful.plan.schedule.cost_model import check_finite

_LEVELS = 2.0**31
"""Weight of the pack with the largest cost: sums over 2**31 packs stay exact in 64 bits."""


class Barrier(str, Enum):
    """The points at which ranks wait for each other."""

    MICRO_BATCH = "micro_batch"
    """At every forward pass: parameters are sharded over the ranks (FSDP, ZeRO-3), each layer
    gathers them.
    """
    STEP = "step"
    """Once a step, when gradients are summed: replicated parameters (DDP, ZeRO-1)."""


def imbalance(
    schedule: Int64Array, costs: Float64Array, *, barrier: Barrier | str = Barrier.MICRO_BATCH
) -> Float64Array:
    """Return the time of each step in units of the time of perfectly equal ranks: max ÷ mean over
    the ranks.

    Pure: no I/O. ``c[s, r, k]`` is the cost of micro-batch k of rank r in step s; a place without a
    pack costs 0::

        micro_batch   Σ_k max_r c[s, r, k]  ÷  Σ_k mean_r c[s, r, k]     ranks wait at every micro-batch
        step          max_r Σ_k c[s, r, k]  ÷  mean_r Σ_k c[s, r, k]     ranks wait once; never above the other

                      rank 0   rank 1
        k = 0           4        2          micro_batch   (4 + 4) ÷ (3 + 3) = 1.33
        k = 1           2        4          step           6      ÷  6      = 1

    Parts of a model run one after the other, each with its own barriers, so at micro-batches the
    times of the slowest ranks of all parts add up; a step ends once, with the sum of a rank's
    parts.

    A mean over the steps gives every step the same weight; ``benchmarks/bench_schedule.py`` prints
    it with the 99th percentile.

    Args:
        schedule: ``int64[steps, dp_world_size, micro_batches, packs_per_micro_batch]``, -1 = none.
        costs: ``float64[num_packs]``, from ``pack_costs``, or ``float64[num_packs, num_components]``,
            from ``pack_component_costs``; costs of the packs in one micro-batch add up.
        barrier: the points at which ranks wait (``Barrier``).

    Returns:
        ``float64[steps]``, from 1.0 (equal) to the number of ranks (one works, all wait). 1.0 if
        all costs are 0.

    Raises:
        SettingsError: a schedule with other dimensions, or with packs that have no cost.

    >>> schedule = np.array([[[[0], [1]], [[2], [3]]]])
    >>> imbalance(schedule, np.array([4.0, 2.0, 2.0, 4.0])).round(2).tolist()
    [1.33]
    >>> imbalance(schedule, np.array([4.0, 2.0, 2.0, 4.0]), barrier="step").tolist()
    [1.0]
    """
    barrier = choice_of(Barrier, barrier, argument="barrier")
    if schedule.ndim != 4:
        raise SettingsError(
            "schedule must be [steps, dp_world_size, micro_batches, packs_per_micro_batch] and "
            f"has {schedule.ndim} axes"
        )
    if schedule.size and int(schedule.max()) >= len(costs):
        raise SettingsError(
            f"the schedule names pack {int(schedule.max()):,} and costs has {len(costs):,} entries"
        )
    components = np.asarray(costs, dtype=np.float64)
    if barrier is Barrier.STEP and components.ndim == 2:
        components = components.sum(axis=1)
    components = components.reshape(len(components), -1)
    components_and_none = np.append(
        components, np.zeros((1, components.shape[1])), axis=0
    )  # index -1, no pack, is the last entry
    work = components_and_none[schedule].sum(axis=3)  # [steps, ranks, micro-batches, parts]
    if barrier is Barrier.STEP:
        work = work.sum(axis=2, keepdims=True)
    slowest = work.max(axis=1).sum(axis=(1, 2))
    mean = work.mean(axis=1).sum(axis=(1, 2))
    ratio: Float64Array = np.divide(slowest, mean, out=np.ones_like(mean), where=mean > 0)
    return np.maximum(ratio, 1.0)  # the mean of equal numbers may be rounded up


def quantize(costs: npt.ArrayLike, num_packs: int) -> Int64Array:
    """Return costs as whole numbers, so that comparisons and sums do not depend on rounding.

    ::

        weight = floor(cost / largest cost · 2³¹) + 1        from 1 to 2³¹ + 1

    Args:
        costs: ``float64[num_packs]``; or ``float64[num_packs, num_components]``, one for each part of a
            model: then all are on the scale of the largest sum of a pack.
        num_packs: number of packs.

    Returns:
        ``int64[num_packs, num_components]``, without parts that cost nothing in any pack, but at least
        one part; at least 1 in the first part, so that any pack outweighs an empty place.

    Raises:
        SettingsError: the numbers of costs and packs differ, or a cost is negative or not finite.

    >>> quantize(np.array([0.0, 1.0, 2.0]), 3)[:, 0].tolist()
    [1, 1073741825, 2147483649]
    >>> quantize(np.array([[0.0, 1.0], [0.0, 3.0]]), 2).tolist()
    [[715827883], [2147483649]]
    """
    array = np.asarray(costs)
    if (
        array.dtype.kind not in "iuf"
        or array.ndim not in (1, 2)
        or (array.ndim == 2 and not array.shape[1])
    ):
        raise SettingsError(
            "costs must be numbers, one or a row of one for each part of the model, and are "
            f"{array.dtype} of shape {array.shape}"
        )
    if len(array) != num_packs:
        raise SettingsError(
            f"costs must be for each of the {num_packs:,} packs and have shape {array.shape}"
        )
    components = array.astype(np.float64).reshape(num_packs, -1 if num_packs else 1)
    for index, column in enumerate(components.T):
        check_finite("costs", column, "cost", column="" if array.ndim == 1 else f", {index}")
    if not components.any():
        return np.ones((num_packs, 1), dtype=np.int64)
    components = components[:, components.any(axis=0)]
    components /= float(components.sum(axis=1).max())
    components *= _LEVELS
    # Conversion truncates, which is the floor of numbers that are at least 0.
    weights = components.astype(np.int64)
    weights[:, 0] += 1
    return weights


def balance_steps(
    order: Int64Array,
    weights: Int64Array,
    step_shape: tuple[int, int, int],
    *,
    window_steps: int,
    stream: RandomStream,
) -> Int64Array:
    """Exchange packs within windows of consecutive steps so that ranks have equal work; the module
    has an example.

    Pure: no I/O, no defaults. A pack stays within its window: it moves by less than
    ``window_steps`` steps.
    Windows differ by at most one step, so that the last window is not much shorter: 33 steps in
    windows of at most 32 are 17 and 16.

    Args:
        order: ``int64[steps, packs of a step]``, the packs in seeded order, without empty places.
        weights: ``int64[num_packs]``, from ``quantize``.
        step_shape: ``(dp_world_size, micro_batches, packs_per_micro_batch)``.
        window_steps: maximum steps of a window, at least 1.
        stream: random stream of the order within the windows.

    Returns:
        ``int64[steps, *step_shape]``.
    """
    num_steps, step_size = order.shape
    ranks, micro_batches, packs_per_micro_batch = step_shape
    assert step_size == ranks * micro_batches * packs_per_micro_batch
    if num_steps == 0:
        return order.reshape(0, *step_shape)

    slices = np.concatenate(
        [
            _sorted_slices(steps.reshape(len(steps), -1), weights, steps.shape[1], ranks, stream)
            for steps in windows_of(order, window_steps)
        ]
    )
    return in_random_order(assign_to_ranks(slices, weights, step_shape), stream)


def windows_of(order: Int64Array, window_steps: int) -> list[Int64Array]:
    """Cut steps ``[steps, packs]`` into windows of two sizes: arrays
    ``[windows, steps of a window, packs]``.

    If sizes differ, the first windows have one step more.

    >>> [windows.shape for windows in windows_of(np.zeros((33, 2), dtype=np.int64), 8)]
    [(3, 7, 2), (2, 6, 2)]
    """
    num_steps, step_size = order.shape
    num_windows = -(-num_steps // window_steps)
    window_size, num_longer = divmod(num_steps, num_windows)
    boundary = num_longer * (window_size + 1)
    return [
        steps.reshape(-1, size, step_size)
        for steps, size in ((order[:boundary], window_size + 1), (order[boundary:], window_size))
        if len(steps)
    ]


def in_random_order(schedule: Int64Array, stream: RandomStream) -> Int64Array:
    """Put micro-batches and ranks of each step in random order.

    The assignment puts the heavy micro-batches first in every step, and the heaviest on the first
    rank: without a random order, the place of a pack would depend on its cost.
    """
    num_steps, ranks, micro_batches, _ = schedule.shape
    micro_order = np.argsort(
        stream.words(num_steps * micro_batches).reshape(num_steps, -1), axis=1, kind="stable"
    )
    schedule = np.take_along_axis(schedule, micro_order[:, None, :, None], axis=2)
    rank_order = np.argsort(
        stream.words(num_steps * ranks).reshape(num_steps, -1), axis=1, kind="stable"
    )
    return np.take_along_axis(schedule, rank_order[:, :, None, None], axis=1)


def balance_partial_step(
    packs: Int64Array, weights: Int64Array, step_shape: tuple[int, int, int]
) -> Int64Array:
    """Lay out an incomplete last step of an epoch: every micro-batch gets one pack before any gets
    two.

    Not shuffled: the place (rank 0, micro-batch 0, first pack) is never empty.

    ::

        packs by cost 9 6 5 4 1, 2 ranks, 1 micro-batch of 4 packs
        slices of 2        9 6 | 5 4 | 1 -
        heaviest to least  rank 0: 9 4 - -    rank 1: 6 5 1 -        costs 13 and 12

    Args:
        packs: ``int64[number]``, at least 1 pack and fewer than the places of a step.
        weights, step_shape: as in ``balance_steps``.

    Returns:
        ``int64[1, *step_shape]``, -1 = none.
    """
    ranks, micro_batches, packs_per_micro_batch = step_shape
    num_micro_batches = ranks * micro_batches
    packs_needed = -(-len(packs) // num_micro_batches)  # per micro-batch
    assert 1 <= packs_needed <= packs_per_micro_batch
    by_cost = np.full(num_micro_batches * packs_needed, -1, dtype=np.int64)
    by_cost[: len(packs)] = packs[np.argsort(-weights[packs], kind="stable")]
    slices = by_cost.reshape(1, micro_batches * packs_needed, ranks)
    step = np.full((1, *step_shape), -1, dtype=np.int64)
    step[..., :packs_needed] = assign_to_ranks(
        slices, weights, (ranks, micro_batches, packs_needed)
    )
    return step


def _sorted_slices(
    windows: Int64Array, weights: Int64Array, window_size: int, ranks: int, stream: RandomStream
) -> Int64Array:
    """Cut windows ``[windows, packs]`` into slices ``[steps, slots, ranks]`` of neighbors in cost,
    heaviest first.

    Slot 0 of every step is a slice of the heaviest stratum of its window, the last slot a slice of
    the lightest.
    """
    num_windows = len(windows)
    by_cost = np.take_along_axis(
        windows, np.argsort(-weights[windows], axis=1, kind="stable"), axis=1
    )
    strata = by_cost.reshape(num_windows, -1, window_size, ranks)
    slots = strata.shape[1]
    # Each step takes a random slice of each stratum.
    draws = stream.words(num_windows * slots * window_size).reshape(num_windows, slots, window_size)
    strata = np.take_along_axis(strata, np.argsort(draws, axis=2, kind="stable")[..., None], axis=2)
    return strata.transpose(0, 2, 1, 3).reshape(num_windows * window_size, slots, ranks)


def assign_to_ranks(
    slices: Int64Array, weights: Int64Array, step_shape: tuple[int, int, int]
) -> Int64Array:
    """Assign slices to ranks, longest processing time first: the heaviest pack goes to the rank
    with the least load.

    First slice by slice within a micro-batch, then micro-batch by micro-batch within the step, so
    that ranks are equal at both barriers. All steps are processed at once.

    Args:
        slices: ``int64[steps, micro_batches · packs_per_micro_batch, ranks]``, heaviest slot first;
            -1 = none.
        weights, step_shape: as in ``balance_steps``.

    Returns:
        ``int64[steps, *step_shape]``.
    """
    steps = len(slices)
    ranks, micro_batches, packs_per_micro_batch = step_shape
    weights_and_none = np.append(weights, 0)  # index -1, no pack, is the last entry
    step_loads = np.zeros((steps, ranks), dtype=np.int64)
    schedule = np.empty((steps, *step_shape), dtype=np.int64)
    for micro_batch in range(micro_batches):
        # A bundle is the packs of one rank in this micro-batch. A slice is in descending order, so
        # its first pack goes to the lightest bundle, its last to the heaviest.
        bundles = np.empty((steps, ranks, packs_per_micro_batch), dtype=np.int64)
        bundle_loads = np.zeros((steps, ranks), dtype=np.int64)
        for slot in range(packs_per_micro_batch):
            # Alternate the direction, so that the micro-batches of a step are equal too: 0 1 2,
            # then 5 4 3.
            turn = micro_batch if slot % 2 == 0 else micro_batches - 1 - micro_batch
            packs = slices[:, slot * micro_batches + turn]
            by_load = np.argsort(bundle_loads, axis=1, kind="stable")
            np.put_along_axis(bundles[:, :, slot], by_load, packs, axis=1)
            pack_loads = np.empty_like(bundle_loads)
            np.put_along_axis(pack_loads, by_load, weights_and_none[packs], axis=1)
            bundle_loads += pack_loads
        # The same for whole bundles: the heaviest goes to the rank with the least load in this
        # step.
        by_load = np.argsort(step_loads, axis=1, kind="stable")
        bundle_of_rank = np.empty_like(by_load)
        np.put_along_axis(
            bundle_of_rank, by_load, np.argsort(-bundle_loads, axis=1, kind="stable"), axis=1
        )
        schedule[:, :, micro_batch] = np.take_along_axis(
            bundles, bundle_of_rank[:, :, None], axis=1
        )
        step_loads += np.take_along_axis(bundle_loads, bundle_of_rank, axis=1)
    return schedule

"""Packs of nearly equal cost beside each other: no rank waits for another.

Ranks meet at barriers: at every micro-batch where parameters are sharded (FSDP gathers them layer by layer), at every
step where gradients are summed. The slowest rank sets the time, so the time lost at a barrier is what the most
costly part exceeds the mean by. Packs hold equally many tokens, so they can be exchanged freely between ranks and
steps: nothing is repacked, memory does not change.

One window of two steps, two ranks, two micro-batches of one pack, costs as letters' numbers::

    seeded order      9 2 7 1 | 8 3 6 2        the window: steps 0 and 1, four packs each
    sorted            9 8 7 6   3 2 2 1
    slices of 2       9 8 | 7 6 | 3 2 | 2 1    as many as ranks: neighbours in cost meet at one barrier
    strata            A: 98 76    B: 32 21     as many as a step has places on a rank
    a step takes one slice of each stratum, at random:      step 0: 76 and 32     step 1: 98 and 21
    heaviest to the rank with least so far:                 rank 0: 7+2  rank 1: 6+3
    micro-batches and ranks of each step in random order

Slicing sorted neighbours is hierarchical balance packing's idea (Yao et al., 2025); with one pack in a micro-batch
no other division of the window into barriers has a smaller sum of maxima. Bounding the window is WLB-LLM's warning
(Wang et al., 2025): what moves far changes what is trained on together, and moving over eight global batches cost
them 1.6 % of loss. The strata keep heavy and light packs in every step that has more than one place on a rank.

All decisions are on whole numbers made from the costs, by stable sorts: the same on every platform.
"""

from __future__ import annotations

from enum import Enum

import numpy as np
import numpy.typing as npt

from brimful.checks import choice_of
from brimful.errors import SettingsError
from brimful.plan.cost import Float64Array
from brimful.rng import RandomStream
from brimful.typing import Int64Array

__all__ = ["Barrier", "balance_partial_step", "balance_steps", "imbalance", "quantise"]

_LEVELS = 2.0**31
"""Cost of the most costly pack in whole numbers: sums of 2**31 packs stay exact."""


class Barrier(str, Enum):
    """Where ranks wait for each other."""

    MICRO_BATCH = "micro_batch"
    """At every forward: parameters are sharded over the ranks (FSDP, ZeRO-3), each layer gathers them."""
    STEP = "step"
    """Once a step, when gradients are summed: replicated parameters (DDP, ZeRO-1)."""

    @classmethod
    def named(cls, name: Barrier | str) -> Barrier:
        """The member of that name."""
        return choice_of(cls, name, argument="barrier")


def imbalance(
    schedule: Int64Array, costs: Float64Array, *, barrier: Barrier | str = Barrier.MICRO_BATCH
) -> Float64Array:
    """How many times the time of perfectly equal ranks each step takes: max ÷ mean over the ranks.

    Pure: no I/O. With ``c[s, r, k]``, the cost of micro-batch k of rank r in step s, places without a pack costing 0::

        micro_batch   Σ_k max_r c[s, r, k]  ÷  Σ_k mean_r c[s, r, k]     ranks wait at every micro-batch
        step          max_r Σ_k c[s, r, k]  ÷  mean_r Σ_k c[s, r, k]     ranks wait once; never above the other

                      rank 0   rank 1
        k = 0           4        2          micro_batch   (4 + 4) ÷ (3 + 3) = 1.33
        k = 1           2        4          step           6      ÷  6      = 1

    The mean over the steps weighs every step alike; ``benchmarks/bench_schedule.py`` prints it with the 99th percentile.

    Args:
        schedule: ``int64[steps, dp_world_size, micro_batches, packs_per_micro_batch]``, -1 = none.
        costs: ``float64[num_packs]``, as ``pack_costs`` gives them; packs of one micro-batch add up.
        barrier: where ranks wait (``Barrier``).

    Returns:
        ``float64[steps]``, from 1.0 (equal) to the number of ranks (one works, all wait). 1.0 where all cost 0.

    Raises:
        SettingsError: a schedule of other dimensions, or with packs that have no cost.

    >>> schedule = np.array([[[[0], [1]], [[2], [3]]]])
    >>> imbalance(schedule, np.array([4.0, 2.0, 2.0, 4.0])).round(2).tolist()
    [1.33]
    >>> imbalance(schedule, np.array([4.0, 2.0, 2.0, 4.0]), barrier="step").tolist()
    [1.0]
    """
    where = Barrier.named(barrier)
    if schedule.ndim != 4:
        raise SettingsError(
            f"schedule must be [steps, dp_world_size, micro_batches, packs_per_micro_batch] and has {schedule.ndim} axes"
        )
    if schedule.size and int(schedule.max()) >= len(costs):
        raise SettingsError(f"the schedule names pack {int(schedule.max()):,} and costs has {len(costs):,} entries")
    with_none = np.append(np.asarray(costs, dtype=np.float64), 0.0)  # the place -1
    parts = with_none[schedule].sum(axis=3)
    if where is Barrier.STEP:
        parts = parts.sum(axis=2, keepdims=True)
    slowest = parts.max(axis=1).sum(axis=1)
    mean = parts.mean(axis=1).sum(axis=1)
    ratio: Float64Array = np.divide(slowest, mean, out=np.ones_like(mean), where=mean > 0)
    return np.maximum(ratio, 1.0)  # the mean of equal numbers may round above them


def quantise(costs: npt.ArrayLike, num_packs: int) -> Int64Array:
    """Costs as whole numbers from 1 to 2**31 + 1, so that no comparison or sum depends on rounding.

    Returns:
        ``int64[num_packs]``; at least 1, so that any pack outweighs an empty place.

    Raises:
        SettingsError: another number of costs than of packs, or a cost that is negative or not finite.

    >>> quantise(np.array([0.0, 1.0, 2.0]), 3).tolist()
    [1, 1073741825, 2147483649]
    """
    array = np.asarray(costs)
    if array.dtype.kind not in "iuf":
        raise SettingsError(f"costs must be numbers and are {array.dtype}")
    if array.shape != (num_packs,):
        raise SettingsError(
            f"costs must be one number for each of the {num_packs:,} packs and have shape {array.shape}"
        )
    array = array.astype(np.float64)
    wrong = np.flatnonzero(~(np.isfinite(array) & (array >= 0)))
    if len(wrong):
        at = int(wrong[0])
        raise SettingsError(f"costs[{at}] is {array[at]}: every cost must be finite and at least 0")
    top = float(array.max()) if num_packs else 0.0
    if top == 0:
        return np.ones(num_packs, dtype=np.int64)
    return np.floor(array / top * _LEVELS).astype(np.int64) + 1


def balance_steps(
    order: Int64Array,
    weights: Int64Array,
    *,
    dp_world_size: int,
    micro_batches: int,
    packs_per_micro_batch: int,
    window_steps: int,
    stream: RandomStream,
) -> Int64Array:
    """Exchange packs within windows of consecutive steps so that ranks have equal work; see the module for a drawing.

    Pure: no I/O; every knob is given. A pack stays within its window: it moves by less than ``window_steps`` steps.
    Windows are as equal as can be, so that the last one is not a short one: 33 steps in windows of at most 32 are
    17 and 16.

    Args:
        order: ``int64[steps, packs of a step]``, the packs in seeded order, none missing.
        weights: ``int64[num_packs]``, as ``quantise`` gives them.
        dp_world_size, micro_batches, packs_per_micro_batch: the shape of a step.
        window_steps: most steps of a window, at least 1.
        stream: of the order within the windows.

    Returns:
        ``int64[steps, dp_world_size, micro_batches, packs_per_micro_batch]``.
    """
    steps, per_step = order.shape
    assert per_step == dp_world_size * micro_batches * packs_per_micro_batch
    if steps == 0:
        return order.reshape(0, dp_world_size, micro_batches, packs_per_micro_batch)
    num_windows = -(-steps // window_steps)
    each, longer = divmod(steps, num_windows)
    cut = longer * (each + 1)
    slices = np.concatenate(
        [
            _sorted_slices(part.reshape(-1, length * per_step), weights, length, dp_world_size, stream)
            for part, length in ((order[:cut], each + 1), (order[cut:], each))
            if len(part)
        ]
    )
    dealt = _deal(slices, weights, micro_batches, packs_per_micro_batch)
    # Heavy first in every step, and the first rank always with the heaviest, would be an order nobody asked for.
    micro_order = np.argsort(stream.words(steps * micro_batches).reshape(steps, micro_batches), axis=1, kind="stable")
    dealt = np.take_along_axis(dealt, micro_order[:, None, :, None], axis=2)
    rank_order = np.argsort(stream.words(steps * dp_world_size).reshape(steps, dp_world_size), axis=1, kind="stable")
    return np.take_along_axis(dealt, rank_order[:, :, None, None], axis=1)


def balance_partial_step(
    packs: Int64Array, weights: Int64Array, *, dp_world_size: int, micro_batches: int, packs_per_micro_batch: int
) -> Int64Array:
    """The last step of an epoch, with fewer packs than places: every micro-batch gets one before any gets two.

    Not shuffled: the place (rank 0, micro-batch 0, first pack) is never empty.

    ::

        packs by cost 9 6 5 4 1, 2 ranks, 1 micro-batch of 4 packs
        slices of 2        9 6 | 5 4 | 1 -
        heaviest to least  rank 0: 9 4 - -    rank 1: 6 5 1 -        costs 13 and 12

    Args:
        packs: ``int64[number]``, from 1 to one less than the places of a step.
        weights, dp_world_size, micro_batches, packs_per_micro_batch: as in ``balance_steps``.

    Returns:
        ``int64[1, dp_world_size, micro_batches, packs_per_micro_batch]``, -1 = none.
    """
    places = dp_world_size * micro_batches
    used = -(-len(packs) // places)  # packs of a micro-batch that are needed at all
    assert 1 <= used <= packs_per_micro_batch
    by_cost = packs[np.argsort(-weights[packs], kind="stable")]
    slices = np.full(places * used, -1, dtype=np.int64)
    slices[: len(packs)] = by_cost
    dealt = _deal(slices.reshape(1, micro_batches * used, dp_world_size), weights, micro_batches, used)
    step = np.full((1, dp_world_size, micro_batches, packs_per_micro_batch), -1, dtype=np.int64)
    step[..., :used] = dealt
    return step


def _sorted_slices(
    windows: Int64Array, weights: Int64Array, length: int, dp_world_size: int, stream: RandomStream
) -> Int64Array:
    """From ``[windows, packs]`` to ``[steps, slots, dp_world_size]``: each slice neighbours in cost, heaviest first.

    Slot 0 of every step is a slice of the heaviest stratum of its window, the last slot one of the lightest.
    """
    number = len(windows)
    ranked = np.take_along_axis(windows, np.argsort(-weights[windows], axis=1, kind="stable"), axis=1)
    strata = ranked.reshape(number, -1, length, dp_world_size)
    slots = strata.shape[1]
    words = stream.words(number * slots * length).reshape(number, slots, length)
    strata = np.take_along_axis(strata, np.argsort(words, axis=2, kind="stable")[..., None], axis=2)
    return strata.transpose(0, 2, 1, 3).reshape(number * length, slots, dp_world_size)


def _deal(slices: Int64Array, weights: Int64Array, micro_batches: int, packs_per_micro_batch: int) -> Int64Array:
    """Slices to ranks, longest processing time first: what is heaviest goes to the rank that has least.

    Within a micro-batch, slice after slice; then micro-batch after micro-batch within the step, so that ranks are
    equal at both barriers. All steps at once.

    Args:
        slices: ``int64[steps, micro_batches · packs_per_micro_batch, dp_world_size]``, heaviest slot first; -1 = none.

    Returns:
        ``int64[steps, dp_world_size, micro_batches, packs_per_micro_batch]``.
    """
    steps, _, ranks = slices.shape
    with_none = np.append(weights, 0)  # the place -1
    done = np.zeros((steps, ranks), dtype=np.int64)
    dealt = np.empty((steps, ranks, micro_batches, packs_per_micro_batch), dtype=np.int64)
    for micro_batch in range(micro_batches):
        bundles = np.empty((steps, ranks, packs_per_micro_batch), dtype=np.int64)
        load = np.zeros((steps, ranks), dtype=np.int64)
        for place in range(packs_per_micro_batch):
            # There and back, so that the micro-batches of a step are equal too: 0 1 2, then 5 4 3 from the heaviest.
            turn = micro_batch if place % 2 == 0 else micro_batches - 1 - micro_batch
            packs = slices[:, place * micro_batches + turn]
            lightest = np.argsort(load, axis=1, kind="stable")
            np.put_along_axis(bundles[:, :, place], lightest, packs, axis=1)
            added = np.empty_like(load)
            np.put_along_axis(added, lightest, with_none[packs], axis=1)
            load += added
        lightest = np.argsort(done, axis=1, kind="stable")
        source = np.empty_like(lightest)
        np.put_along_axis(source, lightest, np.argsort(-load, axis=1, kind="stable"), axis=1)
        dealt[:, :, micro_batch] = np.take_along_axis(bundles, source[:, :, None], axis=1)
        done += np.take_along_axis(load, source, axis=1)
    return dealt

"""Remainder of an epoch for a changed number of ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from brimful.base.rng import generator
from brimful.base.typing import Int64Array
from brimful.plan.schedule.balance import quantise_parts
from brimful.plan.schedule.schedule import Tail, arrange, schedule_packs


class Shape(NamedTuple):
    """Shape of the schedule from a step of the epoch on."""

    first_step: int
    """Number of earlier steps of the epoch."""
    dp_world_size: int
    """Data-parallel ranks."""
    micro_batches: int
    """Forward passes of one rank in one step."""
    packs_per_micro_batch: int
    """Packs of one forward pass."""

    @property
    def step_shape(self) -> tuple[int, int, int]:
        """Ranks, micro-batches, and packs of a micro-batch."""
        return self[1:]

    @property
    def step_size(self) -> int:
        """Packs of one step."""
        return math.prod(self.step_shape)


def resized_schedule(
    num_packs: int,
    shapes: Sequence[Shape],
    *,
    epoch: int,
    seed: int | None,
    tail: Tail,
    costs: npt.ArrayLike | None,
    window_steps: int,
) -> Int64Array:
    """Divide the remainder of an epoch among steps and ranks, after its shape has changed once or several times.

    Pure: no I/O; the same arguments give the same array on every platform. With one shape it is ``schedule_packs``.

    A shape with the same number of packs in a step keeps every global batch, and only divides it differently. With
    another shape, the unserved packs stay in the order of the schedule so far, and fill steps of the new size::

        8 packs, 2 ranks     01 23 45 67
        2 steps served, then 1 rank with 2 micro-batches         45 67
        1 step served, then 4 ranks                              2345 67--

    Args:
        num_packs: number of packs in the plan.
        shapes: shapes of the epoch, in order; the first begins at step 0, and the result has the last shape.
        epoch, seed, tail, costs, window_steps: see ``schedule_packs``. Packs of kept steps are exchanged only within
            their step.

    Returns:
        ``int64[steps, dp_world_size, micro_batches, packs_per_micro_batch]`` from ``shapes[-1].first_step``; -1 = none.

    >>> from functools import partial
    >>> resized = partial(resized_schedule, 8, epoch=0, seed=None, tail=Tail.PAD, costs=None, window_steps=1)
    >>> resized([Shape(0, 2, 1, 1), Shape(1, 4, 1, 1)]).reshape(-1, 4).tolist()
    [[2, 3, 4, 5], [6, 7, -1, -1]]
    """
    first, *others = shapes
    names = ("dp_world_size", "micro_batches", "packs_per_micro_batch")
    schedule = schedule_packs(
        num_packs,
        **dict(zip(names, first.step_shape, strict=True)),
        epoch=epoch,
        seed=seed,
        tail=tail,
        costs=costs,
        window_steps=window_steps,
    )
    if not others:
        return schedule
    weights = None if costs is None else quantise_parts(costs, num_packs)
    order = _with_dropped(schedule.reshape(-1), num_packs)
    num_served = 0
    for number, (old, new) in enumerate(zip(shapes, others, strict=False)):
        num_steps = new.first_step - old.first_step
        num_served += num_steps * old.step_size
        is_kept = new.step_size == old.step_size
        if is_kept:
            unserved = schedule[num_steps:].reshape(-1)
            unserved = unserved[unserved >= 0]
        else:
            # Without the packs that were repeated to complete the last step.
            unserved = _first_of_each(order[num_served:], order[:num_served])
        num_tail = len(unserved) % new.step_size
        num_together = len(unserved) - num_tail
        if tail is Tail.DROP:
            unserved = unserved[:num_together]
        elif tail is Tail.REPEAT and num_tail:
            fill = np.resize(order[order >= 0], new.step_size - num_tail)
            unserved = np.concatenate([unserved, fill])
        schedule = arrange(
            unserved,
            new.step_shape,
            num_together,
            weights=weights,
            # Exchanged only within its step, a pack stays in its global batch.
            window_steps=1 if is_kept else window_steps,
            stream=generator(seed=0 if seed is None else seed, epoch=epoch, purpose=f"balance after resize {number}"),
        )
        order = _with_dropped(np.concatenate([order[:num_served], schedule.reshape(-1)]), num_packs)
    return schedule


def _first_of_each(packs: Int64Array, served: Int64Array) -> Int64Array:
    """Return packs in their order, each once, without served packs and empty places."""
    unique, first_rows = np.unique(packs, return_index=True)
    is_new = (unique >= 0) & ~np.isin(unique, served)
    return packs[np.sort(first_rows[is_new])]


def _with_dropped(order: Int64Array, num_packs: int) -> Int64Array:
    """Return an order, followed by the packs that it left out."""
    is_absent = np.ones(num_packs, dtype=np.bool_)
    is_absent[order[order >= 0]] = False
    return np.concatenate([order, np.flatnonzero(is_absent)])

"""Schedule of an epoch: packs of each step and rank, as one array; and its remainder after the
ranks have changed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from brimful.base.checks import choice_of
from brimful.base.rng import RandomStream, generator
from brimful.base.typing import Int64Array
from brimful.errors import SettingsError
from brimful.plan.schedule.balance import balance_partial_step, balance_steps, quantize
from brimful.plan.schedule.balance_components import balance_steps_of_components

DEFAULT_WINDOW_STEPS = 80
"""Steps within which packs are exchanged for balance. This brings 64 ranks with one pack each
within 2 % of equal, even with a 0.6B model at 128k tokens. Fewer steps suffice for larger models,
shorter packs, or several micro-batches.
"""


class Tail(str, Enum):
    """Policy for the packs that do not fill a last step."""

    PAD = "pad"
    """The last step has empty places (-1), which a loader serves as batches without loss."""
    DROP = "drop"
    """They are left out; other epochs leave out other packs, and no pack is left out in two
    consecutive epochs.
    """
    REPEAT = "repeat"
    """The last step is filled with packs from the beginning of the epoch; other epochs repeat other
    packs.
    """

    @classmethod
    def named(cls, name: Tail | str) -> Tail:
        """Return the member with this name."""
        return choice_of(cls, name, argument="tail")


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


def schedule_packs(
    num_packs: int,
    *,
    dp_world_size: int,
    micro_batches: int,
    packs_per_micro_batch: int,
    epoch: int,
    seed: int | None,
    tail: Tail,
    costs: npt.ArrayLike | None = None,
    window_steps: int = DEFAULT_WINDOW_STEPS,
) -> Int64Array:
    """Divide one epoch's packs among steps and ranks.

    Every rank computes the same array and takes its own column: the same number of steps
    everywhere, without any communication.

    Pure: no I/O; the same arguments give the same array on every platform.

    With ``costs``, packs are exchanged so that all ranks have nearly equal work at each micro-batch
    and over the step (example in ``schedule.balance``). The seeded order is cut into windows of
    consecutive steps, and a pack stays in its window: its step differs by less than
    ``window_steps`` from its step without costs. Within the window, steps, micro-batches and ranks
    are in seeded order, so cost does not become a curriculum. With one pack per rank and step, all
    packs of a step have similar costs; with more, each step has heavy and light packs.
    ``window_steps=1`` never changes which packs share a step, and so does not change the update of
    an optimizer whose loss is normalized over the step; it can balance only if a step has several
    packs on a rank. A last step that the tail policy had to complete is balanced separately.

    ::

        costs of packs 0 … 7    9 1 8 2 9 1 8 2, seed None, 2 ranks, 1 micro-batch of 1 pack
        without                 01 23 45 67    costs 9+1 8+2 9+1 8+2    a step waits for the 9 or the 8
        window_steps=4          04 26 37 15    costs 9+9 8+8 2+2 1+1    no rank waits (steps are in random order)
        window_steps=2          02 31 46 75    costs 9+8 2+1 9+8 2+1    a pack moves by at most one step

    Args:
        num_packs: number of packs in the plan.
        dp_world_size: data-parallel ranks.
        micro_batches: forward passes of one rank in one step (gradient accumulation).
        packs_per_micro_batch: packs of one forward pass.
        epoch: number of the pass over the data; each epoch has its own order.
        seed: seed of the order; None keeps the order of the plan, except for exchanges that
            balance. Under ``drop`` and ``repeat``, an unshuffled epoch begins where the previous
            one stopped dropping or repeating, in a circle.
        tail: the policy for packs that do not fill a last step.
        costs: ``float64[num_packs]``, from ``pack_costs``, in any unit; None leaves the order as it
            is. Or ``float64[num_packs, num_components]``, from ``pack_component_costs``: parts of the model
            that run one after the other, each with its own barriers. Then the time of the slowest
            rank, summed over the parts, is made small (``schedule.balance_components``).
        window_steps: maximum steps of a window. Twice the window or twice the micro-batches give
            about half the imbalance.

    Returns:
        ``int64[steps, dp_world_size, micro_batches, packs_per_micro_batch]``, -1 = none.

    Raises:
        SettingsError: a count below its minimum, or costs that are too few, negative or not finite;
            names the argument.

    >>> schedule_packs(5, dp_world_size=2, micro_batches=1, packs_per_micro_batch=1, epoch=0, seed=None,
    ...                tail=Tail.PAD).reshape(-1, 2).tolist()
    [[0, 1], [2, 3], [4, -1]]
    """
    for name, value, minimum in (
        ("num_packs", num_packs, 0),
        ("dp_world_size", dp_world_size, 1),
        ("micro_batches", micro_batches, 1),
        ("packs_per_micro_batch", packs_per_micro_batch, 1),
        ("epoch", epoch, 0),
        ("window_steps", window_steps, 1),
    ):
        if value < minimum:
            raise SettingsError(f"{name} must be at least {minimum} and is {value}")
    shape = Shape(0, dp_world_size, micro_batches, packs_per_micro_batch)
    return resized_schedule(
        num_packs,
        [shape],
        epoch=epoch,
        seed=seed,
        tail=tail,
        costs=costs,
        window_steps=window_steps,
    )


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
    """Divide the remainder of an epoch among steps and ranks, after its shape has changed once or
    several times.

    Pure: no I/O; the same arguments give the same array on every platform. With one shape it is
    ``schedule_packs``.

    A shape with the same number of packs in a step keeps every global batch, and only divides it
    differently. With another shape, the unserved packs stay in the order of the schedule so far,
    and fill steps of the new size::

        8 packs, 2 ranks     01 23 45 67
        2 steps served, then 1 rank with 2 micro-batches         45 67
        1 step served, then 4 ranks                              2345 67--

    Args:
        num_packs: number of packs in the plan.
        shapes: shapes of the epoch, in order; the first begins at step 0, and the result has the
            last shape.
        epoch, seed, tail, costs, window_steps: see ``schedule_packs``. Packs of kept steps are
            exchanged only within their step.

    Returns:
        ``int64[steps, dp_world_size, micro_batches, packs_per_micro_batch]`` from
        ``shapes[-1].first_step``; -1 = none.

    >>> from functools import partial
    >>> resized = partial(resized_schedule, 8, epoch=0, seed=None, tail=Tail.PAD, costs=None, window_steps=1)
    >>> resized([Shape(0, 2, 1, 1), Shape(1, 4, 1, 1)]).reshape(-1, 4).tolist()
    [[2, 3, 4, 5], [6, 7, -1, -1]]
    """
    first = shapes[0]
    weights = None if costs is None else quantize(costs, num_packs)
    seed_or_0 = 0 if seed is None else seed
    schedule = _arranged(
        _order(num_packs, first.step_size, epoch=epoch, seed=seed, tail=tail),
        first.step_shape,
        # The step with the repeated packs is balanced separately.
        num_packs - num_packs % first.step_size,
        weights=weights,
        window_steps=window_steps,
        # The order within a window is random even without a seed: sorted by cost, it would be a
        # curriculum.
        stream=generator(seed=seed_or_0, epoch=epoch, purpose="balance"),
    )
    order = _with_dropped(schedule.reshape(-1), num_packs)
    num_served = 0
    for index, (old, new) in enumerate(pairwise(shapes)):
        num_steps = new.first_step - old.first_step
        num_served += num_steps * old.step_size
        is_kept = new.step_size == old.step_size
        if is_kept:
            unserved = schedule[num_steps:].reshape(-1)
            unserved = unserved[unserved >= 0]
        else:
            # Each pack once, without the packs that were repeated to complete the last step.
            packs = order[num_served:]
            unique, first_rows = np.unique(packs, return_index=True)
            is_new = (unique >= 0) & ~np.isin(unique, order[:num_served])
            unserved = packs[np.sort(first_rows[is_new])]
        num_tail = len(unserved) % new.step_size
        num_together = len(unserved) - num_tail
        if tail is Tail.DROP:
            unserved = unserved[:num_together]
        elif tail is Tail.REPEAT and num_tail:
            fill = np.resize(order, new.step_size - num_tail)
            unserved = np.concatenate([unserved, fill])
        schedule = _arranged(
            unserved,
            new.step_shape,
            num_together,
            weights=weights,
            # Exchanged only within its step, a pack stays in its global batch.
            window_steps=1 if is_kept else window_steps,
            stream=generator(seed=seed_or_0, epoch=epoch, purpose=f"balance after resize {index}"),
        )
        order = _with_dropped(np.concatenate([order[:num_served], schedule.reshape(-1)]), num_packs)
    return schedule


def _with_dropped(order: Int64Array, num_packs: int) -> Int64Array:
    """Return an order, followed by the packs that it left out."""
    is_absent = np.ones(num_packs, dtype=np.bool_)
    # Orders with empty places hold every pack, also the last, which -1 names.
    is_absent[order] = False
    return np.concatenate([order, np.flatnonzero(is_absent)])


def _arranged(
    order: Int64Array,
    step_shape: tuple[int, int, int],
    num_together: int,
    *,
    weights: Int64Array | None,
    window_steps: int,
    stream: RandomStream,
) -> Int64Array:
    """Divide packs in their order among steps and ranks.

    Pure: no I/O.

    Args:
        order: ``int64[n]``, packs; an incomplete last step has empty places.
        step_shape: ranks, micro-batches, and packs of a micro-batch.
        num_together: a multiple of the step size; the packs after it are a step that is balanced
            separately.
        weights: ``int64[num_packs, num_components]``, from ``quantize``; None leaves the order as it is.
        window_steps: maximum steps within which packs are exchanged.
        stream: random stream of the exchanges.

    Returns:
        ``int64[steps, ranks, micro-batches, packs]``, -1 = none.
    """
    step_size = math.prod(step_shape)
    if weights is None:
        slots = np.full(-(-len(order) // step_size) * step_size, -1, dtype=np.int64)
        slots[: len(order)] = order
        return slots.reshape(-1, *step_shape)
    totals = weights.sum(axis=1)

    def balanced(steps: Int64Array, window_steps: int) -> Int64Array:
        if weights.shape[1] == 1:
            return balance_steps(
                steps, totals, step_shape, window_steps=window_steps, stream=stream
            )
        return balance_steps_of_components(
            steps, weights, step_shape, window_steps=window_steps, stream=stream
        )

    steps = [balanced(order[:num_together].reshape(-1, step_size), window_steps)]
    last_step = order[num_together:]
    if len(last_step) == step_size:
        # Separately: in one window with the beginning of the epoch, a pack and its repeat would
        # meet, as their costs are equal.
        steps.append(balanced(last_step.reshape(1, step_size), 1))
    elif len(last_step):
        steps.append(balance_partial_step(last_step, totals, step_shape))
    return np.concatenate(steps)


def _order(
    num_packs: int, step_size: int, *, epoch: int, seed: int | None, tail: Tail
) -> Int64Array:
    """Return the packs of the epoch in order: without dropped packs, with repeated packs at the
    end.

    The packs to drop or to repeat move along a fixed circle of all packs, epoch after epoch::

        circle           3 0 4 1 2        five packs, steps of three, so two are dropped
        epoch 0, 1, 2    drop 3 0, then 4 1, then 2 3

    So no pack is dropped in two consecutive epochs, and in the long run all are dropped equally
    often.
    """
    num_tail = num_packs % step_size
    # Packs that the epoch drops or repeats: the next ones on the circle.
    num_affected = {
        Tail.PAD: 0,
        Tail.DROP: num_tail,
        Tail.REPEAT: step_size - num_tail if num_tail else 0,
    }[tail]
    start = epoch * num_affected
    if seed is None:
        # The circle is the plan itself: an epoch begins with the packs it repeats, and ends with
        # the packs it drops.
        order = np.roll(np.arange(num_packs, dtype=np.int64), -start)
    else:
        order = generator(seed=seed, epoch=epoch, purpose="schedule").permutation(num_packs)
        if num_affected:
            circle = generator(seed=seed, epoch=0, purpose="tail").permutation(num_packs)
            is_affected = np.zeros(num_packs, dtype=bool)
            is_affected[circle[(start + np.arange(min(num_affected, num_packs))) % num_packs]] = (
                True
            )
            # Packs to drop move to the end and are cut off there; packs to repeat move to the
            # beginning.
            is_late = is_affected[order] if tail is Tail.DROP else ~is_affected[order]
            order = np.concatenate([order[~is_late], order[is_late]])
    if tail is Tail.DROP:
        return order[: num_packs - num_affected]
    # Packs from the beginning repeat at the end of the epoch: a pack is far from its repeat.
    return np.concatenate([order, np.resize(order, num_affected)]) if num_affected else order

"""Packs of nearly equal cost in every part of a model at the same time: towers and language model.

A tower runs before the language model, and each layer of both ends at its own barrier. So a
micro-batch takes the time of the slowest rank in the tower plus the time of the slowest rank in the
language model, which may be another rank::

    time of a micro-batch  =  max over ranks of tower cost  +  max over ranks of language cost

    packs A B C D as (tower, language)    9,2   1,8   9,8   1,2            two ranks, two micro-batches
    balanced by the sum                   A B: 9 + 8    C D: 9 + 8         34
    balanced by the tower                 A C: 9 + 8    B D: 1 + 8         26
    balanced by the language model        A D: 9 + 2    C B: 9 + 8         28

A pack has one cost for each part, so no sorted order makes neighbors equal in all parts. A window
is repeatedly cut in two: sorted by one part, at the place where the cut saves most, because the
barriers after it need not wait for the largest pack any more. Then packs are exchanged: a pack that
a barrier waits for changes places with a pack at another barrier, as long as the sum of all times
falls.

Everything else is as in ``schedule.balance``: packs stay in their window, a step has heavy and
light micro-batches, and its ranks have equal sums. All decisions use whole numbers, stable sorts
and first minima: they are the same on every platform.
"""

import numpy as np

from brimful.base.rng import RandomStream
from brimful.base.typing import Int64Array
from brimful.plan.schedule.balance import assign_to_ranks, in_random_order, windows_of

_MAX_PASSES = 12
"""Maximum passes of exchanges over the barriers of a window."""

_LEAST_GAIN = 2**-13
"""Share of the time that a pass of exchanges has to save; otherwise it is the last pass."""


def balance_steps_of_components(
    order: Int64Array,
    weights: Int64Array,
    step_shape: tuple[int, int, int],
    *,
    window_steps: int,
    stream: RandomStream,
) -> Int64Array:
    """Exchange packs within windows of consecutive steps so that ranks have equal work in every
    part.

    Pure: no I/O, no defaults.

    Args:
        order: see ``balance_steps``.
        weights: ``int64[num_packs, num_components]``, from ``quantize``.
        step_shape, window_steps, stream: see ``balance_steps``.

    Returns:
        ``int64[steps, *step_shape]``.
    """
    num_steps = len(order)
    ranks, micro_batches, packs_per_micro_batch = step_shape
    if num_steps == 0:
        return order.reshape(0, *step_shape)
    schedules = []
    for steps in windows_of(order, window_steps):
        for window in steps:
            bundles = _bundles(window.reshape(-1), weights, packs_per_micro_batch)
            loads = weights[bundles].sum(axis=1)
            barriers = _exchanged(loads, _cut(loads, ranks))
            # Strata as for one part: a step takes one barrier of each, so it has heavy and light
            # micro-batches.
            times = loads[barriers].max(axis=1).sum(axis=1)
            strata = barriers[np.argsort(-times, kind="stable")].reshape(
                micro_batches, len(window), ranks
            )
            draws = stream.words(micro_batches * len(window)).reshape(micro_batches, len(window))
            strata = np.take_along_axis(
                strata, np.argsort(draws, axis=1, kind="stable")[..., None], axis=1
            )
            totals = loads.sum(axis=1)
            slices = strata.transpose(1, 0, 2)
            slices = np.take_along_axis(
                slices, np.argsort(-totals[slices], axis=2, kind="stable"), axis=2
            )
            schedules.append(
                bundles[assign_to_ranks(slices, totals, (ranks, micro_batches, 1))[..., 0]]
            )
    return in_random_order(np.concatenate(schedules), stream)


def _bundles(packs: Int64Array, weights: Int64Array, size: int) -> Int64Array:
    """Divide packs among micro-batches of equal sums, ``int64[number, size]``; with size 1, packs
    stay in order.

    Packs are sorted by the part that differs most among them, and dealt in alternating directions::

        8 7 6 5 | 4 3 2 1 in bundles of 2        8 1   7 2   6 3   5 4
    """
    if size == 1:
        return packs[:, None]
    loads = weights[packs]
    component = int(np.argmax(loads.max(axis=0) - loads.min(axis=0)))
    rows = packs[np.argsort(-loads[:, component], kind="stable")].reshape(size, -1)
    return np.stack(
        [row if index % 2 == 0 else row[::-1] for index, row in enumerate(rows)], axis=1
    )


def _time(loads: Int64Array, barriers: Int64Array) -> int:
    """Return the slowest rank's load, summed over barriers and parts."""
    return int(loads[barriers].max(axis=1).sum())


def _cut(loads: Int64Array, ranks: int) -> Int64Array:
    """Cut bundles into barriers of neighbors in all parts, ``int64[num_barriers, ranks]``.

    Each cut saves as much time as possible: bundles are sorted by a part, heaviest first, and the
    bundles after the cut need not wait for the first bundle any more::

        tower      9 9 | 2 2 | 1 1       two ranks, three barriers; saved: (9 − 2) · 2 barriers, or (9 − 1) · 1
        language   8 7 | 7 2 | 2 1                                         (8 − 7) · 2,          or (8 − 2) · 1
                                         so the tower's 9 9 are cut off first

    Args:
        loads: ``int64[num_bundles, num_components]``.
        ranks: bundles of a barrier.
    """
    barriers = []
    remaining = [np.arange(len(loads))]
    while remaining:
        group = remaining.pop()
        num_barriers = len(group) // ranks
        if num_barriers == 1:
            barriers.append(group)
            continue
        orders = [
            group[np.argsort(-loads[group, component], kind="stable")]
            for component in range(loads.shape[1])
        ]
        firsts = np.stack(
            [loads[order[::ranks], component] for component, order in enumerate(orders)]
        )
        saved = (firsts[:, :1] - firsts[:, 1:]) * np.arange(num_barriers - 1, 0, -1)
        component, cut = divmod(int(saved.argmax()), num_barriers - 1)
        remaining += [
            orders[component][(cut + 1) * ranks :],
            orders[component][: (cut + 1) * ranks],
        ]
    # The given order is a choice too: an epoch never takes longer than with it.
    choices = np.stack(barriers), np.arange(len(loads)).reshape(-1, ranks)
    return min(choices, key=lambda choice: _time(loads, choice))


class _Barriers:
    """Bundles at barriers while they are exchanged; arrays by place, ``barrier · ranks + rank``.

    Attributes:
        bundles: ``int64[num_slots]``, bundle at each place.
        loads: ``int64[num_slots, num_components]``, loads of this bundle.
        times: ``int64[num_slots, num_components]``, largest load at the place's barrier.
        times_without: largest load of all other places of the barrier.
        slowest: ``int64[num_barriers, num_components]``, place of the largest load.
    """

    def __init__(self, loads: Int64Array, barriers: Int64Array) -> None:
        self.ranks = barriers.shape[1]
        self.bundles = barriers.reshape(-1).copy()
        self.loads: Int64Array = loads[self.bundles]
        self.times, self.times_without = np.empty_like(self.loads), np.empty_like(self.loads)
        self.slowest: Int64Array = np.empty((len(barriers), loads.shape[1]), dtype=np.int64)
        for barrier in range(len(barriers)):
            self._update(barrier)

    @property
    def time(self) -> int:
        """Time of all barriers, summed over parts."""
        return int(self.times[:: self.ranks].sum())

    def exchange_slowest(self, barrier: int, component: int) -> None:
        """Exchange the slowest bundle of a barrier with the bundle that saves most time, if any
        saves time.
        """
        slot = int(self.slowest[barrier, component])
        # Change in the times of both barriers if this place exchanged its bundle with each other
        # place.
        change = np.maximum(self.times_without[slot], self.loads).sum(axis=1) - int(
            self.times[slot].sum()
        )
        change += np.maximum(self.times_without, self.loads[slot]).sum(axis=1) - self.times.sum(
            axis=1
        )
        change[barrier * self.ranks : (barrier + 1) * self.ranks] = 0
        partner = int(change.argmin())
        if change[partner] < 0:
            for array in (self.bundles, self.loads):
                array[[slot, partner]] = array[[partner, slot]]
            self._update(barrier)
            self._update(partner // self.ranks)

    def _update(self, barrier: int) -> None:
        """Recompute the times of one barrier."""
        rows = slice(barrier * self.ranks, (barrier + 1) * self.ranks)
        loads = self.loads[rows]
        first = loads.argmax(axis=0)
        components = np.arange(loads.shape[1])
        self.slowest[barrier] = first + rows.start
        self.times[rows] = self.times_without[rows] = loads[first, components]
        remainder = loads.copy()
        remainder[first, components] = 0
        self.times_without[rows][first, components] = remainder.max(axis=0)


def _exchanged(loads: Int64Array, barriers: Int64Array) -> Int64Array:
    """Exchange the slowest bundle of each barrier with a bundle of another barrier while this saves
    time.
    """
    num_barriers, num_components = len(barriers), loads.shape[1]
    state = _Barriers(loads, barriers)
    for _ in range(_MAX_PASSES):
        time_before = state.time
        for barrier in range(num_barriers):
            for component in range(num_components):
                state.exchange_slowest(barrier, component)
        # Invariant: the time only falls, so the loop ends.
        if time_before - state.time < _LEAST_GAIN * time_before:
            break
    return state.bundles.reshape(barriers.shape)

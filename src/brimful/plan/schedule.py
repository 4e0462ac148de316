"""Which packs at which step on which rank: one pure function to one array."""

from __future__ import annotations

from enum import Enum

import numpy as np

from brimful.errors import SettingsError
from brimful.rng import generator
from brimful.typing import Int64Array

__all__ = ["Tail", "schedule_packs"]


class Tail(str, Enum):
    """What becomes of the packs that do not fill a last step."""

    PAD = "pad"
    """The last step has empty places (-1), which a loader serves as batches without loss."""
    DROP = "drop"
    """They are left out; another epoch leaves out others."""
    REPEAT = "repeat"
    """The last step is filled with packs from the beginning of the epoch."""

    @classmethod
    def named(cls, name: Tail | str) -> Tail:
        """The member of that name."""
        try:
            return cls(name)
        except ValueError as error:
            raise SettingsError(
                f"tail {name!r} is unknown: use one of {', '.join(member.value for member in cls)}"
            ) from error


def schedule_packs(
    num_packs: int,
    *,
    dp_world_size: int,
    micro_batches: int,
    packs_per_micro_batch: int,
    epoch: int,
    seed: int | None,
    tail: Tail,
) -> Int64Array:
    """Divide one epoch's packs among steps and ranks.

    Every rank computes the same array and takes its own column: equal numbers of steps everywhere, without talking.

    Pure: no I/O; every knob is given.

    Args:
        num_packs: in the plan.
        dp_world_size: data-parallel ranks.
        micro_batches: forwards of one rank in one step (gradient accumulation).
        packs_per_micro_batch: packs of one forward.
        epoch: number of the pass; shuffles differently each time.
        seed: of the order; None keeps the order of the plan.
        tail: what becomes of packs that fill no step.

    Returns:
        ``int64[steps, dp_world_size, micro_batches, packs_per_micro_batch]``, -1 = none.

    >>> schedule_packs(5, dp_world_size=2, micro_batches=1, packs_per_micro_batch=1, epoch=0, seed=None,
    ...                tail=Tail.PAD).reshape(-1, 2).tolist()
    [[0, 1], [2, 3], [4, -1]]
    """
    for name, value in (
        ("dp_world_size", dp_world_size),
        ("micro_batches", micro_batches),
        ("packs_per_micro_batch", packs_per_micro_batch),
    ):
        if value < 1:
            raise SettingsError(f"{name} must be at least 1 and is {value}")
    if seed is None:
        order = np.roll(np.arange(num_packs, dtype=np.int64), -_rotation(num_packs, epoch) if tail is Tail.DROP else 0)
    else:
        order = generator(seed=seed, epoch=epoch, purpose="schedule").permutation(num_packs)
    per_step = dp_world_size * micro_batches * packs_per_micro_batch
    rest = num_packs % per_step
    if rest and tail is Tail.DROP:
        order = order[: num_packs - rest]
    elif rest and tail is Tail.PAD:
        order = np.concatenate([order, np.full(per_step - rest, -1, dtype=np.int64)])
    elif rest:
        order = np.concatenate([order, np.resize(order, per_step - rest)])
    return order.reshape(-1, dp_world_size, micro_batches, packs_per_micro_batch)


def _rotation(num_packs: int, epoch: int) -> int:
    """Where an unshuffled epoch begins, so that the packs left out are not the same every time."""
    return (epoch * max(1, num_packs // 7)) % num_packs if num_packs else 0

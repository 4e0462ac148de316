"""Schedule of packs as a sampler, for trainers that assign a sampler's batches to ranks:
Accelerate, Transformers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch.utils.data

from brimful.base.arguments import as_settings, understands
from brimful.base.checks import position
from brimful.base.wording import counted
from brimful.errors import StateError
from brimful.serve.order import signed
from brimful.serve.schedule_order import ScheduleOrder, ScheduleSettings
from brimful.store.shards import FingerprintedPacks, Pack

__all__ = ["PackSampler", "ServedPacks"]


class ServedPacks:
    """Packs, followed by the same packs without loss: ``n + i`` is pack ``i`` without loss, to fill
    empty places.

    Args:
        packs: a ``PackedDataset`` or ``PackStore``.

    >>> from brimful.testing.toys import toy_packs
    >>> served = ServedPacks(toy_packs(3))
    >>> len(served), [served[index].num_loss_tokens for index in (2, 3 + 2)]
    (3, [3, 0])
    """

    def __init__(self, packs: FingerprintedPacks) -> None:
        self.packs = packs

    def __len__(self) -> int:
        return len(self.packs)

    def __getitem__(self, index: int) -> Pack:
        slot = position(index, 2 * len(self.packs), "place")
        pack = self.packs[slot % len(self.packs)]
        return pack if slot < len(self.packs) else pack.without_loss()

    def __getitems__(self, indices: Sequence[int]) -> list[Pack]:
        # Packs that are encoded on the fly are encoded together.
        get_items = getattr(self.packs, "__getitems__", None)
        if get_items is None or max(indices) >= len(self.packs):
            return [self[index] for index in indices]
        return list(get_items(indices))


class PackSampler(torch.utils.data.Sampler[int]):
    """The schedule of ``PackLoader`` in the order of Accelerate, which gives batch ``b`` to rank
    ``b % ranks``.

    ::

        2 ranks, 2 micro-batches of 1 pack     rank 0: 4 7 | 2 -       rank 1: 1 5 | 0 -
        the sampler gives                      4 1 7 5 | 2 0 8+2 8+2       of 8 packs; 8+2: pack 2 without loss

    Every epoch is a multiple of the packs of a step on all ranks: Accelerate repeats and drops
    nothing, and costs stay balanced over its ranks. Use it in
    ``DataLoader(ServedPacks(packs), batch_size=packs_per_micro_batch, sampler=…)``, which
    ``accelerator.prepare`` then divides.

    Args:
        packs: a ``PackedDataset`` or ``PackStore``.
        dp_world_size, packs_per_micro_batch, micro_batches: see ``PackLoader``.
        **order: ``seed``, ``tail``, ``costs`` and ``window_steps``, see ``PackLoader``.

    >>> from brimful.testing.toys import toy_packs
    >>> list(PackSampler(toy_packs(3), dp_world_size=2, seed=None))
    [0, 1, 2, 3]
    """

    @understands({}, ScheduleSettings)
    def __init__(self, packs: FingerprintedPacks, *, dp_world_size: int, **options: Any) -> None:
        settings = as_settings(ScheduleSettings, None, {**options, "dp_world_size": dp_world_size})
        self._packs, self._order = packs, ScheduleOrder(packs, settings)
        self._step_size = dp_world_size * settings.packs_per_micro_batch * settings.micro_batches

    @property
    def steps_per_epoch(self) -> int:
        """Number of optimizer steps of one epoch."""
        return self._order.steps_per_epoch

    def __len__(self) -> int:
        """Return the number of places in one epoch, over all ranks."""
        return self.steps_per_epoch * self._step_size

    def set_epoch(self, epoch: int) -> None:
        """Switch to the order of an epoch."""
        if epoch != self._order.epoch:
            self._order.start_epoch(epoch)

    def __iter__(self) -> Iterator[int]:
        schedule = self._order.schedule()
        # From [steps, ranks, micro-batches, packs] to the order of batches: the ranks of a
        # micro-batch are adjacent.
        slots = schedule.transpose(0, 2, 1, 3).reshape(-1)
        first = int(slots[0]) if len(slots) else 0
        slots = np.where(slots < 0, len(self._packs) + first, slots)
        # A trainer that resumes skips the steps that were served, and does not read their packs.
        num_served = len(self) - len(slots)
        yield from [first] * num_served
        yield from slots.tolist()

    def state_at(self, step: int) -> dict[str, Any]:
        """Return the state after ``step`` optimizer steps of the whole run; ``PackLoader`` takes it
        too.
        """
        epoch, step_of_epoch = divmod(step, self.steps_per_epoch)
        order = self._order.fork()
        # If the number of ranks changed during an epoch, the next epoch starts from another state.
        if epoch != order.epoch:
            order.start_epoch(epoch)
        return signed({**order.state_dict(), "step": step_of_epoch, "places": 0})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Keep the global batches of a run that started with other ranks.

        Raises:
            StateError: other packs, another order, or another number of packs in a step.
        """
        shapes = state.get("shapes")
        if isinstance(shapes, list) and shapes and isinstance(shapes[-1], list):
            saved_size = int(np.prod(shapes[-1][1:]))
            if saved_size != self._step_size:
                raise StateError(
                    f"the checkpoint has steps of {counted(saved_size, 'pack')} and these settings "
                    f"{self._step_size}: change the accumulation so that ranks × batch size × "
                    f"accumulation is {saved_size}"
                )
        self._order.load_state_dict(state)

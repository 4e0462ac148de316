"""Order of packs by a schedule: each epoch in another order, resumable at every step, also with
other ranks.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from brimful.base.checks import whole_number
from brimful.base.fingerprint import fingerprint_array
from brimful.base.typing import Int64Array
from brimful.base.wording import counted
from brimful.errors import SettingsError, StateError
from brimful.plan.schedule import DEFAULT_WINDOW_STEPS, Shape, Tail, quantize, resized_schedule
from brimful.serve.order import (
    Order,
    Position,
    RankSettings,
    Request,
    check_state,
    make_state,
)
from brimful.store.shards import FingerprintedPacks

_SETTINGS = ("seed", "tail", "costs", "window_steps")
"""Keys of a state that decide the order of packs, in addition to the packs themselves."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ScheduleSettings(RankSettings):
    """Options of ``PackLoader``, which documents them."""

    packs_per_micro_batch: int = 1
    costs: npt.ArrayLike | None = None
    window_steps: int = DEFAULT_WINDOW_STEPS


class ScheduleOrder(Order):
    """Packs in the order of their schedule (``resized_schedule``), which every rank computes alone.

    Args:
        packs: their number, fingerprint and ``facts``; no pack is read.
        settings: options of ``PackLoader``.

    Raises:
        SettingsError: an impossible number of ranks, too few packs for one step, or invalid costs.
    """

    def __init__(self, packs: FingerprintedPacks, settings: ScheduleSettings) -> None:
        super().__init__(settings.dp_rank, settings.dp_world_size, settings.tail)
        sizes = {
            name: getattr(settings, name)
            for name in ("dp_world_size", "micro_batches", "packs_per_micro_batch")
        }
        self._shape = Shape(
            0, *(whole_number(name, value, minimum=1) for name, value in sizes.items())
        )
        # Shapes of this epoch, from the shape that decides its global batches to the shape of this
        # loader.
        self._shapes = [self._shape]
        self._window_steps = whole_number("window_steps", settings.window_steps, minimum=1)
        self._packs, self._seed = packs, settings.seed
        self._costs = None if settings.costs is None else np.asarray(settings.costs)
        if self._costs is not None:
            if getattr(packs, "replans", False):
                raise SettingsError(
                    "costs are of the packs of one epoch, and this data set plans again for each: "
                    "replan=False"
                )
            quantize(self._costs, len(packs))  # refuses invalid costs
        self._num_delivered = 0  # micro-batches since the last shape began
        self._rank_batches: Int64Array | None = (
            None  # int64[micro-batches, packs] since then; -1: no pack
        )
        self._filler = 0
        if self.steps_per_epoch == 0:
            raise SettingsError(
                f"{len(packs):,} packs do not fill one step of {self._shape.step_size} packs: use "
                "tail='pad' or 'repeat', or fewer ranks"
            )

    @property
    def steps_per_epoch(self) -> int:
        """Number of optimizer steps of a whole epoch: the same on every rank."""
        return self._num_steps([self._shape])

    def _num_steps(self, shapes: Sequence[Shape]) -> int:
        """Return the number of steps of an epoch with these shapes."""
        num_packs = len(self._packs)
        for shape, next_shape in pairwise(shapes):
            num_packs -= (next_shape.first_step - shape.first_step) * shape.step_size
        num_full, num_remaining = divmod(num_packs, shapes[-1].step_size)
        is_completed = num_remaining and self.tail is not Tail.DROP
        return shapes[-1].first_step + num_full + (1 if is_completed else 0)

    def __len__(self) -> int:
        """Return the number of micro-batches of this epoch on this rank, including the served
        ones.
        """
        return self._num_steps(self._shapes) * self._shape.micro_batches

    def start_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch, which may be the current one."""
        # Shapes with equal step sizes share their global batches; with costs, the first of these
        # shapes decides them.
        first = self._shapes[-1]
        for shape in reversed(self._shapes):
            if shape.step_size != first.step_size:
                break
            first = shape
        is_same = self._costs is None or first.step_shape == self._shape.step_shape
        self._go_to(
            epoch, [self._shape] if is_same else [first._replace(first_step=0), self._shape], 0
        )

    def _go_to(self, epoch: int, shapes: list[Shape], num_delivered: int) -> None:
        if (epoch, shapes) != (self.epoch, self._shapes):
            self._rank_batches = None
        self.epoch, self._shapes, self._num_delivered = int(epoch), shapes, num_delivered

    def schedule(self) -> Int64Array:
        """Return the steps of all ranks in this epoch since its last change of ranks, the same
        array on each rank.

        Returns:
            ``int64[steps, ranks, micro-batches, packs]``, -1 for no pack.
        """
        # A data set that plans again for each epoch must first go to this epoch, together on all
        # ranks.
        if hasattr(self._packs, "set_epoch"):
            self._packs.set_epoch(self.epoch)
        return resized_schedule(
            len(self._packs),
            self._shapes,
            epoch=self.epoch,
            seed=self._seed,
            tail=self.tail,
            costs=self._costs,
            window_steps=self._window_steps,
        )

    def prepare(self) -> None:
        """Make the schedule of this epoch if it does not exist; call it before a fork, or each
        process makes it.
        """
        if self._rank_batches is not None:
            return
        schedule = self.schedule()
        self._filler = int(schedule[0, 0, 0, 0]) if len(schedule) else 0
        # A copy of this rank's part: the schedule of all ranks is not kept.
        self._rank_batches = (
            schedule[:, self.dp_rank].reshape(-1, self._shape.packs_per_micro_batch).copy()
        )

    def next_request(self) -> Request | None:
        """Return the packs of the next batch; at the end of an epoch move to the next and return
        None.
        """
        self.prepare()
        assert self._rank_batches is not None
        if self._num_delivered >= len(self._rank_batches):
            self.start_epoch(self.epoch + 1)
            return None
        packs = [index for index in self._rank_batches[self._num_delivered].tolist() if index >= 0]
        return Request(packs or [self._filler], has_loss=bool(packs))

    def advance(self) -> bool:
        """Count the next batch as served; after the last batch of an epoch, go to the next epoch
        and return true.
        """
        assert self._rank_batches is not None
        self._num_delivered += 1
        if self._num_delivered < len(self._rank_batches):
            return False
        self.start_epoch(self.epoch + 1)
        return True

    def _position(self) -> Position:
        num_steps, num_micro_batches = divmod(self._num_delivered, self._shape.micro_batches)
        num_slots = (
            num_micro_batches * self._shape.dp_world_size * self._shape.packs_per_micro_batch
        )
        return Position(self.epoch, self._shapes[-1].first_step + num_steps, num_slots)

    def state_dict(self) -> dict[str, Any]:
        """Return the position; it counts delivered batches, not batches that a consumer
        prefetched.
        """
        return make_state(
            "packs",
            self._packs.fingerprint,
            self._position(),
            getattr(self._packs, "facts", None),
            seed=self._seed,
            tail=self.tail.value,
            costs=None
            if self._costs is None
            else fingerprint_array(self._costs.astype(np.float64)),
            window_steps=None if self._costs is None else self._window_steps,
            shapes=[list(shape) for shape in self._shapes],
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to the position of a state, which other ranks may have saved between two steps.

        Raises:
            StateError: the state belongs to other packs or another order, or was saved within a
                step by other ranks; names the difference.
        """
        epoch, step, num_slots = check_state(state, self.state_dict(), _SETTINGS)
        shapes = [Shape(*row) for row in state["shapes"]]
        saved = shapes[-1]
        is_resized = saved.step_shape != self._shape.step_shape
        packs_together = saved.dp_world_size * saved.packs_per_micro_batch
        if is_resized:
            if num_slots:
                raise StateError(
                    f"the loader state was saved within a step, after {num_slots} of its "
                    f"{saved.step_size} packs, by {_shown(saved)}, and this run has "
                    f"{_shown(self._shape)}: save at the end of a step, or load it there"
                )
            shapes = [
                *(shape for shape in shapes if shape.first_step < step),
                self._shape._replace(first_step=step),
            ]
            if not step:
                # Nothing was served: of the earlier shapes, only the shape that decides global
                # batches matters.
                is_kept = self._costs is not None and saved.step_size == self._shape.step_size
                first = Shape(*state["shapes"][0])
                shapes = [first, self._shape] if is_kept else [self._shape]
            if saved.step_size != self._shape.step_size:
                logging.getLogger("brimful").warning(
                    "continues with steps of %d packs (%s), previously %d (%s): the same packs in "
                    "the same order",
                    self._shape.step_size,
                    _shown(self._shape),
                    saved.step_size,
                    _shown(saved),
                )
        num_micro_batches = 0 if is_resized else num_slots // packs_together
        num_delivered = (
            step - shapes[-1].first_step
        ) * self._shape.micro_batches + num_micro_batches
        self._go_to(epoch, shapes, num_delivered)

    def __repr__(self) -> str:
        return (
            f"{counted(len(self._packs), 'pack')}, dp_rank {self.dp_rank} of {self.dp_world_size}, "
            f"epoch {self.epoch}, step {self._position().step:,} of "
            f"{self._num_steps(self._shapes):,}"
        )


def _shown(shape: Shape) -> str:
    ranks = counted(shape.dp_world_size, "rank")
    return f"{ranks} × {shape.micro_batches} × {counted(shape.packs_per_micro_batch, 'pack')}"

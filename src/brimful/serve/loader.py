"""Loader of one rank's micro-batches from packs, resumable at every step, also with other ranks."""

import logging
from collections.abc import Callable, Sequence
from copy import copy
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from brimful.base.arguments import understands
from brimful.base.checks import check_type, is_whole_number, whole_number
from brimful.base.fingerprint import fingerprint_array
from brimful.base.wording import counted
from brimful.errors import SettingsError, StateError
from brimful.plan.schedule import DEFAULT_WINDOW_STEPS, Shape, Tail, quantize, resized_schedule
from brimful.serve.rank_loader import RankLoader, without_loss
from brimful.serve.state import Position, check_state, damaged, make_state
from brimful.store.shards import FingerprintedPacks, Pack

_SETTINGS = ("seed", "tail", "costs", "window_steps")
"""Keys of a state that decide the order of packs, in addition to the packs themselves."""


class PackLoader(RankLoader):
    """Micro-batches of one data-parallel rank, epoch by epoch.

    Every rank computes the same schedule from (number of packs, seed, epoch, ranks) and takes its part: all ranks have
    equal steps without communication. Iterating serves one epoch (after ``load_state_dict`` its remainder) and moves on
    to the next.

    A state that was saved between two steps may be loaded with other ranks. With the same number of packs in a step,
    such as half the ranks and twice the micro-batches, global batches stay the same to the end of the run; with another
    number the packs that were not served yet continue in their order (``resized_schedule``).

    Args:
        dataset: a ``PackedDataset`` or ``PackStore``.
        collate_fn: turns a list of packs into a batch; the packs themselves if None. A rank without a pack (in the tail
            with ``pad``) gets the first pack of the epoch with all labels ignored.
        dp_rank, dp_world_size: this rank among the ranks that see different data. TP, CP and PP peers share one.
        packs_per_micro_batch: packs of one forward pass.
        micro_batches: forward passes of one step (gradient accumulation).
        seed: seed of the order; None keeps the order of the plan.
        tail: ``pad``, ``drop`` or ``repeat`` (``Tail``).
        costs: cost of each pack, from ``plan.costs(model)``, or of each pack in each part of the model, from
            ``plan.costs(model, lengths)``; ranks then have nearly equal work in each micro-batch, in towers too. None
            does not balance the shuffled packs.
        window_steps: number of steps within which packs are exchanged to balance costs (``schedule_packs``).

    Raises:
        SettingsError: an impossible number of ranks, too few packs for one step, or invalid costs.

    >>> from brimful.testing.toys import toy_packs
    >>> loader = PackLoader(toy_packs(5), dp_rank=1, dp_world_size=2, seed=None, tail="drop")
    >>> len(loader), [pack.sample_ids.tolist() for pack, in loader]
    (2, [[1], [3]])
    """

    @understands()
    def __init__(
        self,
        dataset: FingerprintedPacks,
        collate_fn: Callable[[list[Pack]], Any] | None = None,
        *,
        dp_rank: int = 0,
        dp_world_size: int = 1,
        packs_per_micro_batch: int = 1,
        micro_batches: int = 1,
        seed: int | None = 0,
        tail: Tail | str = Tail.PAD,
        costs: npt.ArrayLike | None = None,
        window_steps: int = DEFAULT_WINDOW_STEPS,
    ) -> None:
        if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "fingerprint")):
            check_type("dataset", dataset, (), "a PackedDataset or a PackStore", "open a directory by PackedDataset")
        super().__init__(collate_fn, dp_rank=dp_rank, dp_world_size=dp_world_size, tail=tail)
        shape = {
            "dp_world_size": dp_world_size,
            "micro_batches": micro_batches,
            "packs_per_micro_batch": packs_per_micro_batch,
        }
        self._shape = Shape(0, *(whole_number(name, value, minimum=1) for name, value in shape.items()))
        # Shapes of this epoch, from the shape that decides its global batches to the shape of this loader.
        self._shapes = [self._shape]
        self._window_steps = whole_number("window_steps", window_steps, minimum=1)
        self._dataset = dataset
        self._seed = seed
        self._costs = None if costs is None else np.asarray(costs)
        if self._costs is not None and getattr(dataset, "replans", False):
            raise SettingsError(
                "costs are of the packs of one epoch, and this data set plans again for each: replan=False"
            )
        if self._costs is not None:
            quantize(self._costs, len(dataset))  # refuses invalid costs
        self._num_delivered = 0  # micro-batches since the last shape began
        self._rank_batches: npt.NDArray[np.int64] | None = None  # int64[micro-batches, packs] since then; -1: no pack
        self._filler = 0
        if self.steps_per_epoch == 0:
            raise SettingsError(
                f"{len(dataset):,} packs do not fill one step of {self._shape.step_size} packs: use tail='pad' or "
                f"'repeat', or fewer ranks"
            )

    @property
    def steps_per_epoch(self) -> int:
        """Number of optimizer steps of a whole epoch: the same on every rank."""
        return self._num_steps([self._shape])

    def _num_steps(self, shapes: Sequence[Shape]) -> int:
        """Return the number of steps of an epoch with these shapes."""
        num_packs = len(self._dataset)
        for shape, next_shape in pairwise(shapes):
            num_packs -= (next_shape.first_step - shape.first_step) * shape.step_size
        num_full, num_remaining = divmod(num_packs, shapes[-1].step_size)
        is_completed = num_remaining and self._tail is not Tail.DROP
        return shapes[-1].first_step + num_full + (1 if is_completed else 0)

    def __len__(self) -> int:
        """Return the number of micro-batches of this epoch on this rank, including the served ones."""
        return self._num_steps(self._shapes) * self._shape.micro_batches

    def begin_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch, which may be the current one."""
        # Shapes with equal step sizes share their global batches; with costs, the first of these shapes decides them.
        first = self._shapes[-1]
        for shape in reversed(self._shapes):
            if shape.step_size != first.step_size:
                break
            first = shape
        is_same = self._costs is None or first.step_shape == self._shape.step_shape
        self._go_to(epoch, [self._shape] if is_same else [first._replace(first_step=0), self._shape], 0)

    def _go_to(self, epoch: int, shapes: list[Shape], num_delivered: int) -> None:
        if (epoch, shapes) != (self._epoch, self._shapes):
            self._rank_batches = None
        self._epoch, self._shapes, self._num_delivered = int(epoch), shapes, num_delivered

    def schedule(self) -> npt.NDArray[np.int64]:
        """Return the steps of all ranks in this epoch since its last change of ranks, the same array on each rank.

        Returns:
            ``int64[steps, ranks, micro-batches, packs]``, -1 for no pack.
        """
        # A data set that plans again for each epoch must first go to this epoch, together on all ranks.
        if hasattr(self._dataset, "set_epoch"):
            self._dataset.set_epoch(self._epoch)
        return resized_schedule(
            len(self._dataset),
            self._shapes,
            epoch=self._epoch,
            seed=self._seed,
            tail=self._tail,
            costs=self._costs,
            window_steps=self._window_steps,
        )

    def prepare(self) -> None:
        """Make the schedule of this epoch if it does not exist; call it before a fork, or each process makes it."""
        if self._rank_batches is not None:
            return
        schedule = self.schedule()
        self._filler = int(schedule[0, 0, 0, 0]) if len(schedule) else 0
        # A copy of this rank's part: the schedule of all ranks is not kept.
        self._rank_batches = schedule[:, self._dp_rank].reshape(-1, self._shape.packs_per_micro_batch).copy()

    def next_request(self) -> list[int] | None:
        """Return the packs of the next batch, -1 for none; at the end of an epoch move to the next and return None."""
        self.prepare()
        assert self._rank_batches is not None
        if self._num_delivered >= len(self._rank_batches):
            self.begin_epoch(self._epoch + 1)
            return None
        return self._rank_batches[self._num_delivered].tolist()  # type: ignore[no-any-return]

    def make_batch(self, request: list[int]) -> Any:
        """Return the batch of these packs. Index -1 means no pack; without any pack it is the filler without loss."""
        packs = [self._dataset[index] for index in request if index >= 0]
        return self._collate(packs or [without_loss(self._dataset[self._filler])])

    def advance(self) -> bool:
        """Count the next batch as served; after the last batch of an epoch, go to the next epoch and return true."""
        assert self._rank_batches is not None
        self._num_delivered += 1
        if self._num_delivered < len(self._rank_batches):
            return False
        self.begin_epoch(self._epoch + 1)
        return True

    def fork(self) -> "PackLoader":
        """Return a loader of the same packs and settings with its own position, at the same place."""
        return copy(self)

    def _position(self) -> Position:
        num_steps, num_micro_batches = divmod(self._num_delivered, self._shape.micro_batches)
        places = num_micro_batches * self._shape.dp_world_size * self._shape.packs_per_micro_batch
        return Position(self._epoch, self._shapes[-1].first_step + num_steps, places)

    def state_dict(self) -> dict[str, Any]:
        """Return the position; it counts delivered batches, not batches that a consumer prefetched."""
        return make_state(
            "packs",
            self._dataset.fingerprint,
            self._position(),
            getattr(self._dataset, "facts", None),
            seed=self._seed,
            tail=self._tail.value,
            costs=None if self._costs is None else fingerprint_array(self._costs.astype(np.float64)),
            window_steps=None if self._costs is None else self._window_steps,
            shapes=[list(shape) for shape in self._shapes],
        )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to the position of a state, which other ranks may have saved between two steps.

        Raises:
            StateError: the state belongs to other packs or another order, or was saved within a step by other ranks;
                names the difference.
        """
        epoch, step, places = check_state(state, self.state_dict(), _SETTINGS)
        shapes = _shapes_of(state)
        saved = shapes[-1]
        is_resized = saved.step_shape != self._shape.step_shape
        packs_together = saved.dp_world_size * saved.packs_per_micro_batch
        num_steps = self._num_steps(shapes)
        # Accept only numbers that a loader could have saved: an edited checkpoint is refused, not repaired. A data set
        # that plans again for each epoch may have more packs in the epoch of the state.
        is_known = not getattr(self._dataset, "replans", False)
        if step < saved.first_step or places % packs_together or places >= saved.step_size:
            raise damaged(f"step {step:,}, {places:,} places of {saved.step_size:,}, shape {list(saved)}")
        if is_known and step >= num_steps and (step, places) != (0, 0):
            raise damaged(f"epoch {epoch:,}, step {step:,} of {num_steps:,}")
        if is_resized:
            if places:
                raise StateError(
                    f"the loader state was saved within a step, after {places} of its {saved.step_size} packs, by "
                    f"{_shown(saved)}, and this run has {_shown(self._shape)}: save at the end of a step, or load it "
                    f"there"
                )
            shapes = [*(shape for shape in shapes if shape.first_step < step), self._shape._replace(first_step=step)]
            if not step:
                # Nothing was served: of the earlier shapes, only the shape that decides global batches matters.
                is_kept = self._costs is not None and saved.step_size == self._shape.step_size
                shapes = [_shapes_of(state)[0], self._shape] if is_kept else [self._shape]
            _tell(saved, self._shape)
        num_micro_batches = 0 if is_resized else places // packs_together
        num_delivered = (step - shapes[-1].first_step) * self._shape.micro_batches + num_micro_batches
        self._go_to(epoch, shapes, num_delivered)

    def __repr__(self) -> str:
        return (
            f"PackLoader({counted(len(self._dataset), 'pack')}, dp_rank {self._dp_rank} of "
            f"{self._shape.dp_world_size}, epoch {self._epoch}, step {self._position().step:,} of "
            f"{self._num_steps(self._shapes):,})"
        )


def _shapes_of(state: dict[str, Any]) -> list[Shape]:
    """Return the shapes of a state, which is not trusted.

    Raises:
        StateError: they are not valid shapes, or not in order.
    """
    rows: Any = state.get("shapes")
    is_list = isinstance(rows, list) and all(isinstance(row, list) and len(row) == 4 for row in rows)
    if not is_list or not rows or not all(is_whole_number(value) for row in rows for value in row):
        raise damaged(f"shapes {rows!r}")
    shapes = [Shape(*row) for row in rows]
    first_steps = [shape.first_step for shape in shapes]
    if first_steps[0] != 0 or first_steps != sorted(first_steps) or min(min(shape.step_shape) for shape in shapes) < 1:
        raise damaged(f"shapes {rows!r}")
    return shapes


def _tell(saved: Shape, shape: Shape) -> None:
    """Log that a run continues with other ranks, and whether its global batches stay the same."""
    logger = logging.getLogger("brimful")
    if saved.step_size == shape.step_size:
        logger.info("continues with %s, previously %s: the same global batches", _shown(shape), _shown(saved))
    else:
        logger.warning(
            "continues with steps of %d packs (%s), previously %d (%s): the same packs in the same order",
            shape.step_size,
            _shown(shape),
            saved.step_size,
            _shown(saved),
        )


def _shown(shape: Shape) -> str:
    ranks = counted(shape.dp_world_size, "rank")
    return f"{ranks} × {shape.micro_batches} × {counted(shape.packs_per_micro_batch, 'pack')}"

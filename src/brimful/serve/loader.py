"""Loaders of one rank's micro-batches: their base, and the one from packs, step by step, resumable at each."""

import abc
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from brimful.arguments import understands
from brimful.checks import check_rank, check_type, is_whole_number, whole_number
from brimful.errors import SettingsError, StateError
from brimful.fingerprint import fingerprint_array
from brimful.messages import counted, differences
from brimful.plan.schedule import DEFAULT_WINDOW_STEPS, Tail, quantise_parts, schedule_packs
from brimful.shards import FingerprintedPacks, Pack

_VERSION = 2
"""Version in every state; states of others are refused."""

_POSITION = ("epoch", "micro_batches_delivered")
"""Keys of a state that say how far it is; all others must be those of the loader."""


class RankLoader(abc.ABC):
    """Base of the loaders: one data-parallel rank among several, and the epoch that it serves."""

    def __init__(
        self, collate_fn: Callable[[list[Pack]], Any] | None, *, dp_rank: int, dp_world_size: int, tail: Tail | str
    ) -> None:
        if collate_fn is not None and not callable(collate_fn):
            check_type("collate_fn", collate_fn, (), "a function of a list of packs, such as PackCollator()")
        self._dp_rank, self._dp_world_size = check_rank(dp_rank, dp_world_size)
        self._collate = collate_fn if collate_fn is not None else list
        self._tail = Tail.named(tail)
        self._epoch = 0

    @property
    def epoch(self) -> int:
        """Epoch of the next batch. It moves on at the end of an epoch."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch, unless it is the one being served.

        So training loops that call it before every epoch may call it after ``load_state_dict`` as well, and continue
        from the state.
        """
        check_type("epoch", epoch, (int, np.integer), "a whole number")
        if epoch != self._epoch:
            self.begin_epoch(epoch)

    @abc.abstractmethod
    def begin_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch, also of the one that is being served."""


class PackLoader(RankLoader):
    """Micro-batches of one data-parallel rank, over one epoch after another.

    Every rank computes the same schedule from (number of packs, seed, epoch, ranks) and takes its part: equal
    steps on all ranks, nothing to agree on. Iterating serves one epoch (after ``load_state_dict`` the remainder of
    it) and moves on to the next.

    Args:
        dataset: a ``PackedDataset`` or ``PackStore``.
        collate_fn: turns a list of packs into a batch; the packs themselves if None. A rank without a pack (the
            tail under ``pad``) gets the first pack of the epoch with all labels ignored.
        dp_rank, dp_world_size: this rank among those that see different data. TP, CP and PP peers share one.
        packs_per_micro_batch: packs of one forward.
        micro_batches: forwards of one step (gradient accumulation).
        seed: of the order; None keeps the order of the plan.
        tail: ``pad``, ``drop`` or ``repeat`` (``Tail``).
        costs: cost of each pack, as ``plan.costs(model)`` gives it, or of each pack in each part of the model, as
            ``plan.costs(model, lengths)``; ranks then have nearly equal work in each micro-batch, in towers too. None leaves
            packs where the shuffle put them.
        window_steps: steps within which packs are exchanged to balance costs (``schedule_packs``).

    Raises:
        SettingsError: an impossible number of ranks, packs that fill no step, or costs that are no costs.

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
        # The cut of the schedule, one axis each; saved states must have the same.
        shape = {
            "dp_world_size": dp_world_size,
            "packs_per_micro_batch": packs_per_micro_batch,
            "micro_batches": micro_batches,
        }
        self._shape = {name: whole_number(name, value, minimum=1) for name, value in shape.items()}
        self._window_steps = whole_number("window_steps", window_steps, minimum=1)
        self._dataset = dataset
        self._seed = seed
        self._costs = None if costs is None else np.asarray(costs)
        if self._costs is not None and getattr(dataset, "replans", False):
            raise SettingsError(
                "costs are of the packs of one epoch, and this data set plans again for each: replan=False"
            )
        if self._costs is not None:
            quantise_parts(self._costs, len(dataset))  # refuses costs that are none
        self._num_delivered = 0  # micro-batches of this epoch
        if self.steps_per_epoch == 0:
            raise SettingsError(
                f"{len(dataset):,} packs do not fill one step of {prod(self._shape.values())} packs: use tail='pad' or "
                f"'repeat', or fewer ranks"
            )

    @property
    def steps_per_epoch(self) -> int:
        """Number of optimizer steps of one epoch: the same on every rank."""
        num_full, num_remaining = divmod(len(self._dataset), prod(self._shape.values()))
        return num_full + (1 if num_remaining and self._tail is not Tail.DROP else 0)

    def __len__(self) -> int:
        """Return the micro-batches of one epoch on this rank."""
        return self.steps_per_epoch * self._shape["micro_batches"]

    def begin_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch, also of the one that is being served."""
        self._epoch, self._num_delivered = int(epoch), 0

    def __iter__(self) -> Iterator[Any]:
        # Packs that are planned anew for each epoch go to it first, together on all ranks.
        if hasattr(self._dataset, "set_epoch"):
            self._dataset.set_epoch(self._epoch)
        # int64[steps, ranks, micro-batches, packs]: the same array on every rank, -1 for no pack.
        schedule = schedule_packs(
            len(self._dataset),
            epoch=self._epoch,
            seed=self._seed,
            tail=self._tail,
            costs=self._costs,
            window_steps=self._window_steps,
            **self._shape,
        )
        filler = int(schedule[0, 0, 0, 0])
        rank_batches = schedule[:, self._dp_rank].reshape(-1, self._shape["packs_per_micro_batch"])
        while self._num_delivered < len(rank_batches):
            # Count a batch only once it is made: a state saved after an error of the collator has the same packs next.
            batch = self._batch(rank_batches[self._num_delivered].tolist(), filler)
            self._num_delivered += 1
            is_last = self._num_delivered == len(rank_batches)
            # Move on before the last batch leaves: a state saved while it trains begins the next epoch.
            if is_last:
                self.begin_epoch(self._epoch + 1)
            yield batch
            if is_last:
                return

    def _batch(self, indices: list[int], filler: int) -> Any:
        """Return the batch of these packs. Index -1 is no pack; without any pack it is ``filler`` without loss."""
        packs = [self._dataset[index] for index in indices if index >= 0]
        return self._collate(packs or [without_loss(self._dataset[filler])])

    def state_dict(self) -> dict[str, Any]:
        """Return the position, which counts delivered batches, not those that a consumer prefetched."""
        return {
            "version": _VERSION,
            "fingerprint": self._dataset.fingerprint,
            "seed": self._seed,
            "tail": self._tail.value,
            "costs": None if self._costs is None else fingerprint_array(self._costs.astype(np.float64)),
            "window_steps": None if self._costs is None else self._window_steps,
            "epoch": self._epoch,
            "micro_batches_delivered": self._num_delivered,
            **self._shape,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to the position of a state.

        Raises:
            StateError: the state is of other packs, another order or another number of ranks; names the difference.
        """
        check_type("state", state, Mapping, "what state_dict returned")
        own_state = self.state_dict()
        check_state(state, own_state, [key for key in own_state if key not in _POSITION])
        position: list[Any] = [state.get(key) for key in _POSITION]
        epoch, num_delivered = position
        # Only whole numbers that this loader could have saved: an edited checkpoint is refused, not guessed at.
        if not all(map(is_whole_number, position)) or epoch < 0 or not 0 <= num_delivered < len(self):
            raise StateError(
                f"the loader state is damaged: epoch {epoch!r}, {num_delivered!r} of {len(self):,} micro-batches delivered"
            )
        self._epoch, self._num_delivered = epoch, num_delivered

    def __repr__(self) -> str:
        return (
            f"PackLoader({counted(len(self._dataset), 'pack')}, dp_rank {self._dp_rank} of "
            f"{self._shape['dp_world_size']}, epoch {self._epoch}, {self._num_delivered:,} of {len(self):,} micro-batches)"
        )


def without_loss(pack: Pack) -> Pack:
    """Return the same pack without targets. It keeps a rank in step that has no pack of its own."""
    return Pack(pack.input_ids, pack.loss_mask & False, pack.cu_seqlens, pack.sample_ids, pack.starts)


def check_state(state: Mapping[str, Any], own_state: Mapping[str, Any], keys: Iterable[str]) -> None:
    """Refuse the state of a loader with other samples or settings.

    Raises:
        StateError: names each of ``keys`` whose values differ, with both.
    """
    text = differences(state, own_state, keys, show=str)
    if text:
        raise StateError(f"the loader state does not fit: {text}")

"""Serves one rank's micro-batches, step by step, and says where it stands."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from brimful.arguments import understands
from brimful.checks import check_type
from brimful.errors import SettingsError, StateError
from brimful.fingerprint import fingerprint_array
from brimful.messages import counted
from brimful.plan.schedule import DEFAULT_WINDOW_STEPS, Tail, quantise, schedule_packs
from brimful.shards import Pack
from brimful.typing import Fingerprint, Int64Array

__all__ = ["PackLoader"]

_VERSION = 2


class _Dataset(Protocol):
    @property
    def fingerprint(self) -> Fingerprint: ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Pack: ...


class PackLoader:
    """Micro-batches of one data-parallel rank, over one epoch after another.

    Every rank computes the same schedule from (number of packs, seed, epoch, ranks) and takes its part: equal
    steps on all ranks, nothing to agree on. Iterating serves one epoch (or the rest of it after
    ``load_state_dict``) and moves on to the next.

    Args:
        dataset: a ``PackedDataset`` or ``PackStore``.
        collate_fn: turns a list of packs into a batch; the packs themselves if None. A rank without a pack (the
            tail under ``pad``) gets the first pack of the epoch with all labels ignored.
        dp_rank, dp_world_size: this rank among those that see different data. TP, CP and PP peers share one.
        packs_per_micro_batch: packs of one forward.
        micro_batches: forwards of one step (gradient accumulation).
        seed: of the order; None keeps the order of the plan.
        tail: ``pad``, ``drop`` or ``repeat`` (``Tail``).
        costs: what each pack costs, as ``plan.costs(model)`` gives it; ranks then have nearly equal work in each
            micro-batch. None leaves packs where the shuffle put them.
        window_steps: steps within which packs are exchanged for that (``schedule_packs``).

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
        dataset: _Dataset,
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
        if collate_fn is not None and not callable(collate_fn):
            check_type("collate_fn", collate_fn, (), "a function of a list of packs, such as PackCollator()")
        check_type("dp_rank", dp_rank, (int, np.integer), "a whole number")
        counts = {
            "dp_world_size": dp_world_size,
            "packs_per_micro_batch": packs_per_micro_batch,
            "micro_batches": micro_batches,
            "window_steps": window_steps,
        }
        for name, count in counts.items():
            if isinstance(count, bool) or not isinstance(count, (int, np.integer)) or count < 1:
                raise SettingsError(f"{name} must be a whole number of at least 1 and is {count!r}")
        if not 0 <= dp_rank < dp_world_size:
            raise SettingsError(f"dp_rank must be from 0 to {dp_world_size - 1} and is {dp_rank}")
        self._dataset = dataset
        self._collate = collate_fn if collate_fn is not None else list
        self._dp_rank = dp_rank
        self._shape = {
            "dp_world_size": dp_world_size,
            "packs_per_micro_batch": packs_per_micro_batch,
            "micro_batches": micro_batches,
        }
        self._seed = seed
        self._tail = Tail.named(tail)
        self._costs = None if costs is None else np.asarray(costs)
        if self._costs is not None:
            quantise(self._costs, len(dataset))  # complains about what is no cost
        self._window_steps = window_steps
        self._epoch = 0
        self._delivered = 0  # micro-batches of this epoch
        if self.steps_per_epoch == 0:
            per_step = dp_world_size * packs_per_micro_batch * micro_batches
            raise SettingsError(
                f"{len(dataset):,} packs do not fill one step of {per_step} packs: use tail='pad' or 'repeat', or fewer "
                f"ranks"
            )

    def _schedule(self) -> Int64Array:
        return schedule_packs(
            len(self._dataset),
            epoch=self._epoch,
            seed=self._seed,
            tail=self._tail,
            costs=self._costs,
            window_steps=self._window_steps,
            **self._shape,
        )

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of one epoch: the same on every rank."""
        per_step = self._shape["dp_world_size"] * self._shape["packs_per_micro_batch"] * self._shape["micro_batches"]
        whole, rest = divmod(len(self._dataset), per_step)
        return whole + (1 if rest and self._tail is not Tail.DROP else 0)

    def __len__(self) -> int:
        """Micro-batches of one epoch on this rank."""
        return self.steps_per_epoch * self._shape["micro_batches"]

    @property
    def epoch(self) -> int:
        """Epoch that the next batch belongs to."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch is to be served: go to its beginning, unless it is the one being served.

        So training loops that call it before every epoch may call it after ``load_state_dict`` as well, and go on where
        the state was taken.
        """
        check_type("epoch", epoch, (int, np.integer), "a whole number")
        if epoch != self._epoch:
            self.begin_epoch(epoch)

    def begin_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch, also of the one that is being served."""
        self._epoch, self._delivered = int(epoch), 0

    def __iter__(self) -> Iterator[Any]:
        schedule = self._schedule()
        filler = int(schedule[0, 0, 0, 0])
        mine = schedule[:, self._dp_rank].reshape(-1, self._shape["packs_per_micro_batch"])
        while self._delivered < len(mine):
            # Counted once it is made: a state saved after an error of the collator goes on with the same packs.
            batch = self._batch(mine[self._delivered].tolist(), filler)
            self._delivered += 1
            ended = self._delivered == len(mine)
            if ended:
                self.begin_epoch(self._epoch + 1)
            yield batch
            if ended:
                return

    def _batch(self, indices: list[int], filler: int) -> Any:
        packs = [self._dataset[index] for index in indices if index >= 0]
        if not packs:
            packs = [without_loss(self._dataset[filler])]
        return self._collate(packs)

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands: what was delivered counts, what a consumer prefetched does not."""
        return {
            "version": _VERSION,
            "fingerprint": self._dataset.fingerprint,
            "seed": self._seed,
            "tail": self._tail.value,
            "costs": None if self._costs is None else fingerprint_array(self._costs.astype(np.float64)),
            "window_steps": None if self._costs is None else self._window_steps,
            "epoch": self._epoch,
            "micro_batches_delivered": self._delivered,
            **self._shape,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a state was taken.

        Raises:
            StateError: the state is of other packs, another order or another number of ranks; names which.
        """
        check_type("state", state, Mapping, "what state_dict returned")
        own = self.state_dict()
        moving = {"epoch", "micro_batches_delivered"}
        differing = [key for key in own if key not in moving and state.get(key) != own[key]]
        if differing:
            shown = ", ".join(f"{key} ({state.get(key)} in the state, {own[key]} here)" for key in differing)
            raise StateError(f"the loader state does not fit: {shown}")
        epoch: Any = state.get("epoch")
        delivered: Any = state.get("micro_batches_delivered")
        if not _is_count(epoch) or not _is_count(delivered) or delivered >= len(self):
            raise StateError(
                f"the loader state is damaged: epoch {epoch!r}, {delivered!r} of {len(self):,} micro-batches delivered"
            )
        self._epoch, self._delivered = epoch, delivered

    def __repr__(self) -> str:
        return (
            f"PackLoader({counted(len(self._dataset), 'pack')}, dp_rank {self._dp_rank} of "
            f"{self._shape['dp_world_size']}, epoch {self._epoch}, {self._delivered:,} of {len(self):,} micro-batches)"
        )


def without_loss(pack: Pack) -> Pack:
    """The same pack with no targets: keeps a rank in step where it has no pack of its own."""
    return Pack(pack.input_ids, pack.loss_mask & False, pack.cu_seqlens, pack.sample_ids, pack.starts)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0

"""Lightning: packs as a data module whose place in the epoch is in every checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy.typing as npt

from brimful.errors import missing_extra
from brimful.plan.schedule import Tail
from brimful.serve import PackLoader
from brimful.shards import FingerprintedPacks, Pack

try:
    import lightning.pytorch as pl
except ModuleNotFoundError as error:
    if error.name != "lightning":
        raise
    raise missing_extra("lightning", "lightning", "PackDataModule") from error

__all__ = ["PackDataModule"]


class PackDataModule(pl.LightningDataModule):  # type: ignore[misc]  # lightning is not typed here
    """Packs for ``Trainer.fit``: equal steps on every rank, and an exact continuation in the middle of an epoch.

    Lightning saves the state of a loader that has one in every checkpoint, and gives it back before the first batch. A
    plain ``DataLoader`` has none: after a checkpoint in the middle of an epoch it begins the epoch again.

    Ranks are asked of the strategy: tensor-parallel ones share a part. There is no sampler for Lightning to replace.

    Args:
        train: a ``PackedDataset`` or ``PackStore``.
        collator: a ``PackCollator``, such as ``collator_for(model)``.
        val: packs for validation, or ``one_by_one`` of them; every one is seen, in order.
        packs_per_micro_batch, seed, tail, costs: as in ``PackLoader``.
    """

    def __init__(
        self,
        train: FingerprintedPacks,
        collator: Callable[[list[Pack]], Any],
        *,
        val: FingerprintedPacks | None = None,
        packs_per_micro_batch: int = 1,
        seed: int | None = 0,
        tail: Tail | str = Tail.PAD,
        costs: npt.ArrayLike | None = None,
    ) -> None:
        super().__init__()
        self._train, self._collator, self._val = train, collator, val
        self._packs_per_micro_batch = packs_per_micro_batch
        self._seed, self._tail, self._costs = seed, tail, costs
        if val is None:
            # Lightning takes a method for a wish to validate, and then complains that there is no loader.
            setattr(self, "val_dataloader", None)  # noqa: B010

    def train_dataloader(self) -> PackLoader:
        """Micro-batches of this rank; a step is ``accumulate_grad_batches`` of them."""
        rank, ranks = self._ranks()
        return PackLoader(
            self._train,
            self._collator,
            dp_rank=rank,
            dp_world_size=ranks,
            packs_per_micro_batch=self._packs_per_micro_batch,
            micro_batches=self.trainer.accumulate_grad_batches,
            seed=self._seed,
            tail=self._tail,
            costs=self._costs,
        )

    def val_dataloader(self) -> Any:
        """Every pack of ``val``; ranks without one at the end get a pack without targets."""
        assert self._val is not None
        return _EveryTime(self._val, self._collator, *self._ranks())

    def _ranks(self) -> tuple[int, int]:
        """Data-parallel rank and number of ranks, which differ from the trainer's where models are cut up."""
        kwargs = getattr(self.trainer.strategy, "distributed_sampler_kwargs", None)
        if kwargs:
            return int(kwargs["rank"]), int(kwargs["num_replicas"])
        return int(self.trainer.global_rank), int(self.trainer.world_size)


class _EveryTime:
    """The same epoch in the same order, however often it is asked for and wherever the last one stopped."""

    def __init__(self, packs: Any, collator: Any, rank: int, ranks: int) -> None:
        self._loader = PackLoader(packs, collator, dp_rank=rank, dp_world_size=ranks, seed=None, tail="pad")

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Any:
        self._loader.begin_epoch(0)
        return iter(self._loader)

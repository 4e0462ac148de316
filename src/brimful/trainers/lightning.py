"""Lightning: packs as a data module with its place in the epoch in every checkpoint."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy.typing as npt

from brimful.optional import optional
from brimful.plan.schedule import Tail
from brimful.serve import PackLoader
from brimful.shards import FingerprintedPacks, Pack

with optional("lightning", "lightning", "PackDataModule"):
    import lightning.pytorch as pl

__all__ = ["PackDataModule"]


class PackDataModule(pl.LightningDataModule):  # type: ignore[misc]  # lightning is not typed here
    """Packs for ``Trainer.fit``: equal steps on every rank, and an exact continuation in the middle of an epoch.

    Lightning saves a loader's state in every checkpoint, and restores it before the first batch. A plain ``DataLoader``
    has no state: after a checkpoint in the middle of an epoch it begins the epoch again.

    Ranks come from the strategy: tensor-parallel ranks share a part. There is no sampler for Lightning to replace.

    Args:
        train: a ``PackedDataset`` or ``PackStore``.
        collator: a ``PackCollator``, such as ``collator_for(model)``.
        val: packs for validation, or ``one_by_one`` of them; all are served, in order.
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
        self._val, self._collator = val, collator
        # Ranks and accumulation are missing here: the trainer sets them after it got the data module.
        self._train_loader = partial(
            PackLoader, train, collator, packs_per_micro_batch=packs_per_micro_batch, seed=seed, tail=tail, costs=costs
        )
        if val is None:
            # Lightning reads a method as a request to validate, and then complains that there is no loader.
            setattr(self, "val_dataloader", None)  # noqa: B010

    def train_dataloader(self) -> PackLoader:
        """Return the micro-batches of this rank; a step is ``accumulate_grad_batches`` of them."""
        rank, num_ranks = self._ranks()
        micro_batches = self.trainer.accumulate_grad_batches
        return self._train_loader(dp_rank=rank, dp_world_size=num_ranks, micro_batches=micro_batches)

    def val_dataloader(self) -> Any:
        """Return every pack of ``val``; ranks without one at the end get a pack without targets."""
        assert self._val is not None
        return _ValidationLoader(self._val, self._collator, *self._ranks())

    def _ranks(self) -> tuple[int, int]:
        """Return data-parallel rank and number of ranks, which differ from the trainer's under model parallelism."""
        kwargs = getattr(self.trainer.strategy, "distributed_sampler_kwargs", None)
        if kwargs:
            return int(kwargs["rank"]), int(kwargs["num_replicas"])
        return int(self.trainer.global_rank), int(self.trainer.world_size)


class _ValidationLoader:
    """Validation packs in the same order at every iteration, even if the last one stopped early."""

    def __init__(self, packs: Any, collator: Any, rank: int, num_ranks: int) -> None:
        self._loader = PackLoader(packs, collator, dp_rank=rank, dp_world_size=num_ranks, seed=None, tail="pad")

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Any:
        # Without it an iteration would continue where sanity checking or an early stop left the last one.
        self._loader.begin_epoch(0)
        return iter(self._loader)

"""Lightning: packs as a data module that saves its position in the epoch or stream in every
checkpoint.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from brimful.base.optional import optional
from brimful.errors import SettingsError
from brimful.integrations.trainers.attention import collator_for
from brimful.integrations.trainers.one_file import packs_of_file
from brimful.serve import PackLoader
from brimful.store.shards import FingerprintedPacks, Pack
from brimful.stream import StreamLoader, mark_completed

with optional("lightning", "lightning", "PackDataModule"):
    import lightning.pytorch as pl
    from lightning.pytorch.plugins.io import AsyncCheckpointIO

__all__ = ["LightningAckCheckpoints", "PackDataModule", "StreamDataModule", "packed_for_lightning"]


class PackDataModule(pl.LightningDataModule):  # type: ignore[misc]  # lightning is not typed here
    """Packs for ``Trainer.fit``: equally many steps on every rank, and exact resumption in the
    middle of an epoch.

    Lightning saves a loader's state in every checkpoint, and restores it before the first batch. A
    plain ``DataLoader`` has no state: resumed in the middle of an epoch, it restarts the epoch.

    Ranks come from the strategy: tensor-parallel ranks share a part. Lightning finds no sampler to
    replace.

    Args:
        train: a ``PackedDataset`` or ``PackStore``.
        collator: a ``PackCollator``, such as ``collator_for(model)``.
        val: packs for validation, or ``one_by_one`` of packs; all are served, in order.
        **order: ``packs_per_micro_batch``, ``seed``, ``tail`` and ``costs``, as in ``PackLoader``.
    """

    def __init__(
        self,
        train: FingerprintedPacks,
        collator: Callable[[list[Pack]], Any],
        *,
        val: FingerprintedPacks | None = None,
        **order: Any,
    ) -> None:
        super().__init__()
        self._val, self._collator = val, collator
        # Ranks and accumulation are not known here: the trainer sets them after it gets the data
        # module.
        self._train_loader = partial(PackLoader, train, collator, **order)
        if val is None:
            # Lightning takes a method as a request to validate, and then complains about the
            # missing loader.
            setattr(self, "val_dataloader", None)  # noqa: B010

    def train_dataloader(self) -> PackLoader:
        """Return the micro-batches of this rank; a step has ``accumulate_grad_batches``
        micro-batches.
        """
        rank, num_ranks = self._ranks()
        micro_batches = self.trainer.accumulate_grad_batches
        return self._train_loader(
            dp_rank=rank, dp_world_size=num_ranks, micro_batches=micro_batches
        )

    def val_dataloader(self) -> Any:
        """Return every pack of ``val``; ranks without a pack at the end get one without targets."""
        assert self._val is not None
        rank, num_ranks = self._ranks()
        loader = PackLoader(
            self._val, self._collator, dp_rank=rank, dp_world_size=num_ranks, seed=None
        )
        return _ValidationBatches(loader, loader.state_dict())

    def _ranks(self) -> tuple[int, int]:
        """Return the data-parallel rank and world size, which differ from the trainer's under model
        parallelism.
        """
        kwargs = getattr(self.trainer.strategy, "distributed_sampler_kwargs", None)
        if kwargs:
            return int(kwargs["rank"]), int(kwargs["num_replicas"])
        return int(self.trainer.global_rank), int(self.trainer.world_size)


def packed_for_lightning(
    model: Any, tokenizer: Any, source: Any, *, max_length: int, device: Any = None, **options: Any
) -> PackDataModule:
    """Return a data module that packs a file of rows.

    ::

        pl.Trainer().fit(module, packed_for_lightning(module.model, tokenizer, "chats.jsonl", max_length=4096))

    Args:
        model: of Transformers, loaded; it is switched to an attention that isolates samples
            (``collator_for``).
        tokenizer: of the model.
        source: anything that ``open_source`` takes.
        max_length: tokens of a pack.
        device: see ``collator_for``; the ``Trainer``'s device, if it is not the machine's
            accelerator.
        **options: ``train_on``, ``overflow``, ``no_target``, ``num_proc``, see ``packs_of_file``.

    Raises:
        BrimfulError: see ``packs_of_file`` and ``collator_for``.
    """
    collator = collator_for(model, device=device)
    return PackDataModule(
        packs_of_file(source, tokenizer, max_length=max_length, **options), collator
    )


class _Batches:
    """The batches of a loader from one position on at every iteration, without its state, which
    Lightning would save.
    """

    def __init__(self, loader: Any, start: dict[str, Any]) -> None:
        self._loader, self._start_state = loader, start

    def __iter__(self) -> Iterator[Any]:
        # Otherwise an iteration would continue where sanity checking or an early stop ended the
        # last one.
        self._loader.load_state_dict(self._start_state)
        return iter(self._loader)


class _ValidationBatches(_Batches):
    """Validation packs in the same order at every iteration."""

    def __len__(self) -> int:
        return len(self._loader)


class StreamDataModule(pl.LightningDataModule):  # type: ignore[misc]
    """A stream for ``Trainer.fit``, whose position in every checkpoint follows from the trained
    steps.

    Lightning reads one batch ahead if a loader has no length, so after a restart the loader's own
    state would skip that batch. Here the number of optimizer steps determines where the stream
    continues.

    Args:
        stream: opened for this rank, with the packs of one optimizer step as ``lanes``; without
            ``repeat``.

    Raises:
        SettingsError: a repeated stream, or a run with several epochs or with steps of another
            size.
    """

    def __init__(self, stream: StreamLoader) -> None:
        super().__init__()
        if stream.is_repeated:
            raise SettingsError("StreamDataModule serves a stream once: open it with repeat=False")
        self.stream = stream
        self._start_state = stream.state_dict()

    def train_dataloader(self) -> Any:
        """Return the micro-batches of this rank, starting at the checkpoint's step."""
        if self.trainer.max_epochs != 1:
            raise SettingsError(
                f"a stream is served once: Trainer(max_epochs=1), not {self.trainer.max_epochs}"
            )
        per_step = self.stream.packs_together * self.trainer.accumulate_grad_batches
        if per_step != self.stream.lanes:
            raise SettingsError(
                f"one step of this run takes {per_step} packs (accumulate_grad_batches "
                f"{self.trainer.accumulate_grad_batches}) and the stream has "
                f"lanes={self.stream.lanes}: they must be equal"
            )
        return _Batches(self.stream, self._start_state)

    def state_at(self, step: int) -> dict[str, Any]:
        """Return the state of the stream after ``step`` optimizer steps since its beginning."""
        return self.stream.packs.state_at(step * self.stream.lanes)

    def state_dict(self) -> dict[str, Any]:
        return self.state_at(self.trainer.global_step)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.stream.load_state_dict(state_dict)
        self._start_state = self.stream.state_dict()


class LightningAckCheckpoints(pl.Callback):  # type: ignore[misc]
    """Callback that acknowledges the packs of a stream once a checkpoint trained on them is
    written.

    Lightning calls back before it has written a checkpoint: the step is stored then, and
    acknowledged at the next step or at the end of the run. A process killed in between has
    acknowledged too little, which only keeps more shards.

    Args:
        data: the data module of the stream.
        group: name of this run; use the same name to resume it.
        completed_files: also write ``.completed`` files next to the shards, for runs that are the
            stream's only reader.
    """

    def __init__(
        self, data: StreamDataModule, group: str, *, completed_files: bool = False
    ) -> None:
        self._data, self._group, self._completed_files = data, group, completed_files
        self._saved_step: int | None = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if isinstance(trainer.strategy.checkpoint_io, AsyncCheckpointIO):
            raise SettingsError(
                "LightningAckCheckpoints needs checkpoints that are written when a step ends: do not use "
                "AsyncCheckpointIO"
            )

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        # Lightning writes one checkpoint after the other: the earlier one is complete now.
        self._write(trainer)
        self._saved_step = int(trainer.global_step)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        # The checkpoint may not have been written.
        self._saved_step = None

    def on_train_batch_start(self, trainer: Any, *arguments: Any) -> None:
        self._write(trainer)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._write(trainer)

    def _write(self, trainer: Any) -> None:
        step, self._saved_step = self._saved_step, None
        if step is None or not trainer.is_global_zero:
            return
        stream = self._data.stream
        stream.packs.ack(
            self._group, self._data.state_at(step), checkpoint=f"step {step}", is_last_pass=True
        )
        if self._completed_files:
            mark_completed(stream.directory, [self._group])

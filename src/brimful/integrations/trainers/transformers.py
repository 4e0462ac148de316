"""``Trainer`` of Transformers and trainers built on it: packing metrics, schedules, and
acknowledgment of streams.

For packing itself, Trainer needs only a ``PackedDataset`` and a ``PackCollator``.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers

from brimful.base.wording import setting
from brimful.errors import SettingsError, StateError
from brimful.integrations.trainers.attention import collator_for
from brimful.integrations.trainers.one_file import packs_of_file
from brimful.integrations.trainers.pack_metrics import PackMetrics, log_packing
from brimful.integrations.trainers.pack_sampler import PackSampler, ServedPacks
from brimful.integrations.trainers.refused_settings import check_arguments
from brimful.stream import LazyShardedDataset, mark_completed

__all__ = [
    "AckCheckpoints",
    "PackMetrics",
    "follow_epochs",
    "follow_schedule",
    "log_packing",
    "packed_for_transformers",
]

_SCHEDULE = "brimful_schedule"
"""Key of the order of packs in ``trainer_state.json``."""


def packed_for_transformers(
    model: Any,
    tokenizer: Any,
    source: Any,
    args: transformers.TrainingArguments,
    *,
    max_length: int,
    **options: Any,
) -> dict[str, Any]:
    """Return the arguments of ``Trainer`` that train a model on the packed rows of a file.

    ::

        Trainer(**packed_for_transformers(model, tokenizer, "chats.jsonl", TrainingArguments("out"), max_length=4096))

    Args:
        model: of Transformers, loaded; it is switched to an attention that isolates samples
            (``collator_for``).
        tokenizer: of the model.
        source: anything that ``open_source`` takes.
        args: the trainer's arguments.
        max_length: tokens of a pack.
        **options: ``train_on``, ``overflow``, ``no_target``, ``num_proc``, see ``packs_of_file``.

    Returns:
        ``model``, ``args``, ``train_dataset``, ``data_collator`` and ``processing_class``.

    Raises:
        SettingsError: a setting that is wrong with packs (``check_arguments``).
        BrimfulError: see ``packs_of_file``.
    """
    check_arguments(args)
    return {
        "model": model,
        "args": args,
        "data_collator": collator_for(model, device=args.device),
        "train_dataset": packs_of_file(source, tokenizer, max_length=max_length, **options),
        "processing_class": tokenizer,
    }


def follow_epochs(trainer: Any) -> None:
    """Let a ``SharedPackedDataset`` switch to the plan of each epoch of a ``Trainer``, also in a
    resumed run.

    Trainer passes the epoch to samplers, but to data sets only with some settings; this passes it
    with all settings.

    Raises:
        SettingsError: the trainer's data set has one plan for all epochs.
    """
    dataset = trainer.train_dataset
    if not hasattr(dataset, "set_epoch"):
        raise SettingsError(
            "follow_epochs needs a data set that changes with the epoch, and the trainer has "
            f"{type(dataset).__name__}: pass train_dataset=shared_plan(…).dataset()"
        )
    trainer.callback_handler.callbacks.insert(0, _Epochs(dataset))


class _Epochs(transformers.TrainerCallback):  # type: ignore[misc]  # transformers is not typed here
    """Callback that sets the epoch of a data set or sampler before the first batch is requested."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        # Trainer counts epochs in fractions of their steps. It resumes in the middle of an epoch by
        # starting the epoch, and Accelerate does not pass the epoch to the sampler then.
        self._target.set_epoch(int((state.epoch or 0.0) + 1e-6))


def follow_schedule(trainer: Any, **order: Any) -> PackSampler:
    """Let a ``Trainer`` serve its packs in the order of ``PackLoader``, with costs balanced over
    its ranks.

    Trainer's own sampler assigns packs at random, so that a step waits for the slowest rank. Here
    the ranks of each forward pass have nearly equal work, no pack is repeated or left out to
    balance them, and ``resume_from_checkpoint`` continues with the same global batches, also on
    another number of ranks if the accumulation makes up for it.

    Args:
        trainer: with packs as its data set; call it before ``train``.
        **order: ``seed``, ``tail``, ``costs`` and ``window_steps``, see ``PackLoader``.

    Raises:
        SettingsError: the data set has no fingerprint, or the costs do not fit its packs.
    """
    packs, args = trainer.train_dataset, trainer.args
    accelerator = trainer.accelerator
    parallelism = getattr(accelerator, "parallelism_config", None)
    # Tensor-parallel and sequence-parallel ranks share their packs.
    num_peers = int(getattr(parallelism, "non_data_parallel_size", 1) or 1)
    dp_world_size = accelerator.num_processes // num_peers
    per_batch = args.train_batch_size
    if accelerator.split_batches:
        if per_batch % dp_world_size:
            raise SettingsError(
                f"split_batches shares {per_batch} packs among {dp_world_size} ranks: give a "
                "multiple"
            )
        per_batch //= dp_world_size
    sampler = PackSampler(
        packs,
        dp_world_size=dp_world_size,
        packs_per_micro_batch=per_batch,
        micro_batches=args.gradient_accumulation_steps,
        **order,
    )
    trainer.train_dataset = ServedPacks(packs)
    trainer._get_train_sampler = lambda train_dataset=None: sampler
    trainer.callback_handler.callbacks.insert(0, _Schedule(sampler, dp_world_size * per_batch))
    return sampler


class _Schedule(_Epochs):
    """Callback that also saves the order of packs in the checkpoint, and restores it."""

    def __init__(self, sampler: PackSampler, packs_together: int) -> None:
        super().__init__(sampler)
        self._sampler, self._packs_together = sampler, packs_together

    def on_train_begin(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        packs_together = getattr(
            objects.get("train_dataloader"), "total_batch_size", self._packs_together
        )
        if packs_together != self._packs_together:
            raise SettingsError(
                f"follow_schedule was called for {self._packs_together} packs in a forward of all "
                f"ranks, and the trainer takes {packs_together}: call it after the settings are "
                "final"
            )
        if not state.global_step:
            return
        saved = state.stateful_callbacks.get(_SCHEDULE)
        if saved is None:
            raise StateError(
                f"the checkpoint of step {state.global_step} was trained in the trainer's own "
                "order of packs: leave out follow_schedule to continue from it"
            )
        self._sampler.load_state_dict({**saved["attributes"]})

    def on_step_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        # Trainer saves this entry with its own state.
        state.stateful_callbacks[_SCHEDULE] = {
            "args": {},
            "attributes": self._sampler.state_at(state.global_step),
        }


class AckCheckpoints(transformers.TrainerCallback):  # type: ignore[misc]  # transformers is not typed here
    """Callback that acknowledges the packs of a stream once a checkpoint trained on them is saved.

    ``Trainer`` calls it after each checkpoint. One rank acknowledges, after all ranks have written
    their parts. Shards below the acknowledged position may be removed (``remove_acknowledged``)
    only if the run reads packs in order and once: ``train_sampling_strategy="sequential"``, and no
    more steps than the data set has.

    Args:
        dataset: the trainer's data set; its ``lanes`` are the packs of one optimizer step on all
            ranks.
        group: name of this run; use the same name to resume it.
        completed_files: also write ``.completed`` files next to the shards, for runs that are the
            stream's only reader.

    >>> import tempfile
    >>> from brimful.testing.toys import toy_stream
    >>> dataset = LazyShardedDataset(toy_stream(tempfile.mkdtemp(), [4, 4]), lanes=4)
    >>> callback = AckCheckpoints(dataset, "run-1")  # trainer.add_callback(callback)
    """

    def __init__(
        self, dataset: LazyShardedDataset, group: str, *, completed_files: bool = False
    ) -> None:
        self._dataset, self._group, self._completed_files = dataset, group, completed_files

    def on_train_begin(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        # Tensor-parallel ranks share their packs: the loader knows the packs of all data-parallel
        # ranks.
        per_forward = getattr(objects.get("train_dataloader"), "total_batch_size", None)
        if per_forward is None:
            per_forward = args.train_batch_size * args.world_size
        packs_per_step = per_forward * args.gradient_accumulation_steps
        if packs_per_step != self._dataset.lanes:
            raise SettingsError(
                f"one step of this run takes {packs_per_step} packs and the data set counts "
                f"{setting('lanes', self._dataset.lanes)} of them: open it with "
                f"LazyShardedDataset(…, lanes={packs_per_step})"
            )

    def on_save(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        # Ranks write parts of a checkpoint: it is complete when the last rank arrives here.
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.barrier()
        if not state.is_world_process_zero:
            return
        # ms-swift has its own flag, and ignores Trainer's.
        is_shuffled = getattr(args, "train_sampling_strategy", None) != "sequential"
        is_sequential = not getattr(args, "train_dataloader_shuffle", is_shuffled)
        is_one_pass = state.max_steps * self._dataset.lanes <= len(self._dataset)
        self._dataset.ack(
            state.global_step,
            self._group,
            checkpoint=f"checkpoint-{state.global_step}",
            in_order=is_sequential and is_one_pass,
        )
        if self._completed_files:
            mark_completed(self._dataset.directory, [self._group])

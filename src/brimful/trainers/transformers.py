"""``Trainer`` of Transformers and trainers built on it: numbers of packing in their logs, streams acknowledged when saved.

For packing itself, Trainer needs a ``PackedDataset`` and a ``PackCollator`` and nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy.typing as npt
import torch
import transformers

from brimful.collate.torch import PackCollator
from brimful.errors import SettingsError, StateError
from brimful.messages import setting
from brimful.plan.schedule import DEFAULT_WINDOW_STEPS, Tail
from brimful.serve import LazyShardedDataset, mark_completed
from brimful.trainers.pack_sampler import PackSampler, ServedPacks
from brimful.trainers.refusals import check_arguments

__all__ = ["AckCheckpoints", "PackMetrics", "follow_epochs", "follow_schedule", "log_packing"]

_COUNTS = "pack_counts"

_SCHEDULE = "brimful_schedule"
"""Key of the order of packs in ``trainer_state.json``."""


def log_packing(trainer: Any) -> PackMetrics:
    """Put numbers of packing into the logs of a ``Trainer`` or a trainer built on it.

    ==========================  ====================================================================================
    ``useful_tokens_per_s``     tokens of samples, all ranks, while training (evaluation and saving not counted)
    ``fill``                    tokens of samples ÷ positions computed
    ``supervised_tokens``       targets of one step, all ranks
    ``samples_per_step``        segments of one step, all ranks
    ``samples_without_loss``    segments so far whose media could not be decoded, all ranks; only if there are any
    ==========================  ====================================================================================

    They are logged beside ``loss``: console, TensorBoard, W&B, ``trainer.state.log_history``. One collective of five
    numbers at each log.

    Raises:
        SettingsError: the trainer's collator is no ``PackCollator``, or its settings are wrong with packs.
    """
    collator = trainer.data_collator
    if not isinstance(collator, PackCollator):
        raise SettingsError(
            f"log_packing counts what PackCollator lays out, and the trainer has {type(collator).__name__}: pass "
            f"data_collator=PackCollator(), or collator_for(model)"
        )
    check_arguments(trainer.args, collator)
    metrics = PackMetrics(trainer.accelerator)
    trainer.data_collator = _Counting(collator)
    trainer.compute_loss = metrics.counted(trainer.compute_loss)
    # The first of the callbacks, so that those that report have the numbers.
    trainer.callback_handler.callbacks.insert(0, metrics)
    return metrics


def follow_epochs(trainer: Any) -> None:
    """Let a ``SharedPackedDataset`` go to the plan of each epoch with a ``Trainer``; also where a run is resumed.

    Trainer tells epochs to samplers, and to data sets in some settings alone: this tells the data set in all of them.

    Raises:
        SettingsError: the trainer's data set has one plan for all epochs.
    """
    dataset = trainer.train_dataset
    if not hasattr(dataset, "set_epoch"):
        raise SettingsError(
            f"follow_epochs needs a data set that changes with the epoch, and the trainer has {type(dataset).__name__}: "
            f"pass train_dataset=shared_plan(…).dataset()"
        )
    trainer.callback_handler.callbacks.insert(0, _Epochs(dataset))


class _Epochs(transformers.TrainerCallback):  # type: ignore[misc]  # transformers is not typed here
    """Callback that tells the data set its epoch before the first batch is asked for."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        # Trainer counts epochs in fractions of their steps; in the middle of one it is resumed at its beginning.
        self._dataset.set_epoch(int((state.epoch or 0.0) + 1e-6))


def follow_schedule(
    trainer: Any,
    *,
    seed: int | None = 0,
    tail: Tail | str = Tail.PAD,
    costs: npt.ArrayLike | None = None,
    window_steps: int = DEFAULT_WINDOW_STEPS,
) -> PackSampler:
    """Let a ``Trainer`` serve its packs in the order of ``PackLoader``, with costs balanced over its ranks.

    Its own sampler deals packs out by chance, so that a step waits for the rank with the heaviest. Here the ranks of each
    forward have nearly equal work, no pack is repeated or left out to even them, and ``resume_from_checkpoint`` goes on
    with the same global batches, with other ranks too where the accumulation makes up for them.

    Args:
        trainer: with packs as its data set; call it before ``train``.
        seed, tail, costs, window_steps: as of ``PackLoader``.

    Raises:
        SettingsError: the data set has no fingerprint, or the costs are no costs of its packs.
    """
    packs, args = trainer.train_dataset, trainer.args
    accelerator = trainer.accelerator
    parallelism = getattr(accelerator, "parallelism_config", None)
    # Ranks that tensors or sequences are parallel over share their packs.
    num_peers = int(getattr(parallelism, "non_data_parallel_size", 1) or 1)
    dp_world_size = accelerator.num_processes // num_peers
    per_batch = args.train_batch_size
    if accelerator.split_batches:
        if per_batch % dp_world_size:
            raise SettingsError(f"split_batches shares {per_batch} packs among {dp_world_size} ranks: give a multiple")
        per_batch //= dp_world_size
    sampler = PackSampler(
        packs,
        dp_world_size=dp_world_size,
        packs_per_micro_batch=per_batch,
        micro_batches=args.gradient_accumulation_steps,
        seed=seed,
        tail=tail,
        costs=costs,
        window_steps=window_steps,
    )
    trainer.train_dataset = ServedPacks(packs)
    trainer._get_train_sampler = lambda train_dataset=None: sampler
    trainer.callback_handler.callbacks.insert(0, _Schedule(sampler, dp_world_size * per_batch))
    return sampler


class _Schedule(transformers.TrainerCallback):  # type: ignore[misc]  # transformers is not typed here
    """Callback that keeps the order of packs in the checkpoint, and takes it up."""

    def __init__(self, sampler: PackSampler, packs_together: int) -> None:
        self._sampler, self._packs_together = sampler, packs_together

    def on_train_begin(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        packs_together = getattr(objects.get("train_dataloader"), "total_batch_size", self._packs_together)
        if packs_together != self._packs_together:
            raise SettingsError(
                f"follow_schedule was called for {self._packs_together} packs in a forward of all ranks, and the trainer "
                f"takes {packs_together}: call it after the settings are final"
            )
        if not state.global_step:
            return
        saved = state.stateful_callbacks.get(_SCHEDULE)
        if saved is None:
            raise StateError(
                f"the checkpoint of step {state.global_step} was trained in the trainer's own order of packs: leave out "
                f"follow_schedule to go on with it"
            )
        self._sampler.load_state_dict({**saved["attributes"]})

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        # In the middle of an epoch Accelerate does not tell the sampler which.
        self._sampler.set_epoch(int((state.epoch or 0.0) + 1e-6))

    def on_step_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        # Trainer saves what is here with its own state.
        state.stateful_callbacks[_SCHEDULE] = {"args": {}, "attributes": self._sampler.state_at(state.global_step)}


class PackMetrics(transformers.TrainerCallback):  # type: ignore[misc]  # transformers is not typed here
    """Callback that counts between logs; ``log_packing`` makes one."""

    def __init__(self, accelerator: Any) -> None:
        self._accelerator = accelerator
        self._since = time.monotonic()
        self._without_loss = 0
        self._reset()

    def _reset(self) -> None:
        self._totals, self._steps, self._seconds = [0, 0, 0, 0, 0], 0, 0.0

    def counted(self, compute_loss: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap ``compute_loss`` to take the counts out of the batch; those of evaluation are thrown away."""

        def wrapped(model: Any, inputs: dict[str, Any], *args: Any, **options: Any) -> Any:
            counts = inputs.pop(_COUNTS, None)
            if counts is not None and model.training:
                self._totals = [total + int(count) for total, count in zip(self._totals, counts, strict=True)]
            return compute_loss(model, inputs, *args, **options)

        return wrapped

    def on_train_begin(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        self._since = time.monotonic()

    # The clock starts again behind evaluation and saving, which are no training.
    on_evaluate = on_save = on_train_begin

    def on_step_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        time_now = time.monotonic()
        self._seconds, self._since = self._seconds + time_now - self._since, time_now
        self._steps += 1

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **objects: Any) -> None:
        if logs is None or "loss" not in logs or not self._steps:
            return
        # Every rank logs at the same steps, so all of them come to the collective.
        totals = torch.tensor(self._totals, dtype=torch.int64, device=self._accelerator.device)
        tokens, positions, targets, samples, bad = self._accelerator.reduce(totals, reduction="sum").tolist()
        self._without_loss += bad
        numbers = {
            "useful_tokens_per_s": tokens / self._seconds if self._seconds else 0.0,
            "fill": tokens / positions if positions else 0.0,
            "supervised_tokens": targets / self._steps,
            "samples_per_step": samples / self._steps,
            **({"samples_without_loss": self._without_loss} if self._without_loss else {}),
        }
        logs.update(numbers)
        # Trainer appends a copy of the logs to the history before it calls back.
        if state.log_history and state.log_history[-1].get("step") == state.global_step:
            state.log_history[-1].update(numbers)
        self._reset()


class _Counting:
    """Collator that adds the tokens, positions, targets and samples of each batch to it. Works in workers too."""

    def __init__(self, collator: PackCollator) -> None:
        self._collator = collator

    def __call__(self, features: Sequence[Any]) -> dict[str, Any]:
        rows = self._collator.rows(features)
        inputs = self._collator.speak(rows)
        # Rows of single samples have another shape than the batch before the dialect: their padding differs.
        samples_are_rows = self._collator.dialect.row_per_sample
        counts = (
            sum(batch.num_tokens for batch in rows),
            inputs["input_ids"].numel() if samples_are_rows else sum(len(batch.input_ids) for batch in rows),
            sum(batch.num_loss_tokens for batch in rows),
            sum(batch.num_segments for batch in rows),
            sum(len(batch.no_loss) for batch in rows),
        )
        return {**inputs, _COUNTS: counts}


class AckCheckpoints(transformers.TrainerCallback):  # type: ignore[misc]  # transformers is not typed here
    """Callback that acknowledges the packs of a stream once a checkpoint is saved that was trained on them.

    ``Trainer`` calls it behind each checkpoint. One rank writes, after all ranks have written theirs. Shards may be
    removed below what it acknowledges (``remove_acknowledged``) only if the training asks for packs in order and once:
    ``train_sampling_strategy="sequential"``, and no more steps than the data set has.

    Args:
        dataset: that the trainer trains on; its ``lanes`` are the packs of one optimizer step, of all ranks.
        group: name of this training, the same when it is resumed.
        completed_files: put ``.completed`` files beside the shards too, for trainings that have the stream to themselves.

    >>> import tempfile
    >>> from brimful.testing.toys import toy_stream
    >>> dataset = LazyShardedDataset(toy_stream(tempfile.mkdtemp(), [4, 4]), lanes=4)
    >>> callback = AckCheckpoints(dataset, "run-1")  # trainer.add_callback(callback)
    """

    def __init__(self, dataset: LazyShardedDataset, group: str, *, completed_files: bool = False) -> None:
        self._dataset, self._group, self._completed_files = dataset, group, completed_files

    def on_train_begin(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        # Ranks that tensors are parallel over share their packs: the loader knows how many do not.
        per_forward = getattr(objects.get("train_dataloader"), "total_batch_size", None)
        if per_forward is None:
            per_forward = args.train_batch_size * args.world_size
        packs_per_step = per_forward * args.gradient_accumulation_steps
        if packs_per_step != self._dataset.lanes:
            raise SettingsError(
                f"one step of this training takes {packs_per_step} packs and the data set counts "
                f"{setting('lanes', self._dataset.lanes)} of them: open it with LazyShardedDataset(…, lanes={packs_per_step})"
            )

    def on_save(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        # Ranks write parts of a checkpoint: it is whole when the last of them has come here.
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.barrier()
        if not state.is_world_process_zero:
            return
        is_sequential = getattr(args, "train_sampling_strategy", None) == "sequential"
        is_one_pass = state.max_steps * self._dataset.lanes <= len(self._dataset)
        self._dataset.ack(
            state.global_step,
            self._group,
            checkpoint=f"checkpoint-{state.global_step}",
            in_order=is_sequential and is_one_pass,
        )
        if self._completed_files:
            mark_completed(self._dataset.directory, [self._group])

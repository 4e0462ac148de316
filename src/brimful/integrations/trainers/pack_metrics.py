"""Packing metrics in the logs of Transformers' ``Trainer``, for all sources together and, on
request, for each.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch
import transformers

from brimful.base.wording import setting
from brimful.collate.loss_torch import means_by_name
from brimful.collate.torch import PackCollator
from brimful.errors import SettingsError
from brimful.integrations.trainers.refused_settings import check_arguments
from brimful.mixtures.source_losses import SOURCE_IDS, SourceCounts, SourceLosses, SourceNames
from brimful.trees.pack_tree import tree_of

_COUNTS = "pack_counts"
_ALL = "all targets"
"""Name of the only source if sources are not distinguished."""


def log_packing(
    trainer: Any, *, by_source: SourceCounts | None = None, token_acc: bool = False
) -> PackMetrics:
    """Add packing metrics to the logs of a ``Trainer`` or a trainer built on it.

    ==========================  ====================================================================================
    ``useful_tokens_per_s``     tokens of samples, all ranks, while training (evaluation and saving not counted)
    ``fill``                    tokens of samples ÷ positions computed
    ``supervised_tokens``       targets of one step, all ranks
    ``samples_per_step``        samples of one step, all ranks; each part of a sample that was split counts
    ``samples_without_loss``    segments so far whose media could not be decoded, all ranks; only if not 0
    ``token_acc``               share of the targets that the model finds most likely, all ranks; with ``token_acc`` or ``by_source``
    ``loss/NAME``               mean over the targets of source NAME since the last log, all ranks; with ``by_source``
    ``token_acc/NAME``          share of these targets that the model finds most likely; with ``by_source``
    ==========================  ====================================================================================

    They are logged with ``loss``: console, TensorBoard, W&B, ``trainer.state.log_history``. Each
    log takes one collective of five numbers, and one of three numbers per source; nothing waits for
    the device between logs.

    Args:
        trainer: the finished trainer, with a ``PackCollator``.
        by_source: names and numbers of samples of the sources, in their order, for a loss of each:
            a mapping, ``source.rows.members``, or a plan with a mixture; None for no such losses.
            They take one more pass over the logits of each micro-batch. A log leaves out sources
            without a target since the last log.
        token_acc: log the accuracy over all targets, without sources; it also takes this pass.

    Raises:
        SettingsError: the trainer's collator is not a ``PackCollator``, its settings are wrong with
            packs, or it makes no logits from which losses of sources could be computed; at the
            first batch with weights, if the trainer ignores them (``use_loss_weights``).
    """
    collator = trainer.data_collator
    if not isinstance(collator, PackCollator):
        raise SettingsError(
            "log_packing counts what PackCollator lays out, and the trainer has "
            f"{type(collator).__name__}: pass data_collator=PackCollator(), or collator_for(model)"
        )
    check_arguments(trainer.args, collator)
    sources = by_source if by_source is not None else {_ALL: 2**62} if token_acc else None
    losses = None if sources is None else SourceLosses(sources)
    if losses is not None:
        _check_has_losses(trainer)
    metrics = PackMetrics(
        trainer.accelerator, losses, labels_shifted=collator.dialect.labels_shifted
    )
    trainer.data_collator = _Counting(collator, None if losses is None else losses.names)
    trainer.compute_loss = metrics.counted(trainer.compute_loss)
    # It comes first, so that the callbacks that report have the numbers.
    trainer.callback_handler.callbacks.insert(0, metrics)
    return metrics


def _check_has_losses(trainer: Any) -> None:
    """Refuse trainers that do not compute the loss of each token of whole rows."""
    if getattr(trainer.args, "use_liger_kernel", False):
        raise _no_losses("use_liger_kernel=True makes no logits")
    parallelism = getattr(trainer.accelerator, "parallelism_config", None)
    for name in ("cp_size", "sp_size"):
        if int(getattr(parallelism, name, 1) or 1) > 1:
            raise _no_losses(
                f"{name}={getattr(parallelism, name)} gives each rank a part of the row"
            )


def _no_losses(reason: str) -> SettingsError:
    return SettingsError(
        f"{setting('by_source')} needs the loss of each token, and {reason}: leave it out, and "
        "call evaluate_samples(…).by_source for the losses of sources"
    )


class PackMetrics(transformers.TrainerCallback):  # type: ignore[misc]  # transformers is not typed here
    """Callback that counts between logs; ``log_packing`` creates it."""

    def __init__(
        self, accelerator: Any, losses: SourceLosses | None = None, *, labels_shifted: bool = False
    ) -> None:
        self._accelerator = accelerator
        self._losses, self._labels_shifted = losses, labels_shifted
        self._since = time.monotonic()
        self._without_loss = 0
        self._reset()

    def _reset(self) -> None:
        self._totals, self._steps, self._seconds = torch.zeros(5, dtype=torch.int64), 0, 0.0

    def counted(self, compute_loss: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap ``compute_loss`` to take the counts out of the batch; counts of evaluation are
        discarded.
        """

        @wraps(compute_loss)
        def wrapped(
            model: Any,
            inputs: dict[str, Any],
            return_outputs: bool = False,
            *args: Any,
            **options: Any,
        ) -> Any:
            counts, source_ids = inputs.pop(_COUNTS, None), inputs.pop(SOURCE_IDS, None)
            is_training = counts is not None and model.training
            if is_training:
                self._totals += torch.tensor(counts)
            if not is_training or self._losses is None:
                return compute_loss(model, inputs, return_outputs, *args, **options)
            # Trainer removes the labels if it smooths them.
            labels = inputs["labels"]
            loss, outputs = compute_loss(model, inputs, True, *args, **options)
            self._add_losses(self._losses, outputs, labels, source_ids)
            return (loss, outputs) if return_outputs else loss

        return wrapped

    def _add_losses(self, losses: SourceLosses, outputs: Any, labels: Any, source_ids: Any) -> None:
        logits = getattr(outputs, "logits", None)
        if logits is not None and logits.shape[:-1].numel() == labels.numel():
            losses.add(logits, labels, source_ids, labels_shifted=self._labels_shifted)
            return
        # TRL computes each token's loss without keeping logits, for every label except the first of
        # the row.
        log_probs = getattr(outputs, "log_probs", None)
        if log_probs is None or log_probs.shape != labels[..., 1:].shape:
            raise _no_losses("the model gives no logits for each of its tokens")
        losses.add_tokens(
            -log_probs.detach(), outputs.label_mask, outputs.is_top1, source_ids[..., 1:]
        )

    def on_train_begin(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        self._since = time.monotonic()

    # The clock restarts after evaluation and saving, which are not training.
    on_evaluate = on_save = on_train_begin

    def on_step_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        time_now = time.monotonic()
        self._seconds, self._since = self._seconds + time_now - self._since, time_now
        self._steps += 1

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **objects: Any) -> None:
        if logs is None or "loss" not in logs or not self._steps:
            return
        # Every rank logs at the same steps, so all ranks reach the collective.
        totals = self._totals.to(self._accelerator.device)
        tokens, positions, targets, samples, bad = self._accelerator.reduce(
            totals, reduction="sum"
        ).tolist()
        self._without_loss += bad
        metrics = {
            "useful_tokens_per_s": tokens / self._seconds if self._seconds else 0.0,
            "fill": tokens / positions if positions else 0.0,
            "supervised_tokens": targets / self._steps,
            "samples_per_step": samples / self._steps,
            **({"samples_without_loss": self._without_loss} if self._without_loss else {}),
        }
        if self._losses is not None:
            sums = self._losses.take()
            sums = self._accelerator.reduce(sums, reduction="sum")
            means = {
                **self._losses.means_of(sums),
                **means_by_name(sums.sum(dim=1, keepdim=True), [""]),
            }
            # Trainer logs the loss itself.
            metrics |= {
                name: mean
                for name, mean in means.items()
                if name != "loss" and not name.endswith(f"/{_ALL}")
            }
        logs.update(metrics)
        # Trainer appends a copy of the logs to the history before this callback.
        if state.log_history and state.log_history[-1].get("step") == state.global_step:
            state.log_history[-1].update(metrics)
        self._reset()


class _Counting:
    """Collator that adds the counts of tokens, positions, targets and samples to each batch, also
    in workers.
    """

    def __init__(self, collator: PackCollator, sources: SourceNames | None) -> None:
        self._collator, self._sources = collator, sources

    def __call__(self, features: Sequence[Any]) -> dict[str, Any]:
        rows = self._collator.rows(features)
        inputs = self._collator.convert(
            rows if self._sources is None else self._sources.marked(rows)
        )
        # With rows of single samples, the dialect changes the shape of the batch: its padding
        # differs.
        samples_are_rows = self._collator.dialect.row_per_sample
        # Packs that fill the empty places of a step have no samples.
        masks = [batch.sample_ids >= 0 for batch in rows]
        counts = (
            sum(
                int(batch.real_lengths[: len(is_sample)][is_sample].sum())
                for batch, is_sample in zip(rows, masks, strict=True)
            ),
            inputs["input_ids"].numel()
            if samples_are_rows
            else sum(len(batch.input_ids) for batch in rows),
            sum(batch.num_loss_tokens for batch in rows),
            sum(
                int((is_sample if batch.sharing is None else is_sample[tree_of(batch).ends]).sum())
                for batch, is_sample in zip(rows, masks, strict=True)
            ),
            sum(len(batch.no_loss) for batch in rows),
        )
        return {**inputs, _COUNTS: counts}

"""Losses of a ``Trainer`` that are divided by what they weigh, on all ranks and micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from brimful.collate.loss_torch import batch_loss_sum, batch_weight
from brimful.trees.attention import batch_for

__all__ = ["use_loss_weights"]

_OF_THE_LOSS = ("labels", "loss_index", "loss_targets", "loss_weights", "loss_samples")
"""Keys of a batch that the model does not get, so that it computes no loss of its own."""


def use_loss_weights(trainer: Any) -> None:
    """Let a ``Trainer`` of Transformers, or ``SFTTrainer`` of TRL, weigh targets by the
    ``loss_weights`` of its batches.

    The loss of a step is Σ w·nll ÷ Σ w over all its micro-batches and ranks. Their own losses
    ignore the weights: a target that several samples of a tree share would count once, and
    ``loss_weights="sample"`` would change nothing. Balance losses of mixtures of experts are added
    as the model weighs them, as a mean over micro-batches. TRL then logs no entropy and accuracy.
    Dense masks of trees get the windows of the model. Without this call such a trainer is refused:
    its first batch with weights other than 1 raises a ``SettingsError``.

    Args:
        trainer: call it before ``train``, and before ``log_packing``.
    """

    def total_weight(batches: Sequence[dict[str, Any]], device: Any) -> torch.Tensor:
        total = torch.zeros((), device=device)
        for batch in batches:
            total += batch_weight(batch).to(device)
        return trainer.accelerator.reduce(total, reduction="sum")  # type: ignore[no-any-return]

    def loss_of(model: Any, inputs: dict[str, Any]) -> tuple[torch.Tensor, Any]:
        batch = batch_for(model, inputs)
        outputs = model(**{key: value for key, value in batch.items() if key not in _OF_THE_LOSS})
        return batch_loss_sum(outputs.logits, inputs), outputs

    replace_loss(trainer, total_weight, loss_of)


def replace_loss(
    trainer: Any,
    count: Callable[[Sequence[dict[str, Any]], Any], torch.Tensor],
    loss_of: Callable[[Any, dict[str, Any]], tuple[torch.Tensor, Any]],
) -> None:
    """Let a ``Trainer`` divide the sum of the losses of a step by a count of its own.

    Args:
        trainer: of Transformers.
        count: function from the micro-batches of a step, and the device, to their count on all
            ranks.
        loss_of: function from the model and a micro-batch to the sum of its losses, and what
            evaluation gets as outputs.
    """

    def compute_loss(
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        total = num_items_in_batch
        if total is None:
            total = count([inputs], inputs["input_ids"].device)
        loss_sum, outputs = loss_of(model, inputs)
        # Gradients are averaged over ranks, and the count covers all ranks: their number undoes the
        # average. A step without targets has the loss 0.
        scale = trainer.accelerator.num_processes / torch.clamp(
            torch.as_tensor(total, dtype=torch.float32), min=torch.finfo(torch.float32).tiny
        )
        loss = loss_sum * scale.to(loss_sum.device)
        balance = getattr(outputs, "aux_loss", None)
        if balance is not None and num_items_in_batch is not None:
            coefficient = trainer.accelerator.unwrap_model(model).config.router_aux_loss_coef
            loss = loss + coefficient * balance / trainer.current_gradient_accumulation_steps
        return (loss, outputs) if return_outputs else loss

    trainer.compute_loss = compute_loss
    trainer._get_num_items_in_batch = count
    # Trainer divides by the micro-batches of a step, unless the caller's function has already
    # divided.
    trainer.compute_loss_func = compute_loss

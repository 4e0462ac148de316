"""The common part of preference training on packs: collator, policy and reference, and a step of ``Trainer``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch

from brimful.base.checks import check_type
from brimful.base.typing import Float32Array
from brimful.collate.batch import PackedBatch
from brimful.collate.loss_torch import SegmentLosses, per_sample_loss
from brimful.collate.torch import PackCollator
from brimful.errors import SettingsError
from brimful.preferences.references import ReferenceLogps
from brimful.store.shards import Pack


class RowsCollator:
    """Base of collators that add the compared segments of a batch, and their reference log probabilities, to it."""

    def __init__(self, collator: PackCollator, references: ReferenceLogps | None = None) -> None:
        check_type("references", references, (ReferenceLogps, type(None)), "ReferenceLogps.open(…)")
        check_type("collator", collator, PackCollator, "a PackCollator")
        dialect = collator.dialect
        if dialect.row_per_pack or dialect.row_per_sample or dialect.labels_shifted:
            raise SettingsError(
                f"pairs are counted in one row of all packs, and dialect {dialect.name!r} does not fit: use "
                f"PackCollator(), or collator_for(model)"
            )
        self.collator = collator
        self.references = references

    def reference_logps(self, packs: Sequence[Pack], are_trained: Iterable[bool]) -> dict[str, Float32Array]:
        """Return the log probability of each segment as ``reference_logps``; nothing without references.

        Packs that only complete a step have no references: theirs are zeros.
        """
        if self.references is None:
            return {}
        logps = [
            self.references.of(pack) if is_trained else np.zeros(pack.num_segments, dtype=np.float32)
            for pack, is_trained in zip(packs, are_trained, strict=True)
        ]
        return {"reference_logps": np.concatenate(logps)}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.collator!r}, {self.references!r})"


def cu_seqlens_of(batch: PackedBatch) -> torch.Tensor:
    """Return ``int32[num_segments + 1]``, the boundaries of the real segments of a batch."""
    return torch.from_numpy(batch.cu_seqlens[: batch.num_segments + 1].copy())


def policy_and_reference(
    model: Any, reference_model: Any, batch: dict[str, Any], *, extra: str, segments: str
) -> tuple[SegmentLosses, torch.Tensor]:
    """Return the model's losses of all segments, and the reference's log probabilities of the compared segments.

    Args:
        model: of Transformers; called without labels, so that it computes no loss of its own.
        reference_model: runs without gradients; None if the batch has the reference log probabilities.
        batch: from a preference collator, on the device of the model. It is not changed.
        extra: key of the batch that holds ``cu_seqlens``, the segments and, with references, ``reference_logps``.
        segments: key in ``extra`` of the compared segments: ``int64[…]``, the shape of the second result.

    Raises:
        SettingsError: neither a reference model nor reference log probabilities, or both.
    """
    facts = batch[extra]
    if (reference_model is None) == ("reference_logps" not in facts):
        raise SettingsError(
            "a preference loss needs the reference once: give reference_model, or references to the collator"
        )
    inputs = {key: value for key, value in batch.items() if key not in (extra, "labels", "loss_weights", "loss_scale")}

    def losses_of(some_model: Any) -> SegmentLosses:
        output = some_model(**inputs)
        return per_sample_loss(getattr(output, "logits", output), batch["labels"], facts["cu_seqlens"])

    if reference_model is None:
        return losses_of(model), facts["reference_logps"]
    with torch.no_grad():
        reference_logps = -losses_of(reference_model).nll_sum[facts[segments]]
    return losses_of(model), reference_logps


def collator_of(trainer: Any, kind: type[RowsCollator], function: str, needs: str) -> Any:
    """Return the collator of a ``Trainer``, or refuse one of another kind.

    Args:
        trainer: of Transformers.
        kind: class of the collator.
        function, needs: name of the function that asks, and what it takes from each batch, for the message.
    """
    if not isinstance(trainer.data_collator, kind):
        raise SettingsError(
            f"{function} needs the {needs} of each batch, and the trainer has {type(trainer.data_collator).__name__}: "
            f"pass data_collator={kind.__name__}(collator_for(model), references)"
        )
    return trainer.data_collator


def train_with(
    trainer: Any,
    reference_model: Any,
    count_rows: Callable[[Sequence[dict[str, Any]], Any], torch.Tensor],
    losses_of: Callable[[Any, dict[str, Any]], torch.Tensor],
) -> None:
    """Let a ``Trainer`` divide the sum of the losses of a step by its number of rows on all ranks.

    Args:
        trainer: of Transformers.
        reference_model: is frozen; None if references are in the batches.
        count_rows: function from the micro-batches of a step, and the device, to their rows on all ranks.
        losses_of: function from the model and a micro-batch to the losses of its rows.
    """
    if reference_model is not None:
        reference_model.eval().requires_grad_(False)

    def compute_loss(
        model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        device = inputs["input_ids"].device
        num_rows = count_rows([inputs], device) if num_items_in_batch is None else num_items_in_batch
        losses = losses_of(model, inputs)
        # Gradients are averaged over ranks, and the count covers all ranks: their number undoes the average.
        loss = losses.sum() * (trainer.accelerator.num_processes / num_rows)
        return (loss, {"losses": losses}) if return_outputs else loss

    trainer.compute_loss = compute_loss
    trainer._get_num_items_in_batch = count_rows
    # Trainer divides by the micro-batches of a step, unless the caller's function has already divided.
    trainer.compute_loss_func = compute_loss

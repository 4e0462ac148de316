"""The two models of a preference loss on one packed batch: the policy and its reference."""

from __future__ import annotations

from typing import Any

import torch

from brimful.checks import check_type
from brimful.collate.loss_torch import SegmentLosses, per_sample_loss
from brimful.collate.torch import PackCollator
from brimful.errors import SettingsError


def check_one_row(collator: PackCollator) -> None:
    """Refuse a collator whose batches are not one row of all packs with unshifted labels."""
    check_type("collator", collator, PackCollator, "a PackCollator")
    dialect = collator.dialect
    if dialect.row_per_pack or dialect.row_per_sample or dialect.labels_shifted:
        raise SettingsError(
            f"pairs are counted in one row of all packs, and dialect {dialect.name!r} does not fit: use PackCollator(), or "
            f"collator_for(model)"
        )


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

"""Do micro-batches with different numbers of targets add up to the mean over all targets?"""

from __future__ import annotations

import torch

from brimful.verify.report import Finding, Status
from brimful.verify.subject import Alone, Subject, difference

__all__ = ["check_weights"]


def check_weights(subject: Subject, alone: Alone) -> Finding:
    """The first feature in one micro-batch, the others in a second, both told the targets of the whole step.

    ::

        2 targets | 6 targets     num_items_in_batch 8      loss = sum₁/8 + sum₂/8
        instead of                                          mean₁ + mean₂, where a target of the first weighs thrice
    """
    case, limit = subject.case, subject.tolerance.parity
    if len(case) < 2 or subject.batch.targets is None:
        return Finding(
            "weights",
            Status.NOT_SUPPORTED,
            detail="needs two features with labels, for two micro-batches",
            way_out="verify with two packs, or with samples",
        )
    if not subject.accepts("num_items_in_batch"):
        return Finding(
            "weights",
            Status.NOT_SUPPORTED,
            detail="the model does not take num_items_in_batch: its loss is a mean for each micro-batch",
            way_out="compute the loss from the logits, as a sum over targets ÷ targets of the step",
        )
    count, wanted = max(1, case.num_targets), sum(alone.sums) / max(1, case.num_targets)
    total = 0.0
    with torch.no_grad():
        for part in (case.part(0, 1), case.part(1)):
            _, loss = subject.loss({**subject.of(part).collate().kwargs, "num_items_in_batch": count})
            if loss is None:
                return Finding(
                    "weights",
                    Status.NOT_SUPPORTED,
                    detail="the model returns no loss",
                    way_out="compute it as a sum over targets ÷ targets of the step",
                )
            total += float(loss) if torch.isfinite(loss) else 0.0
    worst = difference(torch.tensor([wanted]), torch.tensor([total]))
    if worst <= limit:
        return Finding("weights", Status.PASS, "", worst, limit, f"2 micro-batches, {count} targets")
    return Finding(
        "weights",
        Status.FAIL,
        "",
        worst,
        limit,
        detail=f"two micro-batches add up to {total:.6f}, the mean over all {count} targets is {wanted:.6f}",
        cause="per-pack mean: the loss ignores num_items_in_batch, so every micro-batch weighs the same whatever the "
        "number of its targets",
        way_out="divide the sum over targets by num_items_in_batch",
    )

"""Do micro-batches with different numbers of targets add up to the mean over all targets?"""

from __future__ import annotations

import torch

from brimful.verify.checks.loss import Auxiliary, other_labels
from brimful.verify.report import Finding, Status
from brimful.verify.subject import Alone, Subject, difference, targets_loss

__all__ = ["check_weights"]


def check_weights(subject: Subject, alone: Alone, auxiliary: Auxiliary | None) -> Finding:
    """The first feature in one micro-batch, the others in a second, both told the targets of the whole step.

    ::

        2 targets | 6 targets     num_items_in_batch 8      loss = sum₁/8 + sum₂/8
        instead of                                          mean₁ + mean₂, where a target of the first weighs thrice

    Where the model adds an auxiliary loss, the same is asked of what the loss moves by with other labels.
    """
    case, limit = subject.case, subject.parity_limit
    count = case.num_targets
    if len(case) < 2 or subject.batch.targets is None or not count:
        return _not_shown(
            "needs two features with labels, for two micro-batches", "verify with two packs, or with samples"
        )
    if not subject.accepts("num_items_in_batch"):
        return _not_shown(
            "the model does not take num_items_in_batch: its loss is a mean for each micro-batch",
            "compute the loss from the logits, as a sum over targets ÷ targets of the step",
        )
    if auxiliary is not None and auxiliary.of_labels:
        return _not_shown(
            "the model adds an auxiliary loss of labels, so what a target weighs cannot be told",
            "verify without it (multi-token prediction, label smoothing)",
        )
    wanted, total = sum(alone.sums) / count if auxiliary is None else 0.0, 0.0
    for part in (case.part(0, 1), case.part(1)):
        here = subject.of(part)
        loss = _loss(here, here.batch.kwargs, count)
        if loss is None:
            return _not_shown("the model returns no loss", "compute it as a sum over targets ÷ targets of the step")
        if auxiliary is None:
            total += loss
            continue
        kwargs, targets = other_labels(subject, here.batch)
        logits = subject.logits(here.batch.kwargs)
        assert here.batch.targets is not None
        wanted += float(targets_loss(logits, targets) - targets_loss(logits, here.batch.targets)) / count
        total += (_loss(here, kwargs, count) or 0.0) - loss
    worst = difference(torch.tensor([wanted]), torch.tensor([total]))
    if worst <= limit:
        detail = f"2 micro-batches, {count} targets" + (", beside an auxiliary loss" if auxiliary is not None else "")
        return Finding("weights", Status.PASS, "", worst, limit, detail)
    what = f"over all {count} targets" if auxiliary is None else "of what other labels do to the loss"
    return Finding(
        "weights",
        Status.FAIL,
        "",
        worst,
        limit,
        detail=f"two micro-batches add up to {total:.6f}, the mean {what} is {wanted:.6f}",
        cause="per-pack mean: the loss ignores num_items_in_batch, so every micro-batch weighs the same whatever the "
        "number of its targets",
        way_out="divide the sum over targets by num_items_in_batch",
    )


def _loss(subject: Subject, kwargs: dict[str, object], count: int) -> float | None:
    """The model's loss of a micro-batch; 0 where it has no target."""
    with torch.no_grad():
        _, loss = subject.loss({**kwargs, "num_items_in_batch": count})
    if loss is None:
        return None
    return float(loss) if torch.isfinite(loss) else 0.0


def _not_shown(detail: str, way_out: str) -> Finding:
    return Finding("weights", Status.NOT_SUPPORTED, detail=detail, way_out=way_out)

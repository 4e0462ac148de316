"""Parity: logits, loss, gradients and weights of targets equal the samples' one by one."""

from dataclasses import replace
from operator import itemgetter

import torch

from brimful.verify.checks.gradients import check_gradients
from brimful.verify.checks.loss_sums import AuxiliaryLoss, check_loss, language_loss, loss_difference, other_labels
from brimful.verify.setup import PackingSetup, PerSampleReference, difference, targets_loss
from brimful.verify.verified_batch import CollatedBatch
from brimful.verify.verify_report import Diagnosis, Finding, compared, not_supported


def check_parity(
    setup: PackingSetup, reference: PerSampleReference, batch: CollatedBatch
) -> tuple[list[Finding], AuxiliaryLoss | None]:
    """Compare logits, loss and gradients of a batch with the samples'; the last two if it has targets.

    Args:
        setup: model and samples.
        reference: the samples one by one.
        batch: of the collator, or with a row for each sample.

    Returns:
        Findings, and the part of the model's loss besides the language-model loss.
    """
    with torch.set_grad_enabled(setup.with_gradients):
        output = setup.output(batch.kwargs)
        differences = [
            (
                difference(reference.logits[index], output.logits.detach()[place.index]),
                setup.samples.segments[index].name,
            )
            for index, place in batch.located
        ]
        worst, name = max(differences, key=itemgetter(0), default=(0.0, ""))
        detail = f"{name} has other logits in the batch than alone"
        findings = [compared("logits", worst, setup.parity_limit, failed=detail)]
        if batch.targets is None:
            return findings, None
        finding, auxiliary = check_loss(setup, reference, batch, output)
        findings.append(finding)
        if setup.with_gradients:
            # An auxiliary loss has gradients of its own, which packing does not cause.
            loss = output.loss if auxiliary is None else None
            loss = language_loss(output.logits, batch) if loss is None else loss
            findings += check_gradients(setup, reference, loss)
    return findings, auxiliary


_PER_PACK_MEAN = Diagnosis(
    "per-pack mean: the loss ignores num_items_in_batch, so every micro-batch weighs the same with any number of "
    "targets",
    "divide the sum over targets by num_items_in_batch",
)


def check_weights(setup: PackingSetup, reference: PerSampleReference, auxiliary: AuxiliaryLoss | None) -> Finding:
    """Run the first feature in one micro-batch and the others in a second, both with the step's target count.

    ::

        2 targets | 6 targets     num_items_in_batch 8      loss = sum₁/8 + sum₂/8
        instead of                                          mean₁ + mean₂, where a target of the first weighs thrice

    If the model adds an auxiliary loss, the check compares the loss's change under other labels instead.
    """
    samples = setup.samples
    count = samples.num_targets
    if len(samples) < 2 or setup.batch.targets is None or not count:
        return not_supported(
            "weights",
            "needs two features with labels, for two micro-batches",
            "verify with two packs, or with samples",
        )
    if not setup.accepts("num_items_in_batch"):
        return not_supported(
            "weights",
            "the model does not take num_items_in_batch: its loss is a mean for each micro-batch",
            "compute the loss from the logits, as a sum over targets ÷ targets of the step",
        )
    if auxiliary is not None and auxiliary.depends_on_labels:
        return not_supported(
            "weights",
            "the model adds an auxiliary loss of labels, so what a target weighs cannot be told",
            "verify without it (multi-token prediction, label smoothing)",
        )
    expected_loss, total = sum(reference.loss_sums) / count if auxiliary is None else 0.0, 0.0
    for part in (samples.part(0, 1), samples.part(1)):
        batch = replace(setup, samples=part).batch
        loss = _micro_batch_loss(setup, batch.kwargs, count)
        if loss is None:
            way_out = "compute it as a sum over targets ÷ targets of the step"
            return not_supported("weights", "the model returns no loss", way_out)
        if auxiliary is None:
            total += loss
            continue
        # An auxiliary loss is the same with other labels: in the difference of the two losses it cancels out.
        assert batch.targets is not None
        kwargs, targets = other_labels(setup, batch)
        logits = setup.logits(batch.kwargs)
        expected_loss += float(targets_loss(logits, targets) - targets_loss(logits, batch.targets)) / count
        total += (_micro_batch_loss(setup, kwargs, count) or 0.0) - loss
    mean = f"over all {count} targets" if auxiliary is None else "of the change by other labels"
    return compared(
        "weights",
        loss_difference(expected_loss, total),
        setup.parity_limit,
        passed=f"2 micro-batches, {count} targets" + (", with an auxiliary loss" if auxiliary is not None else ""),
        failed=f"two micro-batches add up to {total:.6f}, the mean {mean} is {expected_loss:.6f}",
        diagnosis=_PER_PACK_MEAN,
    )


def _micro_batch_loss(setup: PackingSetup, kwargs: dict[str, object], count: int) -> float | None:
    """Return the model's loss of a micro-batch; 0 without targets, None if the model gives no loss."""
    with torch.no_grad():
        loss = setup.output({**kwargs, "num_items_in_batch": count}).loss
    if loss is None:
        return None
    return float(loss) if torch.isfinite(loss) else 0.0

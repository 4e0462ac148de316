"""Parity: logits, loss and gradients of the batch equal the samples' one by one."""

from operator import itemgetter

import torch

from brimful.verify.checks.gradients import check_gradients
from brimful.verify.checks.loss_sums import AuxiliaryLoss, check_loss, language_loss
from brimful.verify.setup import PackingSetup, PerSampleReference, difference
from brimful.verify.verified_batch import CollatedBatch
from brimful.verify.verify_report import Finding, compared


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

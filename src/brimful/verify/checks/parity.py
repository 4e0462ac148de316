"""Are logits, loss and gradients of the batch those of the samples one by one?"""

from __future__ import annotations

import torch

from brimful.verify.checks.gradients import check_gradients
from brimful.verify.checks.loss import Auxiliary, check_loss, own_loss
from brimful.verify.layout import Collated
from brimful.verify.report import Finding, Status
from brimful.verify.subject import Alone, Subject, difference

__all__ = ["check_parity"]


def check_parity(
    subject: Subject, attention: str, alone: Alone, batch: Collated
) -> tuple[list[Finding], Auxiliary | None]:
    """Logits, loss and gradients of a batch; the last two where it has targets.

    Args:
        subject: model and samples.
        attention: name of the implementation.
        alone: the truth.
        batch: of the collator, or with a row for each sample.

    Returns:
        Findings, and what the model's loss holds beside the language-model loss.
    """
    with torch.set_grad_enabled(subject.with_gradients):
        logits, loss, named = subject.losses(batch.kwargs)
        findings = [_logits(subject, attention, alone, logits.detach(), batch)]
        if batch.targets is None:
            return findings, None
        language = own_loss(logits, batch)
        given = None if loss is None else float(loss.detach())
        finding, auxiliary = check_loss(subject, attention, alone, batch, logits.detach(), given, named)
        findings.append(finding)
        if subject.with_gradients:
            trained = language if loss is None or auxiliary is not None else loss
            findings += check_gradients(subject, attention, alone, batch, trained)
    return findings, auxiliary


def _logits(subject: Subject, attention: str, alone: Alone, logits: torch.Tensor, batch: Collated) -> Finding:
    worst, name, limit = 0.0, "", subject.parity_limit
    for segment, place, own in zip(subject.case.segments, batch.places, alone.logits, strict=True):
        if place is not None:
            found = difference(own, logits[place.row, place.start : place.stop])
            if found > worst:
                worst, name = found, segment.name
    status = Status.PASS if worst <= limit else Status.FAIL
    detail = "" if status is Status.PASS else f"{name} has other logits in the batch than alone"
    return Finding("logits", status, attention, worst, limit, detail)

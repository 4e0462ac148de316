"""Why numbers of the batch are not those of the samples alone, where no sample sees another: found by experiment.

::

    difference ──► the same batch, another seed        moves?    then the model is random
               ──► everything in float32               right?    then it is rounding, if a row for each sample rounds too,
                                                                 and else a kernel of low precision
               ──► a row for each sample               differs?  then it is the model, and not the packing
"""

from __future__ import annotations

from dataclasses import replace

import torch

from brimful.errors import BrimfulError
from brimful.verify.checks.isolation import moved_in_rows
from brimful.verify.checks.parity import check_parity
from brimful.verify.checks.weights import check_weights
from brimful.verify.modes import in_float32
from brimful.verify.noise import ROUNDED
from brimful.verify.report import Finding, Status
from brimful.verify.subject import Subject

__all__ = ["explain_parity", "is_random"]

_IN_ROWS = (
    "not the packing: with a row for each sample the numbers differ as well from those alone (padding, or what the model "
    "shares in a batch)",
    "make the model independent of what else is in the batch",
)
_IN_PACKS = (
    "unknown: samples are apart, a row for each is right, and in packed rows the numbers differ (another kernel)",
    "another attention implementation",
)
_ROOM = 4
"""Rounding in packed rows may be four times what it is with a row for each sample."""


def is_random(subject: Subject) -> bool:
    """Whether the same batch gives other logits with another seed."""
    with torch.no_grad():
        one, other = (subject.forward(subject.batch.kwargs, seed) for seed in (0, 1))
    return not torch.equal(one, other)


def explain_parity(subject: Subject, attention: str, findings: list[Finding]) -> list[Finding]:
    """Logits, loss, gradients and weights with a cause for what failed; passed where it was rounding alone."""
    by_rounding = subject.tolerance is None and subject.dtype in ROUNDED
    if not any(_open(one) or (by_rounding and _fails_in_weights(one)) for one in findings):
        return findings
    if is_random(subject):
        mode = "in training mode" if subject.model.training else "in eval()"
        return _named(
            findings,
            f"randomness: the same batch gives other logits with another seed {mode} (dropout that stays on, or noise), so "
            f"two runs differ with and without packing",
            "switch the randomness off where the model is not in training mode (training=self.training)",
        )
    if by_rounding:
        return _in_float32(subject, attention, findings)
    return _named(findings, *(_IN_ROWS if _differs_in_rows(subject, attention) else _IN_PACKS))


def _in_float32(subject: Subject, attention: str, findings: list[Finding]) -> list[Finding]:
    name = str(subject.dtype).removeprefix("torch.")
    with_weights = any(one.check == "weights" for one in findings)
    try:
        with in_float32(subject.model):
            alone = subject.alone()
            precise, auxiliary = check_parity(subject, attention, alone, subject.batch)
            precise += [check_weights(subject, alone, auxiliary)] if with_weights else []
    except BrimfulError:
        raise
    except Exception:  # kernels of low precision only, or no room for the weights
        return _named(
            findings,
            "unknown: samples are apart, and float32, which would tell rounding from a fault, cannot run here",
            "verify the same collator with sdpa in float32",
        )
    told = {one.check: one for one in precise}
    if any(_open(one) or _fails_in_weights(one) for one in precise):
        return _named(findings, *(_IN_ROWS if _differs_in_rows(subject, attention) else _IN_PACKS))
    rows, _ = check_parity(subject, attention, subject.alone(), subject.in_rows())
    rounding = {one.check: one.measured or 0.0 for one in rows}
    by_groups = moved_in_rows(subject) > 0
    found = []
    for one in findings:
        near = rounding.get(one.check, rounding["logits"])
        if not _open(one) and not _fails_in_weights(one):
            found.append(one)
        elif by_groups or (one.measured or 0.0) <= _ROOM * near:
            remark = f"told in float32; rounding in {name} makes {one.measured:.1e}, and {near:.1e} with a row for each"
            found.append(replace(told[one.check], detail="; ".join(filter(None, [told[one.check].detail, remark]))))
        else:
            cause = f"a kernel in {name}: float32 is right, and a row for each sample differs by {near:.1e} only"
            found.append(replace(one, cause=cause, way_out="another attention implementation, or float32"))
    return found


def _differs_in_rows(subject: Subject, attention: str) -> bool:
    rows, _ = check_parity(subject, attention, subject.alone(), subject.in_rows())
    return any(one.status is Status.FAIL for one in rows)


def _open(finding: Finding) -> bool:
    """Whether it failed and nothing explains it."""
    return finding.status is Status.FAIL and not finding.cause


def _fails_in_weights(finding: Finding) -> bool:
    """What micro-batches add up to may be rounding in low precision, whatever it looks like."""
    return finding.status is Status.FAIL and finding.check == "weights"


def _named(findings: list[Finding], cause: str, way_out: str) -> list[Finding]:
    """The first open failure with a cause; the others follow from it."""
    first = next((index for index, one in enumerate(findings) if _open(one)), -1)
    return [replace(one, cause=cause, way_out=way_out) if index == first else one for index, one in enumerate(findings)]

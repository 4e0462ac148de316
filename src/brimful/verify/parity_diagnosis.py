"""Cause of numbers in the batch that differ from the samples' alone, though no sample sees another, by experiment.

::

    difference ──► the same batch, another seed        moves?    then the model is random
               ──► everything in float32               right?    then it is rounding, if a row for each sample rounds too,
                                                                 otherwise a kernel of low precision
               ──► a row for each sample               differs?  then it is the model, and not the packing
"""

from dataclasses import replace

import torch

from brimful.verify.checks.isolation import movement_in_rows
from brimful.verify.checks.parity import check_parity, check_weights
from brimful.verify.modes import experiment, in_float32
from brimful.verify.noise import LOW_PRECISIONS
from brimful.verify.setup import PackingSetup
from brimful.verify.verify_report import Diagnosis, Finding, joined

_IN_ROWS_TOO = Diagnosis(
    "not the packing: with a row for each sample the numbers also differ from a sample alone (padding, or what the model "
    "shares in a batch)",
    "make the model independent of what else is in the batch",
)
_IN_PACKS_ONLY = Diagnosis(
    "unknown: samples are apart, a row for each is right, and in packed rows the numbers differ (another kernel)",
    "another attention implementation",
)
_NO_ROWS = Diagnosis(
    "unknown: samples are apart, and a row for each, which would tell packing from the model, is refused",
    "another attention implementation",
)
_NO_FLOAT32 = Diagnosis(
    "unknown: samples are apart, and float32, which would tell rounding from a fault, cannot run here",
    "verify the same collator with sdpa in float32",
)

_ROUNDING_FACTOR = 4
"""Rounding in packed rows that passes ÷ rounding with a row for each sample."""


def is_random(setup: PackingSetup) -> bool:
    """Return true if the same batch gives other logits with another seed."""
    with torch.no_grad():
        first, second = (setup.forward(setup.batch.kwargs, seed) for seed in (0, 1))
    return not torch.equal(first, second)


def explain_parity(setup: PackingSetup, findings: list[Finding]) -> list[Finding]:
    """Return logits, loss, gradients and weights with a cause for each failure; passed if only rounding caused it."""
    may_round = setup.tolerance is None and setup.dtype in LOW_PRECISIONS
    if not any(_is_unexplained(finding, may_round=may_round) for finding in findings):
        return findings
    if is_random(setup):
        mode = "in training mode" if setup.model.training else "in eval()"
        diagnosis = Diagnosis(
            f"randomness: the same batch gives other logits with another seed {mode} (dropout that stays on, or noise), so "
            f"two runs differ with and without packing",
            "switch the randomness off where the model is not in training mode (training=self.training)",
        )
        return _with_diagnosis(findings, diagnosis)
    parity = experiment(lambda: check_parity(setup, setup.per_sample_reference(), setup.in_rows()))
    if parity is None:  # a model of packed rows may take one row only
        return _with_diagnosis(findings, _NO_ROWS)
    in_rows, _ = parity
    # Packing is the place of the fault, or the model, if a row for each sample differs as well.
    diagnosis = _IN_ROWS_TOO if any(finding.failed for finding in in_rows) else _IN_PACKS_ONLY
    if may_round:
        return _explain_in_float32(setup, findings, in_rows, diagnosis)
    return _with_diagnosis(findings, diagnosis)


def _explain_in_float32(
    setup: PackingSetup, findings: list[Finding], in_rows: list[Finding], diagnosis: Diagnosis
) -> list[Finding]:
    """Tell rounding from a fault: a fault fails in float32 too, and rounding also occurs with a row for each sample.

    Args:
        setup: model and samples.
        findings: of the batch.
        in_rows: with a row for each sample.
        diagnosis: of a fault.
    """

    def check_precisely() -> list[Finding]:
        with in_float32(setup.model):
            reference = setup.per_sample_reference()
            precise, auxiliary = check_parity(setup, reference, setup.batch)
            if any(finding.check == "weights" for finding in findings):
                precise.append(check_weights(setup, reference, auxiliary))
        return precise

    precise = experiment(check_precisely)
    if precise is None:  # kernels of low precision only, or no room for the weights
        return _with_diagnosis(findings, _NO_FLOAT32)
    if any(_is_unexplained(finding, may_round=True) for finding in precise):
        return _with_diagnosis(findings, diagnosis)
    precise_by_check = {finding.check: finding for finding in precise}
    # Float32 is right, so only the size remains to be explained: rows of their own show the size of rounding.
    rounding_by_check = {finding.check: finding.measured or 0.0 for finding in in_rows}
    rounds_by_groups = movement_in_rows(setup) > 0
    results = []
    for finding in findings:
        rounding = rounding_by_check.get(finding.check, rounding_by_check["logits"])
        if not _is_unexplained(finding, may_round=True):
            results.append(finding)
        elif rounds_by_groups or (finding.measured or 0.0) <= _ROUNDING_FACTOR * rounding:
            remark = (
                f"told in float32; rounding in {setup.dtype_name} makes {finding.measured:.1e}, and {rounding:.1e} with a "
                f"row for each"
            )
            precise_finding = precise_by_check[finding.check]
            results.append(replace(precise_finding, detail=joined(precise_finding.detail, remark)))
        else:
            cause = f"a kernel in {setup.dtype_name}: float32 is right, and a row for each sample differs by {rounding:.1e} only"
            results.append(replace(finding, cause=cause, way_out="another attention implementation, or float32"))
    return results


def _is_unexplained(finding: Finding, *, may_round: bool = False) -> bool:
    """Return true for a failure without a cause; of micro-batches also with one, if it may be rounding."""
    return finding.failed and (not finding.cause or (may_round and finding.check == "weights"))


def _with_diagnosis(findings: list[Finding], diagnosis: Diagnosis) -> list[Finding]:
    """Give the first unexplained failure its cause; the others follow from it."""
    first = next((index for index, finding in enumerate(findings) if _is_unexplained(finding)), -1)
    return [
        replace(finding, **diagnosis._asdict()) if index == first else finding for index, finding in enumerate(findings)
    ]

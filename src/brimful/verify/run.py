"""``verify_packing``: every check, with every attention implementation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from brimful.arguments import check_type
from brimful.errors import BrimfulError, SettingsError
from brimful.shards import Pack
from brimful.verify.attention import IMPLEMENTATIONS, NotSupported, as_it_is, first_sentence, using
from brimful.verify.case import Case
from brimful.verify.causes import explain_leak, explain_refusal
from brimful.verify.checks.boundaries import check_boundaries
from brimful.verify.checks.isolation import check_isolation
from brimful.verify.checks.labels import check_labels
from brimful.verify.checks.padding import check_padding, check_padding_moves_nothing
from brimful.verify.checks.parity import check_parity
from brimful.verify.checks.positions import check_positions
from brimful.verify.checks.samples import check_complete, check_untouched
from brimful.verify.checks.weights import check_weights
from brimful.verify.report import CHECKS, Finding, Status, VerifyReport
from brimful.verify.subject import Alone, Subject, Tolerance, tolerance_of

__all__ = ["verify_packing"]

_FOLLOWS = {
    "logits": ("isolation", "positions"),
    "loss": ("labels", "padding", "complete", "isolation", "logits"),
    "gradients": ("labels", "padding", "complete", "isolation", "logits", "loss"),
    "weights": ("labels", "padding", "complete", "isolation", "logits"),
}
"""What a failure follows from, if that failed too: the first is named as its cause."""


def verify_packing(
    model: Any,
    collator: Callable[[list[Any]], Mapping[str, Any]],
    samples: Sequence[Pack | Mapping[str, Any]],
    *,
    attention: str | Iterable[str] | None = None,
    tolerance: float | None = None,
    gradients: bool = True,
) -> VerifyReport:
    """Show on a model, a collator and samples that packing them changes nothing.

    The truth is the model on each sample alone, with no collator involved. Held against it are the batch that the
    collator makes of all samples, and batches in which one sample has other tokens::

        alone     a a a a      b b                    logits, loss, gradients
        batch     a a a a | b b | 0 0                 the same, below the tolerance
        changed   A A A A | b b | 0 0                 b has not moved

    Each failure is explained by experiment: the batch is repaired in one respect after the other until the leak
    stops. The model is left as it was: training mode, attention implementation, no gradients; dropout is off meanwhile.

    Args:
        model: a causal language model that is called as ``model(**batch)`` and returns ``logits`` and ``loss``:
            any of Transformers, or a module around one.
        collator: takes a list of samples and returns keyword arguments of the model. Transformers'
            ``DataCollatorWithFlattening``, ``PackCollator``, or yours.
        samples: what the collator takes: mappings with ``input_ids`` and perhaps ``labels`` (not shifted),
            ``position_ids`` (``[rows, n]``, mRoPE) or ``seq_lengths``; or packs. A few short ones are enough.
        attention: implementations to try, by the names of Transformers; all of ``IMPLEMENTATIONS`` if None.
        tolerance: largest relative difference; by dtype if None: 1e-5 in fp32, 6e-2 in bf16 (2e-2 for isolation).
        gradients: compare gradients as well; takes twice the memory of the model.

    Raises:
        SettingsError: no samples, no attention implementation, or a model without parameters.
        CollateError: samples or batches without ``input_ids``.

    >>> from brimful import PackCollator
    >>> from brimful.verify.models import tiny_model
    >>> samples = [{"input_ids": [5, 6, 7, 8], "labels": [-100, 6, 7, 8]}, {"input_ids": [9, 4], "labels": [9, 4]}]
    >>> verify_packing(tiny_model("qwen2"), PackCollator(pad_to=8), samples, attention="sdpa").verdict
    'PASS: packing is right with sdpa'
    """
    call = "the call is verify_packing(model, collator, samples)"
    if not hasattr(model, "parameters"):
        check_type("model", model, (), "a torch module", call)
    if not callable(collator):
        check_type("collator", collator, (), "a function of a list of samples", call)
    if next(model.parameters(), None) is None:
        raise SettingsError("the model has no parameters: give a torch module")
    names = [attention] if isinstance(attention, str) else list(attention or _all(model))
    if not names:
        raise SettingsError("attention is empty: name at least one implementation, such as sdpa")
    limits = tolerance_of(next(model.parameters()).dtype)
    if tolerance is not None:
        limits = Tolerance(tolerance, tolerance)
    subject = Subject(model, collator, Case(samples), limits, gradients)
    training = model.training
    model.eval()
    try:
        findings = _data_findings(subject)
        for name in names:
            findings += _attention_findings(subject, name, findings)
    finally:
        model.train(training)
        model.zero_grad(set_to_none=True)
    order = list(CHECKS)
    findings = sorted(_with_nearest(findings), key=lambda found: order.index(found.check))
    return VerifyReport(_describe(subject), tuple(findings))


def _all(model: Any) -> list[str]:
    now = as_it_is(model)
    return [*IMPLEMENTATIONS, *([] if now in IMPLEMENTATIONS else [now])]


def _data_findings(subject: Subject) -> list[Finding]:
    """Checks that need no forward."""
    return [
        check_untouched(subject),
        check_complete(subject),
        check_labels(subject),
        check_positions(subject),
        check_boundaries(subject),
        check_padding(subject),
    ]


def _attention_findings(subject: Subject, name: str, data: list[Finding]) -> list[Finding]:
    """Checks of one attention implementation."""
    try:
        with using(subject.model, name):
            what = "a single sample"
            try:
                alone = subject.alone()
                what = "the packed batch"
                return _model_findings(subject, name, alone, data)
            except BrimfulError:
                raise
            except Exception as error:  # a model may refuse in any way it likes; the report says what it said
                message = first_sentence(error)
                raise NotSupported(f"the model refuses {what}: {message}", explain_refusal(subject, message)) from error
    except NotSupported as error:
        return [Finding("attention", Status.NOT_SUPPORTED, name, detail=str(error), way_out=error.way_out)]


def _model_findings(subject: Subject, name: str, alone: Alone, data: list[Finding]) -> list[Finding]:
    isolation, leak = check_isolation(subject, name)
    if isolation.status is Status.FAIL and leak is not None:
        cause, way_out = explain_leak(subject, leak)
        isolation = replace(isolation, cause=cause, way_out=way_out)
    found = [isolation]
    padding = check_padding_moves_nothing(subject, name)
    found += [padding] if padding is not None else []
    found += check_parity(subject, name, alone)
    if not any(finding.check == "weights" for finding in data):
        found.append(check_weights(subject, alone))
    return [_follow(finding, [*data, *found]) for finding in found]


def _follow(finding: Finding, all_findings: list[Finding]) -> Finding:
    """A failure without a cause of its own follows from another one."""
    if finding.status is not Status.FAIL or (finding.cause and finding.check != "weights"):
        return finding
    failed = {other.check: other for other in all_findings if other.status is Status.FAIL}
    for check in _FOLLOWS.get(finding.check, ()):
        if check in failed:
            return replace(finding, cause=f"follows from {check}", way_out="")
    if finding.cause:
        return finding
    return replace(
        finding,
        cause="unknown: samples are apart, and still the numbers differ (another kernel for packed rows, or rounding)",
        way_out="run in float32 to tell rounding from a fault",
    )


def _with_nearest(findings: list[Finding]) -> list[Finding]:
    """Unsupported implementations point to one that passed."""
    passed = [found.attention for found in findings if found.check == "isolation" and found.status is Status.PASS]
    return [
        replace(found, way_out=f"attn_implementation={passed[-1]!r}, which passes here")
        if found.check == "attention" and passed and found.status is Status.NOT_SUPPORTED
        else found
        for found in findings
    ]


def _describe(subject: Subject) -> str:
    dtype = str(next(subject.model.parameters()).dtype).removeprefix("torch.")
    collator = getattr(subject.collator, "__name__", None) or type(subject.collator).__name__
    case = subject.case
    return (
        f"{type(subject.model).__name__}, {dtype} on {subject.device}; {collator}; {len(case.segments)} samples, "
        f"{case.num_tokens:,} tokens, {case.num_targets:,} targets; torch {torch.__version__}"
    )

"""``verify_packing``: every check, with every attention implementation."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from brimful.checks import check_type
from brimful.errors import BrimfulError, SettingsError
from brimful.shards import Pack
from brimful.verify.attention import IMPLEMENTATIONS, NotSupported, as_it_is, first_sentence, using
from brimful.verify.case import Case
from brimful.verify.causes import explain_leak, explain_refusal
from brimful.verify.checks.boundaries import check_boundaries
from brimful.verify.checks.gradients import check_backward
from brimful.verify.checks.isolation import check_isolation
from brimful.verify.checks.labels import check_labels
from brimful.verify.checks.padding import check_padding, check_padding_moves_nothing
from brimful.verify.checks.parity import check_parity
from brimful.verify.checks.positions import check_positions
from brimful.verify.checks.samples import check_complete, check_untouched
from brimful.verify.checks.weights import check_weights
from brimful.verify.differences import explain_parity, is_random
from brimful.verify.modes import evaluating, left_as_it_was, training
from brimful.verify.report import CHECKS, Finding, Status, VerifyReport
from brimful.verify.subject import Subject

__all__ = ["verify_packing"]

_FOLLOWS = {
    "training": ("isolation",),
    "logits": ("isolation", "training", "positions"),
    "loss": ("labels", "padding", "complete", "isolation", "training", "logits"),
    "gradients": ("labels", "padding", "complete", "isolation", "training", "logits", "loss"),
    "weights": ("labels", "padding", "complete", "isolation", "training", "logits", "loss"),
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
    stops. All but the first look at isolation runs in training mode with dropout off, as training does. The model is
    left as it was: mode of every module, attention implementation, statistics, no gradients.

    Args:
        model: a causal language model that is called as ``model(**batch)`` and returns ``logits`` and ``loss``:
            any of Transformers, or a module around one.
        collator: takes a list of samples and returns keyword arguments of the model. Transformers'
            ``DataCollatorWithFlattening``, ``PackCollator``, or yours.
        samples: what the collator takes: mappings with ``input_ids`` and perhaps ``labels`` (not shifted),
            ``position_ids`` (``[rows, n]``, mRoPE) or ``seq_lengths``; or packs. A few short ones are enough.
        attention: implementations to try, by the names of Transformers; all of ``IMPLEMENTATIONS`` if None.
        tolerance: largest relative difference. If None, by dtype for parity, 1e-5 in fp32 and 6e-2 in bf16; and for
            isolation what right runs measure: nothing, or rounding where experts share a batch.
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
    subject = Subject(model, collator, Case(samples), tolerance, gradients)
    with left_as_it_was(model), evaluating(model):
        findings = _data_findings(subject)
        if subject.batch.found.certain:
            for name in names:
                findings += _attention_findings(subject, name, findings)
    order = list(CHECKS)
    findings = sorted(_with_nearest(findings), key=lambda found: order.index(found.check))
    return VerifyReport(_describe(subject), tuple(findings))


def _all(model: Any) -> list[str]:
    now = as_it_is(model)
    return [*IMPLEMENTATIONS, *([] if now in IMPLEMENTATIONS else [now])]


def _data_findings(subject: Subject) -> list[Finding]:
    """Checks that need no forward; where nobody knows which token is whose, the others would only guess."""
    if not subject.batch.found.certain:
        return [check_untouched(subject), check_complete(subject)]
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
            found = [_isolation(subject, name, "isolation", data)]
            padding = check_padding_moves_nothing(subject, name)
            found += [padding] if padding is not None else []
            found += _in_training(subject, name, [*data, *found])
            return [_follow(finding, [*data, *found]) for finding in found]
    except NotSupported as error:
        return [Finding("attention", Status.NOT_SUPPORTED, name, detail=str(error), way_out=error.way_out)]


def _in_training(subject: Subject, name: str, before: list[Finding]) -> list[Finding]:
    """Isolation and parity as training runs; parity in ``eval()`` where training mode refuses, or is random."""
    weights = not any(finding.check == "weights" for finding in before)
    try:
        with training(subject.model):
            apart = _isolation(subject, name, "training", before)
            if not is_random(subject):
                return [apart, *_parity(subject, name, weights, [*before, apart])]
        reason = "the model is random in training mode, with every rate of dropout at 0; parity was measured in eval()"
        if apart.status is Status.PASS:
            apart = replace(apart, detail=f"{apart.detail}; {reason}")
    except NotSupported as error:
        apart = Finding("training", Status.NOT_SUPPORTED, name, detail=str(error), way_out=error.way_out)
    return [apart, *_parity(subject, name, weights, [*before, apart])]


def _isolation(subject: Subject, name: str, check: str, before: list[Finding]) -> Finding:
    """Isolation in the mode that the model is in, explained where it fails and nothing before explains it."""
    with _refusals(subject, "the packed batch"):
        finding, leak = check_isolation(subject, name, check)
        finding = _follow(finding, before)
        if finding.status is not Status.FAIL or finding.cause:
            return finding
        assert leak is not None
        cause, way_out = explain_leak(subject, leak)
        only = "in training mode only: " if check == "training" else ""
        return replace(finding, cause=f"{only}{cause}", way_out=way_out)


def _parity(subject: Subject, name: str, weights: bool, before: list[Finding]) -> list[Finding]:
    """Logits, loss, gradients and weights in the mode that the model is in; explained where nothing before explains them."""
    with _refusals(subject, "a single sample"):
        alone = subject.alone()
    with _refusals(subject, "the packed batch"):
        found, auxiliary = check_parity(subject, name, alone, subject.batch)
        found += [check_weights(subject, alone, auxiliary)] if weights else []
        explained = [*before, *(finding for finding in found if finding.cause)]
        found = explain_parity(subject, name, [_follow(finding, explained) for finding in found])
        if all(one.status is not Status.FAIL for one in before if one.check in ("isolation", "training")):
            backward = check_backward(subject, name)
            found = [backward if backward is not None and one.check == "gradients" else one for one in found]
    return found


@contextlib.contextmanager
def _refusals(subject: Subject, what: str) -> Iterator[None]:
    """What a model refuses is not supported, and the report says what it said."""
    try:
        yield
    except (BrimfulError, NotSupported):
        raise
    except Exception as error:  # a model may refuse in any way it likes
        message = first_sentence(error)
        mode = " in training mode" if subject.model.training else ""
        raise NotSupported(f"the model refuses {what}{mode}: {message}", explain_refusal(subject, message)) from error


def _follow(finding: Finding, all_findings: list[Finding]) -> Finding:
    """A failure without a cause of its own follows from another one."""
    if finding.status is not Status.FAIL or (finding.cause and finding.check != "weights"):
        return finding
    failed = {other.check: other for other in all_findings if other.status is Status.FAIL}
    for check in _FOLLOWS.get(finding.check, ()):
        if check in failed:
            return replace(finding, cause=f"follows from {check}", way_out="")
    return finding


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

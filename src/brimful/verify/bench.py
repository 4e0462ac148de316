"""``verify_packing``: every check, with every attention implementation."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from brimful.base.checks import check_type
from brimful.base.wording import setting
from brimful.doctor.probing.modes import (
    current_implementation,
    evaluating,
    first_sentence,
    training,
)
from brimful.doctor.probing.unchanged import preserved
from brimful.errors import BrimfulError, SettingsError
from brimful.store.shards import Pack
from brimful.trees.attention import TREE_ATTENTION
from brimful.verify.checks import check_batch
from brimful.verify.checks.isolation import check_isolation, check_padding_moves_nothing
from brimful.verify.checks.labels import check_inputs_unmodified
from brimful.verify.checks.parity import (
    check_backward,
    check_parity,
    check_passes,
    check_weights,
)
from brimful.verify.diagnosis import diagnose_leak, explain_parity, is_random, way_out_of_refusal
from brimful.verify.drawn_samples import (
    long_samples,
    long_trees,
    random_samples,
    random_trees,
)
from brimful.verify.implementations import (
    IMPLEMENTATIONS,
    TREE_IMPLEMENTATIONS,
    NotSupported,
    using,
    with_weighted_loss,
)
from brimful.verify.reference_samples import MediaMaker, ReferenceSamples
from brimful.verify.setup import PackingSetup
from brimful.verify.tree_rows import lacks_masks
from brimful.verify.verify_report import CHECKS, CheckResult, VerifyReport, joined, not_supported

_LOSS_CAUSES = ("labels", "padding", "complete", "media", "isolation", "training", "logits")

_ADDED_MASKS = " + masks_of"
"""Follows the name of an attention whose masks of trees are not in the batch."""

_CAUSED_BY = {
    "isolation": ("media",),
    "training": ("media", "isolation"),
    "logits": ("media", "isolation", "training", "positions"),
    "loss": _LOSS_CAUSES,
    "gradients": (*_LOSS_CAUSES, "loss"),
    "weights": (*_LOSS_CAUSES, "loss"),
}
"""Checks whose failure explains another's: the first of them that failed too is named as its
cause.
"""


def verify_packing(
    model: Any,
    collator: Callable[[list[Any]], Mapping[str, Any]],
    samples: Sequence[Pack | Mapping[str, Any]] | None = None,
    *,
    trees: bool = False,
    attention: str | Iterable[str] | None = None,
    tolerance: float | None = None,
    gradients: bool = True,
    media_maker: MediaMaker | None = None,
) -> VerifyReport:
    """Show on a model, a collator and samples that packing them changes nothing.

    The truth is the model on each sample alone, with no collator involved. It is compared with the
    batch that the collator makes of all samples, and with batches in which one sample has other
    tokens::

        alone     a a a a      b b                    logits, loss, gradients
        batch     a a a a | b b | 0 0                 the same, below the tolerance
        changed   A A A A | b b | 0 0                 b has not moved

    In packs of trees, and in trees that the collator makes, a sample is the path to one segment.
    Then one segment changes at a time, all samples that have it must move after it, and nothing
    else may. A model of Transformers gets the masks of ``masks_of``, unless the batch has its own,
    and the report names them (``sdpa + masks_of``), or ``use_tree_attention``; and the loss that
    reads ``loss_weights``.

    Each failure is explained by experiment: the batch is repaired in one respect after another
    until the leak stops. Except for the first check of isolation, all runs are in training mode
    with dropout off. The model is
    left as it was: mode of every module, attention implementation, statistics, no gradients.

    Args:
        model: a causal language model that is called as ``model(**batch)`` and returns ``logits``
            and ``loss``: any of Transformers, or a module around one.
        collator: takes a list of samples and returns keyword arguments of the model. Transformers'
            ``DataCollatorWithFlattening``, ``PackCollator``, or yours.
        samples: what the collator takes: mappings with ``input_ids`` and perhaps ``labels`` (not
            shifted), ``position_ids`` (``[rows, n]``, mRoPE) or ``seq_lengths``; or packs. A few
            short ones are enough. Random ones if None, with ``trees`` packs of trees.
        trees: the collator makes trees of samples; packs of trees need not say it.
        attention: implementations to try, by the names of Transformers; all of ``IMPLEMENTATIONS``
            if None, of ``TREE_IMPLEMENTATIONS`` with trees.
        tolerance: largest relative difference. If None, by dtype for parity, 1e-5 in fp32 and 6e-2
            in bf16; and for isolation what right runs measure: nothing, or rounding where experts
            share a batch.
        gradients: compare gradients as well; takes twice the memory of the model.
        media_maker: for packs with media, makes the towers' inputs of a sample alone; the
            collator's own if None and it is a ``PackCollator(media=…)``.

    Raises:
        SettingsError: no samples, no attention implementation, a model without parameters, or trees
            with weights of their own.
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
    if samples is None:
        vocab = _vocabulary_of(model)
        samples = random_trees(vocab) if trees else random_samples(vocab)
    media_maker = getattr(collator, "media", None) if media_maker is None else media_maker
    reference = ReferenceSamples(samples, media_maker, trees=trees)
    if reference.has_trees and getattr(collator, "_loss_weights", None) is not None:
        raise SettingsError(
            f"{setting('loss_weights', '…')} makes another loss than the mean over all targets, "
            "which verify compares: verify trees with a PackCollator without it"
        )
    if attention is None:
        known = TREE_IMPLEMENTATIONS if reference.has_trees else IMPLEMENTATIONS
        attention = dict.fromkeys([*known, current_implementation(model)])
    names = [attention] if isinstance(attention, str) else list(attention)
    if not names:
        raise SettingsError("attention is empty: name at least one implementation, such as sdpa")
    setup = PackingSetup(model, collator, reference, tolerance, gradients)
    with contextlib.ExitStack() as stack:
        stack.callback(model.zero_grad, set_to_none=True)
        stack.enter_context(preserved(model))
        if reference.has_trees:
            stack.enter_context(with_weighted_loss(model))
        findings = [check_inputs_unmodified(setup), *check_batch(setup)]
        if setup.batch.layout.certain:
            if not setup.samples.has_media:
                findings = _with_long_samples(setup, findings, samples[0])
            for name in names:
                findings += _check_attention(setup, name, findings)
    # The last implementation that passed is the way out for the ones that cannot run.
    for attention in [
        item.attention for item in findings if item.check == "isolation" and item.passed
    ][-1:]:
        name, *added = attention.split(" ", 1)
        way_out = " ".join([f"attn_implementation={name!r}", *added]) + ", which passes here"
        findings = [
            replace(item, way_out=way_out) if item.check == "attention" else item
            for item in findings
        ]
    collator_name = getattr(collator, "__name__", None) or type(collator).__name__
    subject = (
        f"{type(model).__name__}, {setup.dtype_name} on {setup.device}; {collator_name}; "
        f"{len(setup.samples.segments)} samples, {setup.samples.num_tokens:,} tokens, "
        f"{setup.samples.num_targets:,} targets; torch {torch.__version__}"
    )
    return VerifyReport(
        subject, tuple(sorted(findings, key=lambda finding: CHECKS.index(finding.check)))
    )


def _vocabulary_of(model: Any) -> int:
    """Return the number of tokens that a model, or the model in a module, has embeddings for.

    Raises:
        SettingsError: neither has any.
    """
    for module in model.modules():
        if hasattr(module, "get_input_embeddings"):
            return int(module.get_input_embeddings().weight.shape[0])
    raise SettingsError("the model does not say its number of tokens: give samples")


def _with_long_samples(
    setup: PackingSetup, findings: list[CheckResult], example: Any
) -> list[CheckResult]:
    """Repeat the checks of arrays with samples that no model is run on, and insert findings that
    fail only there.
    """
    tokens = [token for segment in setup.samples.segments for token in segment.ids.tolist()]
    is_pack = isinstance(example, Pack)
    if is_pack and example.sharing is not None:
        samples = ReferenceSamples(long_trees(tokens))
    else:
        samples = ReferenceSamples(
            long_samples(tokens, as_packs=is_pack), trees=setup.samples.has_trees
        )
    long = replace(setup, samples=samples)
    try:
        long_findings = check_batch(long)
    except Exception:  # rows of a fixed length refuse them, in any way
        return findings
    longest = max(len(segment.ids) for segment in long.samples.segments)
    size = f"with a sample of {longest:,} tokens"
    failures = {
        finding.check: replace(finding, detail=f"{size}: {finding.detail}")
        for finding in long_findings
        if finding.failed
    }
    return [
        failures.get(finding.check, finding) if finding.passed else finding for finding in findings
    ]


def _check_attention(
    setup: PackingSetup, attention: str, earlier_findings: list[CheckResult]
) -> list[CheckResult]:
    """Run the checks of one attention implementation."""
    # Another implementation may fail for a reason of its own, which explains nothing here.
    related_findings = [
        finding for finding in earlier_findings if finding.attention in ("", attention)
    ]
    findings: list[CheckResult] = []
    title = attention
    if attention == TREE_ATTENTION and setup.batch.kwargs.get("tree_kv_index") is None:
        way_out = "PackCollator(dialect='transformers_tree')"
        return [
            replace(
                not_supported("attention", "the batch has no runs (tree_kv_index)", way_out),
                attention=attention,
            )
        ]
    try:
        with using(setup.model, attention):
            if lacks_masks(setup.model, setup.batch.kwargs):
                title += _ADDED_MASKS
            for finding in _run_checks(setup, related_findings):
                findings.append(finding)
    except NotSupported as error:
        # A refusal in a later check does not cancel a failure that an earlier one measured.
        findings = [finding for finding in findings if finding.failed]
        findings.append(not_supported("attention", str(error), error.way_out))
    return [
        replace(
            _follow(finding, [*related_findings, *findings]),
            attention="" if finding.check == "weights" else title,
        )
        for finding in findings
    ]


def _run_checks(setup: PackingSetup, related_findings: list[CheckResult]) -> Iterator[CheckResult]:
    """Yield isolation and padding in ``eval()``, then isolation and parity as training runs.

    Parity is measured in ``eval()`` if training mode refuses, or is random.
    """
    findings = list(related_findings)
    with evaluating(setup.model):
        findings.append(_check_isolation(setup, "isolation", related_findings))
        yield findings[-1]
        with _refusals(setup, "the packed batch"):
            padding = check_padding_moves_nothing(setup)
        if padding is not None:
            findings.append(padding)
            yield padding
    finding = not_supported("training", "")
    parity = None
    try:
        with training(setup.model):
            finding = _check_isolation(setup, "training", findings)
            if not is_random(setup):
                parity = _check_parity(setup, [*findings, finding])
            elif finding.passed:
                reason = (
                    "the model is random in training mode, with every rate of dropout at 0; "
                    "parity was measured in eval()"
                )
                finding = replace(finding, detail=joined(finding.detail, reason))
    except NotSupported as error:
        # The refusal may come from parity, after the isolation check has already failed.
        if not finding.failed:
            finding = not_supported("training", str(error), error.way_out)
    yield finding
    if parity is None:
        with evaluating(setup.model):
            parity = _check_parity(setup, [*findings, finding])
    yield from parity
    if setup.samples.has_trees and not is_random(setup):
        with _refusals(setup, "the packed batch"):
            yield check_passes(setup)


def _check_isolation(
    setup: PackingSetup, check: str, earlier_findings: list[CheckResult]
) -> CheckResult:
    """Check isolation in the mode that the model is in; explain a failure unless an earlier finding
    does.
    """
    with _refusals(setup, "the packed batch"):
        finding, leak = check_isolation(setup)
        finding = _follow(replace(finding, check=check), earlier_findings)
        if not finding.failed or finding.cause:
            return finding
        assert leak is not None
        cause, way_out = diagnose_leak(setup, leak)
        mode = "in training mode only: " if check == "training" else ""
        return replace(finding, cause=f"{mode}{cause}", way_out=way_out)


def _check_parity(setup: PackingSetup, earlier_findings: list[CheckResult]) -> list[CheckResult]:
    """Check logits, loss, gradients and weights in the mode that the model is in; explain failures
    likewise.
    """
    with _refusals(setup, "a single sample"):
        reference = setup.per_sample_reference()
    with _refusals(setup, "the packed batch"):
        findings, auxiliary = check_parity(setup, reference, setup.batch)
        if setup.samples.has_trees:
            findings = [
                replace(item, detail=joined(item.detail, "as use_loss_weights weighs it"))
                if item.check == "loss" and item.passed
                else item
                for item in findings
            ]
        # Weights do not depend on the implementation, so the first one that gets here shows them
        # for all.
        if not any(finding.check == "weights" for finding in earlier_findings):
            findings.append(check_weights(setup, reference, auxiliary))
        explanations = [*earlier_findings, *(finding for finding in findings if finding.cause)]
        findings = explain_parity(setup, [_follow(finding, explanations) for finding in findings])
        # A leak in the forward is also one in the backward, which is checked alone only without a
        # forward leak.
        if not any(
            item.failed and item.check in ("isolation", "training") for item in earlier_findings
        ) and (backward := check_backward(setup)):
            findings = [backward if item.check == "gradients" else item for item in findings]
        return findings


@contextlib.contextmanager
def _refusals(setup: PackingSetup, request: str) -> Iterator[None]:
    """Turn any error of a model into ``NotSupported``, and quote it.

    Args:
        setup: the model.
        request: what the model was given.
    """
    try:
        yield
    except (BrimfulError, NotSupported):
        raise
    except Exception as error:  # a model may refuse in any way it likes
        message = first_sentence(error)
        mode = " in training mode" if setup.model.training else ""
        way_out = way_out_of_refusal(setup, message)
        raise NotSupported(f"the model refuses {request}{mode}: {message}", way_out) from error


def _follow(finding: CheckResult, findings: list[CheckResult]) -> CheckResult:
    """Name another failure as the cause of a failure without a cause of its own."""
    if not finding.failed or (finding.cause and finding.check != "weights"):
        return finding
    failed_checks = {item.check for item in findings if item.failed}
    causes = [check for check in _CAUSED_BY.get(finding.check, ()) if check in failed_checks]
    return replace(finding, cause=f"follows from {causes[0]}", way_out="") if causes else finding

"""Parity: logits, loss, gradients and weights of targets equal the samples' one by one."""

from dataclasses import replace
from operator import itemgetter
from typing import Any

import torch

from brimful.doctor.probing.model_facts import at_least_float32
from brimful.doctor.probing.modes import evaluating, experiment, training
from brimful.verify.checks.isolation import measure_movement
from brimful.verify.checks.loss_sums import (
    AuxiliaryLoss,
    check_loss,
    language_loss,
    loss_difference,
    other_labels,
)
from brimful.verify.collated_batch import CollatedBatch
from brimful.verify.setup import (
    PackingSetup,
    PerSampleReference,
    batch_loss,
    difference,
    targets_loss,
)
from brimful.verify.verify_report import (
    CheckResult,
    Diagnosis,
    Status,
    compared,
    joined,
    not_supported,
)

_PER_PACK_MEAN = Diagnosis(
    "per-pack mean: the loss ignores num_items_in_batch, so every micro-batch weighs the same "
    "with any number of targets",
    "divide the sum over targets by num_items_in_batch",
)

_WEIGHTS_OF_BATCHES = Diagnosis(
    "the weights of a target depend on its micro-batch, so the sums of micro-batches do not add up",
    "give each target the number of samples that train it, or the sum of their weights",
)

_LEAK_IN_BACKWARD = Diagnosis(
    "leak in the backward: the forward keeps samples apart, and the gradients do not (the mask of "
    "a kernel's backward, or a custom autograd function)",
    "another attention implementation or kernel; one sample per row if no kernel is right",
)


_OTHER_PASS = Diagnosis(
    "the model computes a batch in another way if it trains (another kernel, or an order of sums "
    "that depends on gradients), so the ratio of new to old probabilities is not 1 in the first "
    "step",
    "take both from passes in the same mode, with the same kernels",
)


def check_parity(
    setup: PackingSetup, reference: PerSampleReference, batch: CollatedBatch
) -> tuple[list[CheckResult], AuxiliaryLoss | None]:
    """Compare logits, loss and gradients of a batch with the samples'; the last two if it has
    targets.

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
                difference(reference.logits[sample.index], output.logits.detach()[place.index]),
                sample.name,
            )
            for sample, place in batch.located
        ]
        worst, name = max(differences, key=itemgetter(0), default=(0.0, ""))
        detail = f"{name} has other logits in the batch than alone"
        findings = [compared("logits", worst, setup.parity_limit, failed=detail)]
        if batch.terms is None:
            return findings, None
        finding, auxiliary = check_loss(setup, reference, batch, output)
        findings.append(finding)
        if setup.with_gradients:
            # An auxiliary loss has gradients of its own, which packing does not cause.
            loss = output.loss if auxiliary is None else None
            loss = language_loss(output.logits, batch) if loss is None else loss
            findings += check_gradients(setup, reference, loss)
    return findings, auxiliary


def check_weights(
    setup: PackingSetup, reference: PerSampleReference, auxiliary: AuxiliaryLoss | None
) -> CheckResult:
    """Run the first feature in one micro-batch and the others in a second, both with the step's
    target count, with their own labels and with others.

    An auxiliary loss is the same with other labels: in the difference of the two losses it cancels
    out. ::

        2 targets | 6 targets     num_items_in_batch 8      loss = sum₁/8 + sum₂/8
        instead of                                          mean₁ + mean₂, where a target of the first weighs thrice

    A batch that names the places that predict has no labels, and its loss is the caller's: Σ weight
    · loss of both micro-batches ÷ their Σ weight is compared with the samples.
    """
    samples = setup.samples
    count = samples.num_targets
    if len(samples) >= 2 and count and "loss_index" in setup.batch.kwargs:
        return _check_named_places(setup, sum(reference.loss_sums) / count)
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
    expected_change, change = 0.0, 0.0
    for part in (samples.part(0, 1), samples.part(1)):
        batch = replace(setup, samples=part).batch
        assert batch.targets is not None
        kwargs, targets = other_labels(setup, batch)
        logits = setup.logits(batch.kwargs)
        movement = batch_loss(logits, batch, targets) - batch_loss(logits, batch)
        expected_change += float(movement) / count
        for sign, arguments in ((1, kwargs), (-1, batch.kwargs)):
            with torch.no_grad():
                loss = setup.output({**arguments, "num_items_in_batch": count}).loss
            if loss is None:
                way_out = "compute it as a sum over targets ÷ targets of the step"
                return not_supported("weights", "the model returns no loss", way_out)
            change += sign * float(loss.nan_to_num())  # without targets it may be none
    return compared(
        "weights",
        loss_difference(expected_change, change),
        setup.parity_limit,
        passed=f"2 micro-batches, {count} targets",
        failed=f"with other labels the losses of two micro-batches change by {change:.6f}, the "
        f"mean over all {count} targets by {expected_change:.6f}",
        diagnosis=_PER_PACK_MEAN,
    )


def check_passes(setup: PackingSetup) -> CheckResult:
    """Compare the logits of a pass without gradients, in ``eval()``, with the training pass:
    equal to the last bit, so that the ratio of their probabilities is 1.
    """
    with evaluating(setup.model):
        log_probs_pass = setup.logits(setup.batch.kwargs)
    with training(setup.model), torch.enable_grad():
        training_pass = setup.forward(setup.batch.kwargs).detach()
    return compared(
        "passes",
        difference(log_probs_pass, training_pass),
        0.0,
        passed="a pass without gradients and the training pass agree to the last bit",
        failed="a pass without gradients has other logits than the training pass",
        diagnosis=_OTHER_PASS,
    )


def check_gradients(
    setup: PackingSetup, reference: PerSampleReference, loss: torch.Tensor
) -> list[CheckResult]:
    """Compare the gradients of a loss by parameter; no finding if the model has no parameter that
    is trained.
    """
    setup.model.zero_grad(set_to_none=True)
    if loss.requires_grad:
        loss.backward()
    gradients = setup.take_gradients()
    if not gradients and not reference.gradients:
        return []
    differences = []
    for name in sorted({*gradients, *reference.gradients}):
        # A parameter without a gradient on one side has zeros there, such as experts that got no
        # token of a sample.
        zeros = torch.zeros_like(setup.model.get_parameter(name))
        pair = (
            at_least_float32(side.get(name, zeros)) for side in (reference.gradients, gradients)
        )
        differences.append((difference(*pair), name))
    worst, name = max(differences, key=itemgetter(0))
    return [compared("gradients", worst, setup.parity_limit, failed=f"largest in {name}")]


def check_backward(setup: PackingSetup) -> CheckResult | None:
    """Take gradients of every second sample's loss at the embeddings of the others: exactly zero.

    ::

        targets of    a a a · · c c        gradients at    . . . b b . .      zero
                      · · · b b · ·                        a a a . . c c      zero

    A mask that holds in the forward and not in the backward moves no logit. In a tree, the others
    are tokens that no sample with a loss has. Returns a failure, and
    None if nothing leaks or if the model does not let its embeddings be seen.
    """
    if setup.batch.terms is None or not setup.with_gradients:
        return None
    movement = experiment(
        lambda: measure_movement(
            setup,
            lambda: _leaking_share(setup, setup.batch),
            lambda: _leaking_share(setup, setup.in_rows()),
        )
    )
    if movement is None or movement.passed:
        return None
    detail = joined(
        "the loss of one sample has gradients at the tokens of another", movement.remark
    )
    return CheckResult(
        "gradients", Status.FAIL, "", movement.size, movement.limit, detail, *_LEAK_IN_BACKWARD
    )


def _leaking_share(setup: PackingSetup, batch: CollatedBatch) -> float:
    """Return the largest gradient at tokens of samples without a loss, relative to samples with a
    loss. Any error means that the model does not let its embeddings be seen.
    """
    leaves: list[torch.Tensor] = []

    def as_leaf(_: Any, __: Any, output: torch.Tensor) -> torch.Tensor:
        leaves.append(output.detach().requires_grad_())
        return leaves[-1]

    model = next(part for part in setup.model.modules() if hasattr(part, "get_input_embeddings"))
    handle = model.get_input_embeddings().register_forward_hook(as_leaf)
    located = batch.located
    largest = 0.0
    try:
        for parity in (0, 1):
            # The loss of every second sample alone: of two neighbors, exactly one has a loss.
            trained = located[parity::2]
            if not any(segment.num_targets for segment, _ in trained):
                continue
            # Compiled attention frees what backward used, so each loss has its own forward.
            leaves.clear()
            with torch.enable_grad():
                logits = setup.forward(batch.kwargs)
                loss = torch.stack(
                    [
                        targets_loss(logits[place.index][:-1], segment.labels[1:])
                        for segment, place in trained
                    ]
                ).sum()
            # Embeddings may run more than once, and for media; only the row's tokens count.
            leaf = next(leaf for leaf in leaves if leaf[..., 0].numel() == batch.ids.size)
            (gradient,) = torch.autograd.grad(loss, leaf)
            token_sizes = gradient.abs().amax(dim=-1).reshape(batch.ids.shape).cpu()
            own_sizes = [float(token_sizes[place.index].max()) for _, place in trained]
            for _, place in trained:
                token_sizes[place.index] = 0
            other_sizes = [
                float(token_sizes[place.index].max()) for _, place in located[1 - parity :: 2]
            ]
            if max(own_sizes) > 0:
                largest = max(largest, max(other_sizes, default=0.0) / max(own_sizes))
    finally:
        handle.remove()
    return largest


def _check_named_places(setup: PackingSetup, expected_loss: float) -> CheckResult:
    """Compare the weighted loss of two micro-batches that name the places that predict with the
    mean over all targets of the samples.
    """
    total, weight = 0.0, 0.0
    for part in (setup.samples.part(0, 1), setup.samples.part(1)):
        batch = replace(setup, samples=part).batch
        with torch.no_grad():
            total += float(batch_loss(setup.logits(batch.kwargs), batch))
        weight += batch.num_targets
    loss = total / weight if weight else 0.0
    return compared(
        "weights",
        loss_difference(expected_loss, loss),
        setup.parity_limit,
        passed=f"2 micro-batches, {setup.samples.num_targets} targets",
        failed=f"Σ weight · loss ÷ Σ weight of two micro-batches is {loss:.6f}, and the mean over "
        f"the {setup.samples.num_targets} targets of the samples {expected_loss:.6f}",
        diagnosis=_WEIGHTS_OF_BATCHES,
    )

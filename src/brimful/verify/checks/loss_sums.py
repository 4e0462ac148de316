"""Loss of the batch: the mean over all targets, as one by one.

A model may add to its loss: balance of experts, z-loss, multi-token prediction. None of that is the
same packed and alone, and none of it is a fault of packing. So if the model's loss is not the
language-model loss of its logits, other labels in one sample tell a wrong weighing from an
addition::

    the loss moves as the mean does        then every target weighs the same, and something is added
    it does not, nor for the sample alone  then the addition uses labels, alone as in the pack
    it does not in the pack only           then the pack is weighed wrongly
"""

from collections.abc import Iterable
from dataclasses import replace
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import torch

from brimful.base.typing import IGNORE_INDEX, Int64Array
from brimful.doctor.probing.modes import experiment
from brimful.verify.collated_batch import CollatedBatch, as_rows
from brimful.verify.setup import (
    ModelOutput,
    PackingSetup,
    PerSampleReference,
    batch_loss,
    difference,
    targets_loss,
)
from brimful.verify.verify_report import CheckResult, Status, not_supported

_WAY_OUT = (
    "sum the loss of each next token over all targets of the step, over all ranks, and divide by "
    "their number"
)

_WAY_OUT_OF_TREES = (
    "Σ weight · loss ÷ Σ weight over all targets of the step: packed_loss_sum, or use_loss_weights "
    "in a trainer"
)

_TOLERANCE = 1e-2
"""Largest relative difference between a model's loss and its logits' own, which differ by one
rounding at most; and largest deviation of a target's weight from 1.
"""


class AuxiliaryLoss(NamedTuple):
    """Part of a model's loss besides the language-model loss.

    Attributes:
        text: its size and name.
        depends_on_labels: as multi-token prediction and smoothing do, so weights of targets cannot
            be measured.
    """

    text: str
    depends_on_labels: bool


def language_loss(logits: torch.Tensor, batch: CollatedBatch) -> torch.Tensor:
    """Return the language-model loss of the batch from its logits and targets: the mean over
    targets.
    """
    return batch_loss(logits, batch) / max(1, batch.num_targets)


def loss_difference(expected_loss: float, model_loss: float) -> float:
    """Return |expected_loss − model_loss| ÷ max(1, |expected_loss|), in float32."""
    return difference(torch.tensor([expected_loss]), torch.tensor([model_loss]))


def check_loss(
    setup: PackingSetup, reference: PerSampleReference, batch: CollatedBatch, output: ModelOutput
) -> tuple[CheckResult, AuxiliaryLoss | None]:
    """Compare the language-model loss of a batch, and the model's own if it gives one, with the
    samples' losses.

    Args:
        setup: model and samples.
        reference: the samples one by one.
        batch: with targets.
        output: of the model for the batch.

    Returns:
        The finding, and the addition to the model's loss; None if it adds nothing.
    """
    limit, count = setup.parity_limit, setup.samples.num_targets
    if not count:
        return not_supported("loss", "no sample has a target"), None
    logits = output.logits.detach()
    expected_loss, language = sum(reference.loss_sums) / count, float(language_loss(logits, batch))
    model_loss = language if output.loss is None else float(output.loss.detach())

    def failed(cause: str = "", way_out: str = "") -> CheckResult:
        detail = (
            f"{model_loss:.6f} in the batch, {expected_loss:.6f} as the mean over the "
            f"{count} targets of the samples"
        )
        size = loss_difference(expected_loss, model_loss)
        return CheckResult("loss", Status.FAIL, "", size, limit, detail, cause, way_out)

    # First the logits and targets: if their own mean is wrong, the model's weighing cannot explain
    # it.
    language_size = loss_difference(expected_loss, language)
    weighing_size = loss_difference(language, model_loss)
    if language_size > limit or weighing_size <= min(limit, _TOLERANCE):
        size = max(language_size, weighing_size)
        return (
            CheckResult("loss", Status.PASS, "", size, limit) if size <= limit else failed()
        ), None
    # Then the means that trainers are known to take: the nearest one. Near means near in comparison
    # with the distance from the right mean, or samples of one length would accuse anyone.
    if abs(batch.num_targets - count) < _TOLERANCE:
        distance, words = min(
            ((abs(value - model_loss), words) for value, words in _other_means(batch, logits)),
            key=itemgetter(0),
        )
        if distance <= max(1e-5 * abs(model_loss), _TOLERANCE * abs(model_loss - language)):
            way_out = _WAY_OUT_OF_TREES if batch.has_trees else _WAY_OUT
            return failed(f"the loss is {words}", way_out), None
    # What remains is an unknown weighing, or an addition.
    uneven_weights = {
        index: weight
        for index in range(len(setup.samples.segments))
        if abs((weight := _weight(setup, batch, logits, index)) - 1) > _TOLERANCE
    }
    text = (
        "language-model loss of the logits; the model adds an auxiliary loss of "
        f"{model_loss - language:.2g}"
    )
    names = ", ".join(output.other_losses)
    # A sample alone has no other targets to weigh against: an uneven weight of it means an addition
    # that uses labels.
    for index in uneven_weights:
        batch_alone = setup.alone(index)
        if (
            abs(_weight(setup, batch_alone, setup.logits(batch_alone.kwargs), index) - 1)
            > _TOLERANCE
        ):
            text += (
                f" ({names or 'of labels, such as multi-token prediction'}); as it depends "
                "on labels, weights of targets in it are not shown"
            )
            break
    else:
        if uneven_weights:
            index, weight = max(uneven_weights.items(), key=lambda item: abs(item[1] - 1))
            name = setup.samples.segments[index].name
            cause = (
                f"with an auxiliary loss, targets of {name} weigh {weight:.2f} times what "
                "they weigh in the mean over all targets"
            )
            way_out = (
                "divide the language-model loss by the targets of the step before anything "
                "is added to it"
            )
            return failed(cause, way_out), AuxiliaryLoss(text, False)
        text += f" ({names or 'no name'})"
    auxiliary = AuxiliaryLoss(text, bool(uneven_weights))
    return CheckResult("loss", Status.PASS, "", language_size, limit, text), auxiliary


def other_labels(
    setup: PackingSetup, batch: CollatedBatch, index: int | None = None
) -> tuple[dict[str, Any], Int64Array]:
    """Return keyword arguments and targets of a batch with other labels in one segment, or in all
    if None.
    """
    assert batch.targets is not None
    changes = np.zeros(batch.ids.shape, dtype=bool)
    for segment, place in batch.located:
        if index in (None, segment.index):
            changes[place.row, place.columns[:-1]] = True
    changes &= batch.targets != IGNORE_INDEX
    targets = batch.targets.copy()
    targets[changes] = setup.samples.next_tokens(targets[changes])
    name = "shift_labels" if batch.shifted else "labels"
    original = batch.kwargs[name]
    labels = targets
    if not batch.shifted:
        # The first label of a row has no position that predicts it, and stays.
        labels = as_rows(original).copy()
        labels[:, 1:] = targets[:, :-1]
    return {
        **batch.kwargs,
        name: torch.from_numpy(labels).to(original).reshape(original.shape),
    }, targets


def _other_means(batch: CollatedBatch, logits: torch.Tensor) -> Iterable[tuple[float, str]]:
    """Yield the values that wrong losses of the same logits would have, with their names."""
    assert batch.targets is not None
    if batch.has_trees:
        unweighted = replace(batch, has_trees=False)
        yield (
            float(language_loss(logits, unweighted)),
            "a mean in which a target that several samples share counts once: it ignores "
            "loss_weights",
        )
        total, size = float(batch_loss(logits, batch)), batch.ids.size
        yield total, "the sum over all targets"
        yield (
            total / size,
            f"divided by all {size} tokens of the batch, padding and prompts included",
        )
        yield (
            total / unweighted.num_targets,
            "divided by the labels of the row, and not by their weights",
        )
        return
    located = batch.located
    sums = [
        float(targets_loss(logits[place.index], batch.targets[place.index])) for _, place in located
    ]
    counts = [segment.num_targets for segment, _ in located]
    groups = {
        "sample": range(len(located)),
        "pack": [segment.feature for segment, _ in located],
        "row": [place.row for _, place in located],
    }
    for noun, numbers in groups.items():
        group_sums, group_counts = (
            np.bincount(numbers, weights=values) for values in (sums, counts)
        )
        has_target = group_counts > 0
        mean = float((group_sums[has_target] / group_counts[has_target]).mean())
        yield mean, f"a mean of per-{noun} means: each {noun} weighs the same"
    size, num_real = batch.ids.size, int((~batch.free).sum())
    padded_text = f"divided by all {size} tokens of the batch, padding and prompts included"
    for divisor, words in (
        (1, "the sum over all targets"),
        (size, padded_text),
        (size - len(batch.ids), padded_text),  # the last of a row predicts nothing
        (num_real, f"divided by the {num_real} tokens of the samples, prompts included"),
    ):
        yield sum(sums) / max(1, divisor), words
    if not batch.shifted and "labels" in batch.kwargs:
        unshifted_loss = float(targets_loss(logits, as_rows(batch.kwargs["labels"])))
        yield (
            unshifted_loss / batch.num_targets,
            "of tokens that predict themselves: the model does not shift its labels",
        )


def _model_loss(setup: PackingSetup, kwargs: dict[str, Any]) -> float:
    """Return the model's own loss; NaN if it gives none that way."""
    with torch.no_grad():
        loss = experiment(lambda: setup.output(kwargs).loss)
    return float("nan") if loss is None else float(loss)


def _weight(setup: PackingSetup, batch: CollatedBatch, logits: torch.Tensor, index: int) -> float:
    """Return how much the targets of one segment weigh in the model's loss: 1 if as all others, or
    unknown.

    The loss is taken again with other labels in that sample: parts without labels cancel; the loss
    must move by the change of its cross-entropies, divided by the number of all targets.

    Args:
        setup: the model.
        batch: with labels.
        logits: of the batch, which do not depend on labels.
        index: of the segment.
    """
    assert batch.targets is not None
    kwargs, targets = other_labels(setup, batch, index)
    movement = float(batch_loss(logits, batch, targets) - batch_loss(logits, batch))
    if abs(movement) < _TOLERANCE:
        return 1.0
    difference = _model_loss(setup, kwargs) - _model_loss(setup, batch.kwargs)
    weight = difference * batch.num_targets / movement
    return weight if np.isfinite(weight) else 1.0

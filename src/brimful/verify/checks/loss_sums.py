"""Loss of the batch: the mean over all targets, as one by one.

A model may add to its loss: balance of experts, z-loss, multi-token prediction. None of that is the
same packed and alone, and none of it is a fault of packing. So if the model's loss is not the
language-model loss of its logits, two experiments tell a wrong weighing from an addition::

    one sample alone      its loss is its logits' loss        then nothing is added, and the pack is weighed wrongly
                          it is not                           then something is added, alone as in the pack
    other labels          the loss moves as the mean does     then every target weighs the same next to the addition
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from brimful.base.typing import IGNORE_INDEX, Float64Array, Int64Array
from brimful.verify.locate import CollatedBatch, as_rows
from brimful.verify.modes import experiment
from brimful.verify.setup import (
    ModelOutput,
    PackingSetup,
    PerSampleReference,
    difference,
    targets_loss,
)
from brimful.verify.verify_report import Diagnosis, Finding, Status, not_supported

_SAME_LOSS = 1e-2
"""Largest relative difference between a model's loss and its logits' own: they differ by one
rounding at most.
"""

_WEIGHT_TOLERANCE = 1e-2
"""Largest deviation of a target's weight from 1: a quotient of differences of two losses."""

_ALL_TARGETS = "sum over all targets of the step and divide by their number, over all ranks"

_NOT_SHIFTED = Diagnosis(
    "the model does not shift its labels: every token is trained to predict itself",
    "compute the loss from the logits, each predicting the next token of its sample",
)


@dataclass(frozen=True, slots=True)
class AuxiliaryLoss:
    """Part of a model's loss besides the language-model loss.

    Attributes:
        size: the model's loss less the language-model loss.
        depends_on_labels: as multi-token prediction and smoothing do, so weights of targets cannot
            be measured.
        names: losses that the model's output names.
    """

    size: float
    depends_on_labels: bool
    names: tuple[str, ...]

    def __str__(self) -> str:
        kind = "of labels, such as multi-token prediction" if self.depends_on_labels else "no name"
        name = ", ".join(self.names) or kind
        remark = (
            "; as it depends on labels, weights of targets in it are not shown"
            if self.depends_on_labels
            else ""
        )
        return f"language-model loss of the logits; the model adds an auxiliary loss of {self.size:.2g} ({name}){remark}"


def language_loss(logits: torch.Tensor, batch: CollatedBatch) -> torch.Tensor:
    """Return the language-model loss of the batch from its logits and targets: the mean over
    targets.
    """
    assert batch.targets is not None
    return targets_loss(logits, batch.targets) / max(1, batch.num_targets)


def loss_difference(expected_loss: float, model_loss: float) -> float:
    """Return |expected_loss − model_loss| ÷ max(1, |expected_loss|), in float32."""
    return difference(torch.tensor([expected_loss]), torch.tensor([model_loss]))


def check_loss(
    setup: PackingSetup, reference: PerSampleReference, batch: CollatedBatch, output: ModelOutput
) -> tuple[Finding, AuxiliaryLoss | None]:
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

    def failed(cause: str = "", way_out: str = "") -> Finding:
        detail = f"{model_loss:.6f} in the batch, {expected_loss:.6f} as the mean over the {count} targets of the samples"
        size = loss_difference(expected_loss, model_loss)
        return Finding("loss", Status.FAIL, "", size, limit, detail, cause, way_out)

    # First the logits and targets: if their own mean is wrong, the model's weighing cannot explain
    # it.
    language_size, weighing_size = (
        loss_difference(expected_loss, language),
        loss_difference(language, model_loss),
    )
    if language_size > limit or weighing_size <= min(limit, _SAME_LOSS):
        size = max(language_size, weighing_size)
        return (Finding("loss", Status.PASS, "", size, limit) if size <= limit else failed()), None
    # Then the means that trainers are known to take: the nearest one.
    if (mean := _other_mean(setup, batch, logits, model_loss)) is not None:
        return failed(*mean), None
    # What remains is an unknown weighing, or an addition; a sample alone tells.
    adds = _adds_to_loss(setup, reference)
    if not adds:
        cause = (
            "the loss of a sample alone is its logits' loss, and the batch's is not: targets are "
            "weighed by something else than their number"
            if adds is False
            else "targets are weighed by something else than their number, or the model adds to "
            "its loss (it gives none for a sample alone, which would tell)"
        )
        return failed(cause, _ALL_TARGETS), None
    auxiliary, unevenness = _auxiliary_loss(
        setup, batch, logits, model_loss - language, tuple(output.other_losses)
    )
    if unevenness:
        way_out = "divide the language-model loss by the targets of the step before anything is added to it"
        return failed(unevenness, way_out), auxiliary
    return Finding("loss", Status.PASS, "", language_size, limit, str(auxiliary)), auxiliary


def other_labels(
    setup: PackingSetup, batch: CollatedBatch, index: int | None = None
) -> tuple[dict[str, Any], Int64Array]:
    """Return keyword arguments and targets of a batch with other labels in one segment, or in all
    if None.
    """
    assert batch.targets is not None
    changes = np.zeros(batch.ids.shape, dtype=bool)
    for segment, place in batch.located:
        if index in (None, segment):
            changes[place.row, place.start : place.stop - 1] = True
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


def _other_mean(
    setup: PackingSetup, batch: CollatedBatch, logits: torch.Tensor, loss: float
) -> Diagnosis | None:
    """Return cause and way out if the loss is another mean of the same logits: the nearest."""
    if batch.num_targets != setup.samples.num_targets:
        return None
    candidates = [
        (
            abs(value - loss),
            Diagnosis(f"the loss is {words}, so some targets weigh more than others", _ALL_TARGETS),
        )
        for value, words in _other_means(setup, batch, logits)
    ]
    if not batch.shifted and "labels" in batch.kwargs:
        unshifted_loss = (
            float(targets_loss(logits, as_rows(batch.kwargs["labels"]))) / batch.num_targets
        )
        candidates.append((abs(unshifted_loss - loss), _NOT_SHIFTED))
    distance, diagnosis = min(candidates)
    # Near means near in comparison with the distance from the right mean, or samples of one length
    # would accuse anyone.
    right = float(language_loss(logits, batch))
    return (
        diagnosis
        if distance <= max(1e-5 * abs(loss), _WEIGHT_TOLERANCE * abs(loss - right))
        else None
    )


def _other_means(
    setup: PackingSetup, batch: CollatedBatch, logits: torch.Tensor
) -> Iterator[tuple[float, str]]:
    """Yield the values that wrong losses of the same logits would have, with their names."""
    assert batch.targets is not None
    segments = [setup.samples.segments[index] for index, _ in batch.located]
    places = [place for _, place in batch.located]
    sums = np.array(
        [float(targets_loss(logits[place.index], batch.targets[place.index])) for place in places]
    )
    counts = np.array([segment.num_targets for segment in segments])
    num_samples, total = len(places), float(sums.sum())
    height, width = batch.ids.shape
    num_real = int((~batch.free).sum())
    sample_mean = _mean_of_means(sums, counts, np.arange(num_samples))
    yield sample_mean, "a mean of per-sample means: each sample weighs the same"
    sample_mean *= np.count_nonzero(counts) / max(1, num_samples)
    yield (
        sample_mean,
        "a mean of per-sample means over all samples, those without a target included",
    )
    pack_mean = _mean_of_means(sums, counts, [segment.feature for segment in segments])
    yield pack_mean, "a per-pack mean: each pack weighs the same"
    row_mean = _mean_of_means(sums, counts, [place.row for place in places])
    yield row_mean, "a mean of per-row means: each row weighs the same"
    num_predicted = num_real - num_samples
    padded_text = (
        f"divided by all {batch.ids.size} tokens of the batch, padding and prompts included"
    )
    for divisor, words in (
        (1, "the sum over all targets"),
        (batch.ids.size, padded_text),
        (height * (width - 1), f"{padded_text}, but for the last of a row"),
        (num_real, f"divided by the {num_real} tokens of the samples, prompts included"),
        (num_predicted, f"divided by the {num_predicted} predicted tokens, prompts included"),
    ):
        yield total / max(1, divisor), words


def _mean_of_means(sums: Float64Array, counts: Int64Array, groups: npt.ArrayLike) -> float:
    """Return the mean of the groups' means over their targets; groups without a target do not
    count.
    """
    group_sums, group_counts = (np.bincount(groups, weights=values) for values in (sums, counts))
    has_target = group_counts > 0
    return float(
        (group_sums[has_target] / group_counts[has_target]).sum() / max(1, has_target.sum())
    )


def _model_loss(setup: PackingSetup, kwargs: dict[str, Any]) -> float | None:
    """Return the model's own loss; None if it gives none that way."""
    with torch.no_grad():
        loss = experiment(
            lambda: setup.output(kwargs).loss
        )  # a loss that needs more than labels cannot be checked
    return None if loss is None or not torch.isfinite(loss) else float(loss)


def _adds_to_loss(setup: PackingSetup, reference: PerSampleReference) -> bool | None:
    """Return true if the model's loss of any sample alone is not its logits' loss; None if it gives
    no loss.
    """
    differences = [
        loss_difference(reference.loss_sums[index] / segment.num_targets, loss)
        for index, segment in enumerate(setup.samples.segments)
        if segment.num_targets
        and (loss := _model_loss(setup, setup.alone(index).kwargs)) is not None
    ]
    return any(size > setup.parity_limit for size in differences) if differences else None


def _auxiliary_loss(
    setup: PackingSetup,
    batch: CollatedBatch,
    logits: torch.Tensor,
    size: float,
    names: tuple[str, ...],
) -> tuple[AuxiliaryLoss, str]:
    """Describe the addition, and how the remaining loss weighs targets wrongly, if it does.

    The loss is taken again with other labels in one sample: parts without labels cancel; the loss
    must move by the change of that sample's cross-entropies, divided by the number of all targets.
    """
    uneven_weights = {}
    for index in range(len(setup.samples.segments)):
        weight = _weight(setup, batch, logits, index)
        if abs(weight - 1) > _WEIGHT_TOLERANCE:
            uneven_weights[index] = weight
    if not uneven_weights:
        return AuxiliaryLoss(size, False, names), ""
    # A sample alone has no other targets to weigh against: an uneven weight of it means an addition
    # that uses labels.
    for index in uneven_weights:
        batch_alone = setup.alone(index)
        if (
            abs(_weight(setup, batch_alone, setup.logits(batch_alone.kwargs)) - 1)
            > _WEIGHT_TOLERANCE
        ):
            return AuxiliaryLoss(size, True, names), ""
    index, weight = max(uneven_weights.items(), key=lambda item: abs(item[1] - 1))
    return AuxiliaryLoss(size, False, names), (
        f"with an auxiliary loss, targets of {setup.samples.segments[index].name} weigh "
        f"{weight:.2f} times what they weigh in the mean over all targets"
    )


def _weight(
    setup: PackingSetup, batch: CollatedBatch, logits: torch.Tensor, index: int | None = None
) -> float:
    """Return how much the targets of one segment, or of all, weigh in the model's loss: 1 if as all
    others, or unknown.

    Args:
        setup: the model.
        batch: with labels.
        logits: of the batch, which do not depend on labels.
        index: of the segment; None for all.
    """
    assert batch.targets is not None
    kwargs, targets = other_labels(setup, batch, index)
    movement = float(targets_loss(logits, targets) - targets_loss(logits, batch.targets))
    if abs(movement) < _WEIGHT_TOLERANCE:
        return 1.0
    loss, other_loss = _model_loss(setup, batch.kwargs), _model_loss(setup, kwargs)
    return (
        1.0
        if loss is None or other_loss is None
        else (other_loss - loss) * batch.num_targets / movement
    )

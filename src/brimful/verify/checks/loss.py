"""Is the loss of the batch the mean over all targets, as one by one?

A model may add to its loss: balance of experts, z-loss, multi-token prediction. None of that is the same packed and
alone, and none of it is a fault of packing. So where the model's loss is not the language-model loss of its logits, two
experiments tell a wrong weighing from an addition::

    one sample alone      its loss is that of its logits      then nothing is added, and the pack is weighed wrongly
                          it is not                           then something is added, here as there
    other labels          the loss moves as the mean does     then every target weighs the same beside what is added
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from brimful.typing import IGNORE_INDEX, Int64Array
from brimful.verify.layout import Collated, as_rows
from brimful.verify.report import Finding, Status
from brimful.verify.subject import Alone, Subject, difference, targets_loss

__all__ = ["Auxiliary", "check_loss", "num_targets", "other_labels", "own_loss"]

_SAME, _WEIGHT = 1e-2, 1e-2
"""A loss and that of the same logits differ by one rounding at most, weights of targets by that of two losses."""

_ALL_TARGETS = "sum over all targets of the step and divide by their number, over all ranks"
_NOT_SHIFTED = (
    "the model does not shift its labels: every token is trained to predict itself",
    "compute the loss from the logits, each predicting the next token of its sample",
)


@dataclass(frozen=True, slots=True)
class Auxiliary:
    """What a model's loss holds beside the language-model loss.

    Attributes:
        size: how much.
        of_labels: whether it depends on labels (multi-token prediction, smoothing), so that weights cannot be told.
        names: what the model's output calls a loss.
    """

    size: float
    of_labels: bool
    names: tuple[str, ...]

    def __str__(self) -> str:
        what = ", ".join(self.names) or ("of labels, such as multi-token prediction" if self.of_labels else "no name")
        left = "; as it depends on labels, weights of targets in it are not shown" if self.of_labels else ""
        return f"language-model loss of the logits; the model adds an auxiliary loss of {self.size:.2g} ({what}){left}"


def num_targets(batch: Collated) -> int:
    """Targets of a batch."""
    return 0 if batch.targets is None else int(np.count_nonzero(batch.targets != IGNORE_INDEX))


def own_loss(logits: torch.Tensor, batch: Collated) -> torch.Tensor:
    """Language-model loss of the batch from its logits and targets: the mean over targets."""
    assert batch.targets is not None
    return targets_loss(logits, batch.targets) / max(1, num_targets(batch))


def check_loss(
    subject: Subject,
    attention: str,
    alone: Alone,
    batch: Collated,
    logits: torch.Tensor,
    loss: float | None,
    named: dict[str, float],
) -> tuple[Finding, Auxiliary | None]:
    """The language-model loss of a batch, and the model's own where it has one.

    Args:
        subject: model and samples.
        attention: name of the implementation.
        alone: the truth.
        batch: with targets.
        logits: of the batch.
        loss: as the model gives it; None where it gives none.
        named: what else of its output is called a loss.
    """
    limit, count = subject.parity_limit, subject.case.num_targets
    if not count:
        return Finding("loss", Status.NOT_SUPPORTED, attention, detail="no sample has a target"), None
    wanted, language = sum(alone.sums) / count, float(own_loss(logits, batch))
    apart = _apart(wanted, language)
    given = language if loss is None else loss
    if apart > limit or _apart(language, given) <= min(limit, _SAME):
        return _finding(attention, max(apart, _apart(language, given)), limit, given, wanted, count), None
    if (mean := _other_mean(subject, batch, logits, given)) is not None:
        return _failed(attention, limit, given, wanted, count, *mean), None
    if not (adds := _adds(subject, alone)):
        cause = (
            "the loss of a sample alone is that of its logits, and the loss of the batch is not: targets are weighed by "
            "something else than their number"
            if adds is False
            else "targets are weighed by something else than their number, or the model adds to its loss (it gives none "
            "for a sample alone, which would tell)"
        )
        return _failed(attention, limit, given, wanted, count, cause, _ALL_TARGETS), None
    auxiliary, uneven = _auxiliary(subject, batch, logits, given - language, tuple(named))
    if uneven:
        way_out = "divide the language-model loss by the targets of the step before anything is added to it"
        return _failed(attention, limit, given, wanted, count, uneven, way_out), auxiliary
    return Finding("loss", Status.PASS, attention, apart, limit, str(auxiliary)), auxiliary


def other_labels(subject: Subject, batch: Collated, index: int | None = None) -> tuple[dict[str, Any], Int64Array]:
    """Keyword arguments and targets of a batch with other labels in one segment, or in all of them."""
    assert batch.targets is not None
    known = np.unique(np.concatenate([segment.ids for segment in subject.case.segments]))
    where = np.zeros(batch.ids.shape, dtype=bool)
    for segment, place in enumerate(batch.places):
        if place is not None and index in (None, segment):
            where[place.row, place.start : place.stop - 1] = True
    where &= batch.targets != IGNORE_INDEX
    targets = batch.targets.copy()
    targets[where] = known[(np.searchsorted(known, targets[where]) + 1) % len(known)]
    name = "shift_labels" if batch.shifted else "labels"
    if batch.shifted:
        labels = targets
    else:
        labels = np.atleast_2d(batch.kwargs[name].detach().cpu().numpy().astype(np.int64)).copy()
        labels[:, 1:] = targets[:, :-1]
    old = batch.kwargs[name]
    return {**batch.kwargs, name: torch.from_numpy(labels).to(old).reshape(old.shape)}, targets


def _finding(attention: str, size: float, limit: float, got: float, wanted: float, count: int) -> Finding:
    if size <= limit:
        return Finding("loss", Status.PASS, attention, size, limit)
    return _failed(attention, limit, got, wanted, count)


def _failed(
    attention: str, limit: float, got: float, wanted: float, count: int, cause: str = "", way_out: str = ""
) -> Finding:
    detail = f"{got:.6f} in the batch, {wanted:.6f} as the mean over the {count} targets of the samples"
    return Finding("loss", Status.FAIL, attention, _apart(wanted, got), limit, detail, cause, way_out)


def _apart(wanted: float, got: float) -> float:
    return difference(torch.tensor([wanted]), torch.tensor([got]))


def _other_mean(subject: Subject, batch: Collated, logits: torch.Tensor, loss: float) -> tuple[str, str] | None:
    """Cause and way out if the loss is another mean of the same logits: the nearest."""
    if num_targets(batch) != subject.case.num_targets:
        return None
    weighed = [
        (abs(value - loss), f"the loss is {words}, so some targets weigh more than others", _ALL_TARGETS)
        for value, words in _other_means(subject, batch, logits)
    ]
    if not batch.shifted and "labels" in batch.kwargs:
        still = float(targets_loss(logits, as_rows(batch.kwargs["labels"]))) / num_targets(batch)
        weighed.append((abs(still - loss), *_NOT_SHIFTED))
    best = min(weighed)
    right = float(own_loss(logits, batch))
    return best[1:] if best[0] <= max(1e-5 * abs(loss), _WEIGHT * abs(loss - right)) else None


def _other_means(subject: Subject, batch: Collated, logits: torch.Tensor) -> Iterator[tuple[float, str]]:
    """What else the loss could be."""
    assert batch.targets is not None
    features: dict[int, list[tuple[float, int]]] = {}
    rows: dict[int, list[tuple[float, int]]] = {}
    pairs = []
    for segment, place in zip(subject.case.segments, batch.places, strict=True):
        if place is not None:
            here = (place.row, slice(place.start, place.stop))
            total = float(targets_loss(logits[here], batch.targets[here]))
            pairs.append((total, segment))
            features.setdefault(segment.feature, []).append((total, segment.num_targets))
            rows.setdefault(place.row, []).append((total, segment.num_targets))
    own = [total / segment.num_targets for total, segment in pairs if segment.num_targets]
    total, (height, width) = sum(total for total, _ in pairs), batch.ids.shape
    yield sum(own) / max(1, len(own)), "a mean of per-sample means: each sample weighs the same"
    yield sum(own) / max(1, len(pairs)), "a mean of per-sample means over all samples, those without a target included"
    yield _mean_of_means(features), "a per-pack mean: each pack weighs the same"
    yield _mean_of_means(rows), "a mean of per-row means: each row weighs the same"
    yield total, "the sum over all targets"
    padded = f"divided by all {batch.ids.size} tokens of the batch, padding and prompts included"
    yield total / batch.ids.size, padded
    yield total / max(1, height * (width - 1)), f"{padded}, but for the last of a row"
    real = int((~batch.free).sum())
    yield total / max(1, real), f"divided by the {real} tokens of the samples, prompts included"
    yield total / max(1, real - len(pairs)), f"divided by the {real - len(pairs)} predicted tokens, prompts included"


def _mean_of_means(groups: dict[int, list[tuple[float, int]]]) -> float:
    sums = [(sum(total for total, _ in group), sum(count for _, count in group)) for group in groups.values()]
    means = [total / count for total, count in sums if count]
    return sum(means) / max(1, len(means))


def _solo(subject: Subject, index: int, labels: Int64Array) -> float | None:
    """The model's own loss of one sample alone; None where it gives none that way."""
    given = torch.from_numpy(labels).to(subject.device)[None]
    try:
        with torch.no_grad():
            _, loss = subject.loss({**subject.solo_kwargs(index), "labels": given})
    except Exception:  # an experiment: a loss that needs more than labels adds nothing that could be told
        return None
    return None if loss is None or not torch.isfinite(loss) else float(loss)


def _adds(subject: Subject, alone: Alone) -> bool | None:
    """Whether the model's loss of one sample alone is another than that of its logits; None where it gives none."""
    own = {
        index: _solo(subject, index, one.labels) for index, one in enumerate(subject.case.segments) if one.num_targets
    }
    told = {index: loss for index, loss in own.items() if loss is not None}
    if not told:
        return None
    means = {index: alone.sums[index] / subject.case.segments[index].num_targets for index in told}
    return any(_apart(means[index], loss) > subject.parity_limit for index, loss in told.items())


def _auxiliary(
    subject: Subject, batch: Collated, logits: torch.Tensor, size: float, names: tuple[str, ...]
) -> tuple[Auxiliary, str]:
    """What is added, and how targets are weighed wrongly beside it, if they are.

    The loss is taken again with other labels in one sample: what does not depend on labels falls out, and it must move
    by what the cross-entropies of that sample move, divided by the targets of all.
    """
    wrong = {}
    for index in range(len(subject.case.segments)):
        weight = _weight(subject, batch, logits, index)
        if weight is not None and abs(weight - 1) > _WEIGHT:
            wrong[index] = weight
    if not wrong:
        return Auxiliary(size, False, names), ""
    if any(abs(_weight_alone(subject, index) - 1) > _WEIGHT for index in wrong):
        return Auxiliary(size, True, names), ""
    index, weight = max(wrong.items(), key=lambda item: abs(item[1] - 1))
    return Auxiliary(size, False, names), (
        f"beside an auxiliary loss, targets of {subject.case.segments[index].name} weigh {weight:.2f} times what they "
        f"weigh in the mean over all targets"
    )


def _weight(subject: Subject, batch: Collated, logits: torch.Tensor, index: int) -> float | None:
    """How much the targets of a segment weigh in the model's loss, 1 if as all others; None where it has none."""
    assert batch.targets is not None
    kwargs, targets = other_labels(subject, batch, index)
    moved = float(targets_loss(logits, targets) - targets_loss(logits, batch.targets))
    if abs(moved) < _WEIGHT:
        return None
    with torch.no_grad():
        (_, before), (_, after) = subject.loss(batch.kwargs), subject.loss(kwargs)
    assert before is not None
    assert after is not None
    return float(after - before) * num_targets(batch) / moved


def _weight_alone(subject: Subject, index: int) -> float:
    """The same for a sample alone; 1 where it cannot be told."""
    segment = subject.case.segments[index]
    known = np.unique(np.concatenate([one.ids for one in subject.case.segments]))
    there = segment.labels != IGNORE_INDEX
    other = segment.labels.copy()
    other[there] = known[(np.searchsorted(known, other[there]) + 1) % len(known)]
    before, after = _solo(subject, index, segment.labels), _solo(subject, index, other)
    if before is None or after is None:
        return 1.0
    with torch.no_grad():
        logits = subject.solo(index)
    wanted = [np.concatenate([labels[1:], [IGNORE_INDEX]]) for labels in (segment.labels, other)]
    moved = float(targets_loss(logits, wanted[1]) - targets_loss(logits, wanted[0]))
    return (after - before) * segment.num_targets / moved if abs(moved) >= _WEIGHT else 1.0

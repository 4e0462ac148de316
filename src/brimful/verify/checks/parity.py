"""Are logits, loss and gradients of the batch those of the samples one by one?"""

from __future__ import annotations

import torch

from brimful.verify.report import Finding, Status
from brimful.verify.subject import Alone, Subject, difference, targets_loss

__all__ = ["check_parity"]


def check_parity(subject: Subject, attention: str, alone: Alone) -> list[Finding]:
    """Three findings; gradients only where the subject wants them."""
    batch, limit = subject.batch, subject.tolerance.parity
    with torch.set_grad_enabled(subject.with_gradients):
        logits, loss = subject.loss(batch.kwargs)
        if loss is None and batch.targets is not None:
            loss = targets_loss(logits, batch.targets) / max(1, int((batch.targets != -100).sum()))
        if subject.with_gradients and loss is not None:
            subject.model.zero_grad(set_to_none=True)
            loss.backward()
    return [
        _logits(subject, attention, alone, logits.detach(), limit),
        *([] if loss is None else [_loss(subject, attention, alone, float(loss.detach()), limit)]),
        *(_gradients(subject, attention, alone, limit) if loss is not None and subject.with_gradients else []),
    ]


def _logits(subject: Subject, attention: str, alone: Alone, logits: torch.Tensor, limit: float) -> Finding:
    worst, name = 0.0, ""
    for segment, place, own in zip(subject.case.segments, subject.batch.places, alone.logits, strict=True):
        if place is not None:
            found = difference(own, logits[place.row, place.start : place.stop])
            if found > worst:
                worst, name = found, segment.name
    status = Status.PASS if worst <= limit else Status.FAIL
    detail = "" if status is Status.PASS else f"{name} has other logits in the batch than alone"
    return Finding("logits", status, attention, worst, limit, detail)


def _loss(subject: Subject, attention: str, alone: Alone, loss: float, limit: float) -> Finding:
    total, count = sum(alone.sums), max(1, subject.case.num_targets)
    wanted = total / count
    worst = difference(torch.tensor([wanted]), torch.tensor([loss]))
    if worst <= limit:
        return Finding("loss", Status.PASS, attention, worst, limit)
    detail = f"{loss:.6f} in the batch, {wanted:.6f} as the mean over the {count} targets of the samples"
    cause, way_out = "", ""
    targets = subject.batch.targets
    right = targets is not None and int((targets != -100).sum()) == subject.case.num_targets
    for value, words in _other_means(subject, alone):
        if right and abs(value - loss) <= max(1e-4, limit) * max(1.0, abs(loss)) and abs(value - wanted) > 1e-6:
            cause = f"the loss is {words}, so some targets weigh more than others"
            way_out = "sum over all targets of the step and divide by their number, over all ranks"
            break
    return Finding("loss", Status.FAIL, attention, worst, limit, detail, cause, way_out)


def _other_means(subject: Subject, alone: Alone) -> list[tuple[float, str]]:
    """What else the loss could be."""
    pairs = [(total, segment) for total, segment in zip(alone.sums, subject.case.segments, strict=True)]
    features: dict[int, list[tuple[float, int]]] = {}
    rows: dict[int, list[tuple[float, int]]] = {}
    for (total, segment), place in zip(pairs, subject.batch.places, strict=True):
        features.setdefault(segment.feature, []).append((total, segment.num_targets))
        if place is not None:
            rows.setdefault(place.row, []).append((total, segment.num_targets))
    own = [total / segment.num_targets for total, segment in pairs if segment.num_targets]
    return [
        (sum(own) / max(1, len(own)), "a mean of per-sample means: each sample weighs the same"),
        (_mean_of_means(features), "a per-pack mean: each pack weighs the same"),
        (_mean_of_means(rows), "a mean of per-row means: each row weighs the same"),
        (sum(alone.sums), "the sum over all targets"),
    ]


def _mean_of_means(groups: dict[int, list[tuple[float, int]]]) -> float:
    sums = [(sum(total for total, _ in group), sum(count for _, count in group)) for group in groups.values()]
    means = [total / count for total, count in sums if count]
    return sum(means) / max(1, len(means))


def _gradients(subject: Subject, attention: str, alone: Alone, limit: float) -> list[Finding]:
    found = subject.gradients()
    if not found and not alone.gradients:
        return []
    worst, name = 0.0, ""
    for key in sorted({*found, *alone.gradients}):
        one, two = alone.gradients.get(key), found.get(key)
        one = torch.zeros_like(two) if one is None and two is not None else one
        two = torch.zeros_like(one) if two is None and one is not None else two
        assert one is not None
        assert two is not None
        size = difference(one.float(), two.float())
        if size > worst:
            worst, name = size, key
    status = Status.PASS if worst <= limit else Status.FAIL
    detail = "" if status is Status.PASS else f"largest in {name}"
    return [Finding("gradients", status, attention, worst, limit, detail)]

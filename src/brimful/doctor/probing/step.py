"""Step of an optimizer: its forwards, their targets, and what the loss is divided by.

::

    micro-batches   12 targets · 20 targets      the loss of the step is the sum of 32 losses ÷ 32:
    ranks           the same on each             num_items_in_batch of each forward must be 32, or
                                                 64 if it counts the targets of two ranks
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from brimful.base.typing import IGNORE_INDEX
from brimful.base.wording import counted
from brimful.doctor.batch.view import BatchView, Labeling
from brimful.doctor.batch.words import Role
from brimful.doctor.probing.findings import ROUTER_LOSSES, merged, shown
from brimful.doctor.probing.forwards import size_of
from brimful.doctor.probing.recorder import TokenGrid, outcome_of
from brimful.doctor.report import DoctorReport, Evidence, Finding, Judgment, Line

_TOLERANCE = 1e-2
"""Largest relative difference between a loss and its own sum ÷ divisor; a divisor farther from its
targets is wrong, a nearer one suspect.
"""

_DUE_TOLERANCE = 0.1
"""Largest difference between a first loss and the loss that it must be: two forwards round in two
ways.
"""

_EXACT = 2e-3
"""The same where a number is to be recognized: a low precision rounds no farther."""

_ROUNDING = 2e-5
"""The same of a loss and the very numbers that it is the mean of."""

_RIGHT_DIVISOR = "divide the sum over targets by the targets of the whole step"

_MAX_UNEVEN = 1.05
"""Largest ratio of targets of two micro-batches, or ranks, whose means are averaged."""


@dataclass
class StepCount:
    """Forwards of one rank until its optimizer makes a step.

    Attributes:
        targets: of each micro-batch.
        samples: of each micro-batch.
        num_items: targets of the step as the trainer counts them; None if it does not.
        repeats: forwards over tokens that the step has computed already.
        sizes: positions, tokens, rows and samples of the first micro-batch: a loss may be divided by
            one of them.
        total: sum of the losses of the first micro-batch; None if unknown.
        moved: sum and number of its losses with labels that are shifted once more, or not at all.
        extra: largest balance of experts that may be added to its loss.
        loss: of the first micro-batch: told by the loop, else returned by the model.
        divisor: of that loss; the targets of the micro-batch if None.
        due_loss: loss that the loop expects, such as ln 2 of DPO before its first step.
        is_told: the loop told the loss.
        is_part: ranks share rows, so a mean is over a part of each.
    """

    targets: list[int] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)
    num_items: float | None = None
    repeats: int = 0
    sizes: list[int] = field(default_factory=list)
    total: float | None = None
    moved: tuple[float, int] = 0.0, 0
    extra: float = 0.0
    loss: float | None = None
    divisor: float | None = None
    due_loss: float | None = None
    is_told: bool = False
    is_part: bool = False
    _tokens: list[bytes] = field(default_factory=list, repr=False)

    def add(self, view: BatchView, num_items: Any = None) -> None:
        """Count one forward with gradients; not if its labels have a form that nobody knows."""
        if view.labeling is Labeling.NONE and view.words_with(Role.LABELS, Role.SHIFTED_LABELS):
            return
        tokens = view.ids.tobytes()
        if tokens in self._tokens:
            self.repeats += 1
            return
        if not self._tokens:
            self.sizes = [view.ids.size, view.num_tokens, len(view.ids), len(view.segments)]
        self._tokens.append(tokens)
        self.targets.append(int((view.targets != IGNORE_INDEX).sum()))
        self.samples.append(len(view.segments))
        if self.num_items is None and num_items is not None:
            self.num_items = float(num_items)

    def add_outcome(
        self, output: Any, view: BatchView, columns: Any, config: Any, num_items: Any
    ) -> None:
        """Take the losses of the first micro-batch from the output of the job's own forward.

        Args:
            output: of the model.
            view: of the batch.
            columns: the ones of it that get logits.
            config: of the model.
            num_items: divisor that the model gets; None if it gets none.
        """
        if view.labeling is Labeling.NONE:  # a loop that masks labels out of sight
            return
        # Labels in another place: shifted once more, or not at all.
        neighbors = np.full(view.shape, IGNORE_INDEX)
        if view.labeling is Labeling.SHIFTED:
            neighbors[:, :-1] = view.targets[:, 1:]
        elif view.labeling is Labeling.AS_TOKENS and view.labels is not None:
            neighbors = view.labels
        vocab, shape = size_of(config, "vocab_size"), view.ids[:, columns].shape
        outcome, alternative = (
            outcome_of(output, targets[:, columns], TokenGrid(shape), vocab)
            for targets in (view.targets, neighbors)
        )
        if outcome.losses is None or np.isnan(outcome.losses).all():
            return
        self.total = float(np.nansum(outcome.losses))
        assert alternative.losses is not None
        self.moved = (
            float(np.nansum(alternative.losses)),
            int((~np.isnan(alternative.losses)).sum()),
        )
        extra_losses = {name: value for name, value in outcome.extra_losses.items() if value}
        weight = float(getattr(config, "router_aux_loss_coef", 0.0) or 0.0)
        self.extra = weight * sum(abs(value) for value in extra_losses.values())
        # Another addition to the loss has a weight that is not known.
        if extra_losses.keys() <= set(ROUTER_LOSSES):
            self.loss = outcome.loss
            self.divisor = None if num_items is None else float(num_items)

    def tell(
        self, loss: float, divisor: float | None, num_items: float | None, due: float | None
    ) -> None:
        """Take the loss of the first micro-batch from the loop, once."""
        if self.is_told:
            return
        self.is_told = True
        self.loss, self.divisor, self.due_loss = loss, divisor, due
        if self.num_items is None:
            self.num_items = num_items

    def as_dict(self) -> dict[str, Any]:
        """Return plain numbers, for other ranks."""
        return {name: value for name, value in asdict(self).items() if not name.startswith("_")}


def step_report(counts: Mapping[int, Mapping[str, Any]]) -> DoctorReport:
    """Return the report of a step from the counts of all ranks, each as ``StepCount.as_dict``.

    >>> count = StepCount([10], [2], total=20.0, loss=2.0)
    >>> print(*[line.text for line in step_report({0: count.as_dict()}).lines], sep="; ")
    sum of losses ÷ 10 targets of each micro-batch; 2 samples and 10 targets in a micro-batch
    """
    ranks = {rank: StepCount(**values) for rank, values in counts.items()}
    total = sum(sum(count.targets) for count in ranks.values())
    ranks = {rank: _with_divisor(count, total / len(ranks)) for rank, count in ranks.items()}
    reports = {
        rank: DoctorReport(
            "step", tuple(_lines(count, total)), tuple(_findings(count, total, len(ranks)))
        )
        for rank, count in ranks.items()
    }
    report = merged(reports)
    means = [sum(count.targets) for count in ranks.values() if _is_mean_of_rank(count)]
    if len(means) == len(ranks) and _are_uneven(means):
        detail = (
            f"each rank's loss is the mean over its own targets, and ranks have {min(means):,} to "
            f"{max(means):,} of them: a target's weight depends on its rank"
        )
        change = "divide the sum over targets by the targets of all ranks, times the ranks"
        finding = shown("divisor", detail, "divisor", change, Judgment.SUSPECT)
        return replace(report, findings=(*report.findings, finding))
    return report


def _with_divisor(count: StepCount, targets: float) -> StepCount:
    """Return the count with the divisor of the whole step, if its loss shows that it has this one.

    Args:
        count: of one rank.
        targets: of the step, ÷ ranks, as gradients are averaged over them.
    """
    if count.divisor or not count.total or not count.loss or _is_due(count):
        return count
    if not _is_near(count.loss * targets, count.total, _EXACT):
        return count
    return replace(count, divisor=targets)


def _are_uneven(targets: Sequence[int]) -> bool:
    return max(targets) > _MAX_UNEVEN * min(targets)


def _is_mean_of_rank(count: StepCount) -> bool:
    """Return whether the loss of a rank's step is divided by its own targets."""
    if count.is_part or count.num_items is None:
        return _is_mean(count) and not count.is_part
    return abs(count.num_items - sum(count.targets)) < 0.5


def _is_mean(count: StepCount) -> bool:
    """Return whether the loss is the mean over the targets of its micro-batch."""
    if count.loss is None or count.due_loss is not None or not count.targets:
        return False
    return not count.is_told if count.total is None else _is_due(replace(count, divisor=None))


def _is_near(loss: float, due: float, limit: float = _TOLERANCE) -> bool:
    return abs(loss - due) <= limit * max(abs(due), 1e-6)


def _lines(count: StepCount, total: int) -> Iterator[Line]:
    if not count.targets:
        return
    if count.loss is None or count.total is None or count.due_loss is not None:
        text = "nothing told the loss, or the losses of its targets, so they were not compared"
        yield Line("divisor", text)
    elif _is_due(count):
        yield Line("divisor", f"sum of losses ÷ {_divisor(count)[1]}", Evidence.SHOWN)
    elif not any(_loss_findings(count, total)):
        yield Line("divisor", f"{_comparison(count)}: what else is in it was not looked at")
    number = len(count.targets)
    place = "a micro-batch" if number == 1 else f"{number} micro-batches"
    text = f"{counted(sum(count.samples), 'sample')} and {counted(sum(count.targets), 'target')}"
    yield Line("step", f"{text} in {place}", Evidence.SEEN)


def _findings(count: StepCount, total: int, num_ranks: int) -> Iterator[Finding]:
    """Yield what is wrong with the step of one rank.

    Args:
        count: of the rank.
        total: targets of all ranks.
        num_ranks: ranks that count.
    """
    yield from _loss_findings(count, total)
    if not count.targets:
        return
    if count.num_items is not None:
        yield from _counted_items(count, total, num_ranks)
    elif _is_mean(count) and _are_uneven(count.targets):
        detail = (
            f"the loss is the mean of each micro-batch, and these have {min(count.targets):,} to "
            f"{max(count.targets):,} targets: a target's weight depends on its micro-batch"
        )
        yield shown("divisor", detail, "divisor", _RIGHT_DIVISOR, Judgment.SUSPECT)
    if count.repeats:
        number = counted(count.repeats, "forward")
        detail = f"{number} of a step had tokens that the step had computed already"
        change = "look for a fallback that computes the batch again"
        yield shown("step", detail, "computed_twice", change, Judgment.SUSPECT)


def _divisor(count: StepCount) -> tuple[float, str]:
    """Return the divisor of the first micro-batch, and its name."""
    if count.divisor is None:
        return count.targets[0], f"{counted(count.targets[0], 'target')} of each micro-batch"
    if count.divisor == count.num_items:
        return count.divisor, f"num_items_in_batch ({count.divisor:,.6g})"
    return count.divisor, f"{count.divisor:,.6g}"


def _loss_findings(count: StepCount, total: int) -> Iterator[Finding]:
    """Compare a loss with what it must be, or times its divisor with the sum of losses."""
    loss, due = count.loss, count.due_loss
    if loss is None:
        return
    if due is not None:
        if abs(loss - due) > _DUE_TOLERANCE * max(1.0, abs(due)):
            detail = f"the first loss is {loss:.4g}, and before any step it must be {due:.4g}"
            change = "give both forwards (model and reference) the same samples in the same layout"
            yield shown("divisor", detail, "padding_as_samples", change)
        return
    if count.total is None or not count.targets or _is_due(count):
        return
    if _is_moved(count):
        detail = (
            f"the loss is {loss:.6g}, the loss of labels that stand one place off: they are shifted "
            "twice (by collator and model), or never"
        )
        change = "shift labels once: in the collator, or in the model"
        yield shown("targets", detail, "wrong_targets", change)
        return
    divisor = count.total / loss if loss else 0.0
    is_larger = divisor < _divisor(count)[0]
    # Something may be added to a larger loss, as label smoothing is; a told one may be of any kind.
    may_be_other = count.is_told and count.divisor is None and not math.isnan(loss)
    if (is_larger or may_be_other) and not _is_size(divisor, count, total):
        return
    detail = _comparison(count) + (f": it is divided by {divisor:,.4g}" if loss else "")
    judgment = Judgment.SUSPECT if is_larger else Judgment.WRONG
    yield shown("divisor", detail, "divisor", _RIGHT_DIVISOR, judgment)


def _is_size(divisor: float, count: StepCount, total: int) -> bool:
    """Return whether a divisor is a size of the step; or, to the last digits, the rows times a power
    of two, such as 4096: a maximum length that no row has to reach.
    """
    first = count.targets[0]
    of_step = sum(count.targets), first * len(count.targets), total
    sizes = *count.sizes, first, first - count.samples[0], *of_step
    return any(_is_near(divisor, size, _EXACT) for size in sizes) or any(
        abs((power := math.log2(divisor / rows)) - round(power)) < _ROUNDING
        for rows in count.sizes[2:3]
        if divisor >= rows
    )


def _comparison(count: StepCount) -> str:
    return (
        f"the loss is {count.loss:.4g}, and the sum of losses {count.total:.4g} ÷ "
        f"{_divisor(count)[1]} is {_due(count):.4g}"
    )


def _due(count: StepCount) -> float:
    """Return the sum of losses ÷ the divisor."""
    assert count.total is not None
    return count.total / max(1.0, _divisor(count)[0])


def _is_due(count: StepCount) -> bool:
    """Return whether a loss is its sum of losses ÷ its divisor, perhaps with a balance of experts."""
    assert count.loss is not None
    due = _due(count)
    # A loop may tell its mean ÷ micro-batches; a divisor of the step has them already.
    is_mean = count.is_told and count.divisor is None
    is_part = is_mean and _is_near(count.loss * len(count.targets), due)
    is_near = due * (1 - _TOLERANCE) <= count.loss <= due * (1 + _TOLERANCE) + count.extra
    return (is_near or is_part) and not _is_moved(count)


def _is_moved(count: StepCount) -> bool:
    """Return whether a loss is, to the last digits, the one of labels in another place."""
    assert count.loss is not None
    total, number = count.moved
    return (
        number > 0
        and _is_near(count.loss, total / (count.divisor or number), _ROUNDING)
        and not _is_near(count.loss, _due(count), 8 * _ROUNDING)
    )


def _counted_items(count: StepCount, total: int, num_ranks: int) -> Iterator[Finding]:
    """Compare num_items_in_batch with the targets of the step, on this rank or on all.

    Ranks of tensor or context parallelism count a target several times, or parts of it.
    """
    assert count.num_items is not None
    number, num_targets = count.num_items, sum(count.targets)
    shares = [total / part for part in range(1, num_ranks + 1) if num_ranks % part == 0]
    nearest = min([num_targets, *shares], key=lambda targets: abs(targets - number))
    gap = abs(nearest - number)
    if gap < 0.5:
        return
    everywhere = f", {total:,} on all ranks" if num_ranks > 1 else ""
    detail = (
        f"num_items_in_batch is {number:,.6g}, and the step has {num_targets:,} targets{everywhere}"
    )
    judgment = Judgment.WRONG if gap > _TOLERANCE * max(1, nearest) else Judgment.SUSPECT
    change = "count the targets of the step once: labels that are not -100, as the loss sees them"
    yield shown("divisor", detail, "divisor", change, judgment)

"""Step of an optimizer: its forwards, their targets, and what the loss is divided by.

::

    micro-batches   12 targets · 20 targets      the loss of the step is the sum of 32 losses ÷ 32:
    ranks           the same on each             num_items_in_batch of each forward must be 32, or
                                                 64 if it counts the targets of two ranks
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from brimful.base.typing import IGNORE_INDEX
from brimful.base.wording import counted
from brimful.doctor.batch.view import BatchView, Labeling
from brimful.doctor.batch.words import Role
from brimful.doctor.probing.findings import ROUTER_LOSSES, merged, shown
from brimful.doctor.probing.recorder import Outcome
from brimful.doctor.report import DoctorReport, Evidence, Finding, Judgment, Line

_TOLERANCE = 1e-2
"""Largest relative difference between a loss and its own sum ÷ divisor; a divisor farther from its
targets is wrong, a nearer one suspect.
"""

_DUE_TOLERANCE = 0.1
"""Largest difference between a first loss and the loss that it must be: two forwards round in two
ways.
"""

_MAX_UNEVEN = 1.05
"""Largest ratio of targets of two micro-batches whose means are averaged."""


@dataclass
class StepCount:
    """Forwards of one rank until its optimizer makes a step.

    Attributes:
        targets: of each micro-batch.
        samples: of each micro-batch.
        num_items: targets of the step as the trainer counts them; None if it does not.
        repeats: forwards over tokens that the step has computed already.
        total: sum of the losses of the first micro-batch; None if unknown.
        extra: largest balance of experts that may be added to its loss.
        loss: of the first micro-batch: told by the loop, else returned by the model.
        divisor: of that loss; the targets of the micro-batch if None.
        due_loss: loss that the loop expects, such as ln 2 of DPO before its first step.
        is_told: the loop told the loss.
    """

    targets: list[int] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)
    num_items: float | None = None
    repeats: int = 0
    total: float | None = None
    extra: float = 0.0
    loss: float | None = None
    divisor: float | None = None
    due_loss: float | None = None
    is_told: bool = False
    _tokens: list[bytes] = field(default_factory=list, repr=False)

    def add(self, view: BatchView, num_items: Any = None) -> None:
        """Count one forward with gradients; not if its labels have a form that nobody knows."""
        if view.labeling is Labeling.NONE and view.words_with(Role.LABELS, Role.SHIFTED_LABELS):
            return
        tokens = view.ids.tobytes()
        if tokens in self._tokens:
            self.repeats += 1
            return
        self._tokens.append(tokens)
        self.targets.append(int((view.targets != IGNORE_INDEX).sum()))
        self.samples.append(len(view.segments))
        if self.num_items is None and num_items is not None:
            self.num_items = float(num_items)

    def add_outcome(self, outcome: Outcome, config: Any, num_items: Any = None) -> None:
        """Take the losses of the first micro-batch from its forward."""
        if outcome.losses is None or np.isnan(outcome.losses).all():
            return
        self.total = float(np.nansum(outcome.losses))
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
    reports = {
        rank: DoctorReport("step", tuple(_lines(count)), tuple(_findings(count, total, len(ranks))))
        for rank, count in ranks.items()
    }
    return merged(reports)


def _lines(count: StepCount) -> Iterator[Line]:
    if not count.targets:
        return
    is_mean = count.loss is not None and count.total is not None and count.due_loss is None
    if is_mean and not any(_loss_findings(count)):
        yield Line("divisor", f"sum of losses ÷ {_divisor(count)[1]}", Evidence.SHOWN)
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
    yield from _loss_findings(count)
    if not count.targets:
        return
    if count.num_items is not None:
        yield from _counted_items(count, total, num_ranks)
    elif (
        count.loss is not None
        and not count.is_told
        and max(count.targets) > _MAX_UNEVEN * min(count.targets)
    ):
        detail = (
            f"the loss is the mean of each micro-batch, and these have {min(count.targets):,} to "
            f"{max(count.targets):,} targets: a target's weight depends on its micro-batch"
        )
        change = "divide the sum over targets by the targets of the whole step"
        yield shown("divisor", detail, "divisor", change, Judgment.SUSPECT)
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


def _loss_findings(count: StepCount) -> Iterator[Finding]:
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
    if count.total is None or not count.targets:
        return
    divisor, name = _divisor(count)
    due = count.total / max(1.0, divisor)
    tolerance = _TOLERANCE * max(abs(due), 1e-6)
    if due - tolerance <= loss <= due + count.extra + tolerance:
        return
    actual = f": it is divided by {count.total / loss:,.4g}" if loss else ""
    detail = (
        f"the loss is {loss:.4g}, and the sum of losses {count.total:.4g} ÷ {name} is {due:.4g}"
    )
    # A larger loss may have something added to it.
    judgment = Judgment.WRONG if loss < due else Judgment.SUSPECT
    change = "divide the sum over targets by the targets of the whole step"
    yield shown("divisor", detail + actual, "divisor", change, judgment)


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

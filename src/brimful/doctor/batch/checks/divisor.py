"""Divisor of the loss: the targets of a step, or another number?"""

from collections.abc import Iterator, Sequence

from brimful.base.wording import counted, percent
from brimful.doctor.batch.checks.case import BatchCase, wrong
from brimful.doctor.batch.words import Role
from brimful.doctor.report import Finding

_TOPIC = "divisor"


def check_own_divisor(case: BatchCase) -> Iterator[Finding]:
    """Check that a divisor in the batch is no less than its targets.

    It may be more: other micro-batches and ranks add to a step.
    """
    for word in case.view.words_with(Role.DIVISOR):
        if word.array is None or word.array.size != 1 or not case.has_labels:
            continue
        number = int(word.array.reshape(-1)[0])
        if number < case.num_targets:
            yield wrong(
                _TOPIC,
                "divisor",
                f"{word} is {number:,}, and this batch has "
                f"{counted(case.num_targets, 'target')}{_explained(number, [case])}",
                f"{word}: the targets of all micro-batches and ranks of a step",
            )


def check_step_divisor(cases: Sequence[BatchCase]) -> Iterator[Finding]:
    """Compare the divisor that the caller names with the targets of all batches."""
    number = cases[0].facts.num_items
    targets = sum(case.num_targets for case in cases)
    if number is None or number == targets or not all(case.has_labels for case in cases):
        return
    batches = "the batch has" if len(cases) == 1 else f"the {len(cases):,} batches have"
    ratio = f": the loss is {number / targets:.3f} times as small" if targets else ""
    yield wrong(
        _TOPIC,
        "divisor",
        f"the divisor is {number:,}, and {batches} {counted(targets, 'target')}"
        f"{_explained(number, cases)}{ratio}",
        f"num_items_in_batch: {targets}",
    )


def _explained(number: int, cases: Sequence[BatchCase]) -> str:
    """Return a likely reason for another number, in words; empty without one."""
    targets = sum(case.num_targets for case in cases)
    segments = sum(len(case.view.segments) for case in cases)
    tokens = sum(case.view.num_tokens for case in cases)
    positions = sum(case.view.ids.size for case in cases)
    reasons = {
        targets - segments: f"the {segments} boundaries are taken off a second time",
        targets - len(cases): "one target of each batch is left out",
        positions: "padding is counted as well",
        tokens: "all tokens are counted",
        tokens - segments: "all tokens but the first of each sample are counted",
        segments: "samples are counted",
    }
    reason = reasons.get(number)
    if reason is None and targets and number < targets:
        return f" ({percent(number / targets)} of them)"
    return f" ({reason})" if reason else ""

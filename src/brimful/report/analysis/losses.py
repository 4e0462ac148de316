"""Losses of a plan as shares of its input, and the line that warns of large ones."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from brimful.messages import counted
from brimful.plan import Plan
from brimful.plan.ledger import MUCH_LOST, drop_reason
from brimful.report.analysis.numbers import percent


@dataclass(frozen=True)
class Losses:
    """Samples and tokens that came in and are in no pack.

    Attributes:
        samples: samples that were dropped whole.
        samples_ratio: ``samples`` ÷ all samples.
        tokens: tokens of dropped samples, and tokens that were cut off.
        tokens_ratio: ``tokens`` ÷ all tokens.
        cut: samples that lost their beginning or end.
        why: the reason in words.
    """

    samples: int
    samples_ratio: float
    tokens: int
    tokens_ratio: float
    cut: int
    why: str

    @classmethod
    def of(cls, plan: Plan) -> Losses:
        """Return the losses of one plan.

        >>> from brimful.plan import plan_packs
        >>> losses = Losses.of(plan_packs([3, 5, 12], capacity=8, overflow="drop"))
        >>> losses.samples, losses.tokens, losses.tokens_ratio
        (1, 12, 0.6)
        >>> losses.warning
        '60.00 % of the tokens are lost, with 33.33 % of the samples: longer than 8 tokens, overflow policy drop'
        """
        ledger = plan.ledger
        # Reasons are noted by name only with several budgets or with samples without a target.
        reasons = [f"{count:,} {drop_reason(name)}" for name, count in plan.outcome.dropped_by.items()]
        why = f"dropped {', '.join(reasons)}" if reasons else f"longer than {counted(plan.capacity, 'token')}"
        return cls(
            samples=ledger.samples_dropped,
            samples_ratio=ledger.samples_dropped / max(1, ledger.samples_in),
            tokens=ledger.tokens_dropped + ledger.tokens_truncated,
            tokens_ratio=ledger.lost_ratio,
            cut=ledger.samples_truncated,
            why=f"{why}, overflow policy {plan.settings.overflow_policy.value}",
        )

    @property
    def warning(self) -> str | None:
        """One sentence without its full stop; None if the loss is small."""
        if self.tokens_ratio < MUCH_LOST:
            return None
        parts = []
        if self.samples:
            parts.append(f"with {percent(self.samples_ratio, 2)} of the samples")
        if self.cut:
            parts.append(f"cut off {counted(self.cut, 'sample')}")
        return f"{percent(self.tokens_ratio, 2)} of the tokens are lost, {' and '.join(parts)}: {self.why}"

    def as_dict(self) -> dict[str, Any]:
        """Return a dictionary for JSON."""
        return {**asdict(self), "warning": self.warning}

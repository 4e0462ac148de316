"""What a plan leaves out, as shares of what came in, and the line that warns where it is much."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from brimful.messages import counted
from brimful.plan import Plan
from brimful.plan.ledger import MUCH_LOST, drop_reason
from brimful.report.markup import percent

__all__ = ["Lost"]


@dataclass(frozen=True)
class Lost:
    """What was in the lengths and is in no pack.

    Attributes:
        samples: that were dropped whole.
        samples_ratio: of all samples.
        tokens: of dropped samples, and those that were cut off.
        tokens_ratio: of all tokens.
        cut: samples that lost their beginning or end.
        why: what was too long for what.
    """

    samples: int
    samples_ratio: float
    tokens: int
    tokens_ratio: float
    cut: int
    why: str

    @classmethod
    def of(cls, plan: Plan) -> Lost:
        """The losses of one plan.

        >>> from brimful.plan import plan_packs
        >>> lost = Lost.of(plan_packs([3, 5, 12], capacity=8, overflow="drop"))
        >>> lost.samples, lost.tokens, lost.tokens_ratio
        (1, 12, 0.6)
        >>> lost.warning
        '60.00 % of the tokens are lost, with 33.33 % of the samples: longer than 8 tokens, overflow policy drop'
        """
        ledger = plan.ledger
        tokens = ledger.tokens_dropped + ledger.tokens_truncated
        reasons = [f"{count:,} {drop_reason(name)}" for name, count in plan.settings.get("dropped_by", {}).items()]
        why = f"dropped {', '.join(reasons)}" if reasons else f"longer than {counted(plan.capacity, 'token')}"
        return cls(
            samples=ledger.samples_dropped,
            samples_ratio=ledger.samples_dropped / max(1, ledger.samples_in),
            tokens=tokens,
            tokens_ratio=tokens / max(1, ledger.tokens_in),
            cut=ledger.samples_truncated,
            why=f"{why}, overflow policy {plan.settings.get('overflow')}",
        )

    @property
    def is_much(self) -> bool:
        """Whether it deserves a warning."""
        return self.tokens_ratio >= MUCH_LOST

    @property
    def warning(self) -> str | None:
        """One sentence without its end, None where little is lost."""
        if not self.is_much:
            return None
        parts = []
        if self.samples:
            parts.append(f"with {percent(self.samples_ratio, 2)} of the samples")
        if self.cut:
            parts.append(f"cut off {counted(self.cut, 'sample')}")
        where = " and ".join(parts)
        return f"{percent(self.tokens_ratio, 2)} of the tokens are lost, {where}: {self.why}"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "warning": self.warning}

"""Shares of the sources of a plan: requested, and realized in its packs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from brimful.messages import counted


@dataclass(frozen=True)
class SourceDraws:
    """One source of a mixture in the packs of a plan.

    Attributes:
        source: name of the source.
        begin: its first sample.
        requested: requested share.
        realised: share in the packs, in the unit of the mixture.
        samples: number of samples that can be packed.
        draws: number of packed samples, with repeats.
        distinct: number of distinct packed samples.
        left: number of samples left for later epochs.
        tokens: number of packed tokens, with repeats.
        packs: number of packs of this source; None if sources share packs.
        factor: weight of its targets in the loss; None unless the mixture is weighted by loss.
        exhausted: true if the source ran out at its limit while others continued.
    """

    source: str
    begin: int
    requested: float
    realised: float
    samples: int
    draws: int
    distinct: int
    left: int
    tokens: int
    packs: int | None = None
    factor: float | None = None
    exhausted: bool = False

    def describe(self) -> str:
        """Return one line on the source."""
        repeats = self.draws - self.distinct
        parts = [
            f"{100 * self.requested:.2f} % asked for, {100 * self.realised:.2f} % packed",
            f"{counted(self.draws, 'sample')}, {counted(self.tokens, 'token')}",
        ]
        if repeats:
            parts.append(f"{counted(repeats, 'repeat')}")
        if self.left:
            parts.append(f"{self.left:,} left for later epochs")
        if self.exhausted:
            parts.append("ran out before the end")
        if self.factor is not None:
            parts.append(f"targets count {self.factor:.4g}")
        return f"{self.source}: {'; '.join(parts)}"


def sources_of_record(mixed: Mapping[str, Any]) -> list[SourceDraws]:
    """Read the sources from ``PlanOutcome.mixed``; none for a plan without a mixture.

    >>> sources_of_record({})
    []
    """
    names = {option.name for option in fields(SourceDraws)}
    return [
        SourceDraws(**{name: value for name, value in record.items() if name in names})
        for record in mixed.get("sources", ())
    ]


def describe_mixture(mixed: Mapping[str, Any], spec: Mapping[str, Any]) -> str:
    """Return one line on all sources together: how close the shares are, repeats, and samples left.

    Args:
        mixed: ``PlanOutcome.mixed``.
        spec: ``Mixture.as_dict()``.
    """
    sources = sources_of_record(mixed)
    repeats = sum(source.draws - source.distinct for source in sources)
    num_left = sum(source.left for source in sources)
    if spec.get("weighting") == "loss":
        return f"{counted(len(sources), 'source')}, weighted by loss: every sample once, and its targets weigh"
    worst = max((abs(source.realised - source.requested) for source in sources), default=0.0)
    order = str(spec.get("order", "mix_then_pack")).replace("_", " ")
    end = "; all sources ran out before the target" if mixed.get("short") else ""
    return (
        f"{counted(len(sources), 'source')}, {order}, shares of {spec.get('unit', 'samples')} within {100 * worst:.2f} % of "
        f"the request; {counted(repeats, 'repeat')}, {counted(num_left, 'sample')} left for later epochs{end}"
    )

"""Shares of the sources of a plan: requested, and realized in its packs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from brimful.base.ragged import sums_of
from brimful.base.typing import Int64Array, Offsets
from brimful.base.wording import counted
from brimful.mixtures.draws import Elements, MixtureDraw
from brimful.mixtures.mixture import MixOrder, Mixture, MixUnit, Weighting


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
        phrases = [
            f"{100 * self.requested:.2f} % asked for, {100 * self.realised:.2f} % packed",
            f"{counted(self.draws, 'sample')}, {counted(self.tokens, 'token')}",
        ]
        if repeats:
            phrases.append(f"{counted(repeats, 'repeat')}")
        if self.left:
            phrases.append(f"{self.left:,} left for later epochs")
        if self.exhausted:
            phrases.append("ran out before the end")
        if self.factor is not None:
            phrases.append(f"targets count {self.factor:.4g}")
        return f"{self.source}: {'; '.join(phrases)}"


def mixture_record(
    samples: Elements,
    starts: Offsets,
    mixture: Mixture,
    draws: Int64Array,
    *,
    result: MixtureDraw | None = None,
    targets: Int64Array | None = None,
) -> dict[str, Any]:
    """Return the outcome of a mixture for JSON: for each source, the requested share and the
    realized share.

    Args:
        samples: samples of the sources that can be packed.
        starts: ``int64[num_sources + 1]``, first sample of each source, counting dropped and
            rejected samples.
        mixture: the request.
        draws: ``int64[num_samples]``, how often each sample is packed.
        result: the draws of samples or packs; None in a mixture weighted by loss.
        targets: ``int64[num_samples]``, targets of the loss in the segments of each sample, to
            which shares of tokens refer in a mixture weighted by loss. None if they were not
            measured.
    """
    bounds = samples.bounds
    shares = np.array([mixture.shares[name] for name in samples.names])
    columns: dict[str, Any] = {
        "begin": starts[:-1],
        "requested": shares,
        "samples": np.diff(bounds),
        "draws": sums_of(draws, bounds),
        "distinct": sums_of(np.minimum(draws, 1), bounds),
        "tokens": sums_of(draws * samples.tokens, bounds),
    }
    columns["left"] = columns["samples"] - columns["distinct"]
    unit = "tokens" if mixture.unit is MixUnit.TOKENS else "draws"
    if result is not None and mixture.order is MixOrder.PACK_THEN_MIX:
        columns["packs"] = np.bincount(result.sources, minlength=len(shares))
        unit = "tokens" if unit == "tokens" else "packs"
    amounts = columns[unit] if unit != "tokens" or targets is None else sums_of(targets, bounds)
    realised = amounts / max(1, int(amounts.sum()))
    columns["realised"] = realised
    if mixture.weighting is Weighting.LOSS:
        columns["factor"] = np.divide(
            shares, realised, out=np.zeros_like(shares), where=realised > 0
        )
    records = [
        {"source": name, **dict(zip(columns, values, strict=True))}
        for name, *values in zip(
            samples.names, *(column.tolist() for column in columns.values()), strict=True
        )
    ]
    for record in records:
        if result is not None and record["source"] in result.exhausted:
            record["exhausted"] = True
    return {
        "sources": records,
        **({"short": True} if result is not None and result.is_short else {}),
    }


def sources_of_record(mixed: Mapping[str, Any]) -> list[SourceDraws]:
    """Read the sources from ``PlanOutcome.drawn``; none for a plan without a mixture.

    >>> sources_of_record({})
    []
    """
    return [SourceDraws(**record) for record in mixed.get("sources", ())]


def describe_mixture(mixed: Mapping[str, Any], spec: Mapping[str, Any]) -> str:
    """Return one line on all sources together: how close the shares are, repeats, and samples left.

    Args:
        mixed: ``PlanOutcome.drawn``.
        spec: ``Mixture.as_dict()``.
    """
    sources = sources_of_record(mixed)
    repeats = sum(source.draws - source.distinct for source in sources)
    num_left = sum(source.left for source in sources)
    if spec.get("weighting") == "loss":
        return (
            f"{counted(len(sources), 'source')}, weighted by loss: every sample once, and its "
            "targets weigh"
        )
    worst = max((abs(source.realised - source.requested) for source in sources), default=0.0)
    order = str(spec.get("order", "mix_then_pack")).replace("_", " ")
    end = "; all sources ran out before the target" if mixed.get("short") else ""
    return (
        f"{counted(len(sources), 'source')}, {order}, shares of {spec.get('unit', 'samples')} "
        f"within {100 * worst:.2f} % of the request; {counted(repeats, 'repeat')}, "
        f"{counted(num_left, 'sample')} left for later epochs{end}"
    )

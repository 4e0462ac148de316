"""Shares of the sources of a plan: requested, and realized in its packs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from brimful.base.ragged import sums_of
from brimful.base.typing import Int64Array
from brimful.base.wording import counted
from brimful.plan.policies.mixture_draw import MixedSamples, MixtureDraw
from brimful.plan.policies.mixture_request import MixOrder, Mixture, MixUnit, Weighting


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


def mixture_record(
    samples: MixedSamples,
    mixture: Mixture,
    draws: Int64Array,
    *,
    result: MixtureDraw | None = None,
    targets: Int64Array | None = None,
) -> dict[str, Any]:
    """Return the outcome of a mixture for JSON: for each source, the requested share and the realized share.

    Args:
        samples: samples of the sources.
        mixture: the request.
        draws: ``int64[num_samples]``, how often each sample is packed.
        result: the draws of samples or packs; None in a mixture weighted by loss.
        targets: ``int64[num_samples]``, targets of the loss in the segments of each sample, to which shares of tokens
            refer in a mixture weighted by loss. None if they were not measured.
    """
    records: list[dict[str, Any]] = []
    draws_packs = result is not None and mixture.order is MixOrder.PACK_THEN_MIX
    for number, name in enumerate(samples.names):
        part = slice(int(samples.bounds[number]), int(samples.bounds[number + 1]))
        times = draws[part]
        distinct = int(np.count_nonzero(times))
        record: dict[str, Any] = {
            "source": name,
            "begin": int(samples.begins[number]),
            "requested": mixture.shares[name],
            "samples": len(times),
            "draws": int(times.sum()),
            "distinct": distinct,
            "left": len(times) - distinct,
            "tokens": int((times * samples.tokens[part]).sum()),
        }
        if result is not None and draws_packs:
            record["packs"] = int(np.count_nonzero(result.sources == number))
        if result is not None and name in result.exhausted:
            record["exhausted"] = True
        records.append(record)
    unit = "tokens" if mixture.unit is MixUnit.TOKENS else "packs" if draws_packs else "draws"
    amounts = [record[unit] for record in records]
    if unit == "tokens" and targets is not None:
        amounts = sums_of(targets, samples.bounds).tolist()
    total = max(1, sum(amounts))
    for record, amount in zip(records, amounts, strict=True):
        record["realised"] = amount / total
        if mixture.weighting is Weighting.LOSS:
            record["factor"] = record["requested"] / record["realised"] if record["realised"] else 0.0
    return {"sources": records, **({"short": True} if result is not None and result.is_short else {})}


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

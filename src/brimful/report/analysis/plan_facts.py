"""Numbers on the packs of a plan, and on its losses."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from brimful.base.fingerprint import short
from brimful.base.wording import counted, percent
from brimful.plan import Plan
from brimful.plan.counts.histogram import Histogram
from brimful.plan.ledger import MUCH_LOST, drop_reason
from brimful.plan.order.diversity import Variety
from brimful.report.analysis.length_facts import Bin, count_bins, percentiles, ratio_edges, step_edges

MAX_ALIKENESS = 1.5
"""Likeness of a pack's segments above which mixing is recommended; 1 is the likeness by chance."""

_FILL_BINS = 20
_FILL_WIDTHS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Widths of a bin of fill, percent; the widest covers everything."""


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
        warning: one sentence without its period; None if the loss is small.
    """

    samples: int
    samples_ratio: float
    tokens: int
    tokens_ratio: float
    cut: int
    why: str
    warning: str | None

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
        # Reasons are recorded only for several budgets or for samples without a target.
        reasons = [f"{count:,} {drop_reason(name)}" for name, count in plan.outcome.dropped_by.items()]
        why = f"dropped {', '.join(reasons)}" if reasons else f"longer than {counted(plan.capacity, 'token')}"
        why = f"{why}, overflow policy {plan.settings.overflow_policy.value}"
        tokens_ratio, samples_ratio = ledger.lost_ratio, ledger.samples_dropped / max(1, ledger.samples_in)
        losses = {
            f"with {percent(samples_ratio, 2)} of the samples": ledger.samples_dropped,
            f"cut off {counted(ledger.samples_truncated, 'sample')}": ledger.samples_truncated,
        }
        words = " and ".join(text for text, count in losses.items() if count)
        warning = f"{percent(tokens_ratio, 2)} of the tokens are lost, {words}: {why}"
        return cls(
            samples=ledger.samples_dropped,
            samples_ratio=samples_ratio,
            tokens=ledger.tokens_dropped + ledger.tokens_truncated,
            tokens_ratio=tokens_ratio,
            cut=ledger.samples_truncated,
            why=why,
            warning=None if tokens_ratio < MUCH_LOST else warning,
        )


@dataclass(frozen=True)
class FillFacts:
    """Packs by fill.

    Attributes:
        least, median: fill of the emptiest pack and of the middle one.
        full: packs that are full to the last token.
        below: packs that are emptier than the first edge.
        edges: percent; a bin holds its upper edge.
        packs: packs in each bin.
    """

    least: float
    median: float
    full: int
    below: int
    edges: list[float]
    packs: list[int]

    @classmethod
    def of(cls, plan: Plan) -> FillFacts:
        """Count packs in bins from a round percentage up to full; nearly all packs lie in them."""
        tokens = np.sort(plan.pack_tokens)
        num_packs = len(tokens)
        # The narrowest bins of at least one token that hold 99 % of the packs.
        low = 100.0 * float(tokens[int(0.01 * num_packs)]) / plan.capacity
        widths = (width for width in _FILL_WIDTHS if width * plan.capacity >= 100 and 100 - _FILL_BINS * width <= low)
        width = next(widths, _FILL_WIDTHS[-1])
        edges = 100 - width * np.arange(_FILL_BINS, -1, -1)
        # A token count on an edge may be off by rounding of the percentage: 1e-6 of a token mends it.
        cumulative = np.searchsorted(tokens, np.floor(edges / 100 * plan.capacity + 1e-6), side="right")
        # The last edge is full by definition.
        cumulative[-1] = num_packs
        return cls(
            least=float(tokens[0]) / plan.capacity,
            median=float(tokens[(num_packs - 1) // 2]) / plan.capacity,
            full=int(num_packs - np.searchsorted(tokens, plan.capacity)),
            below=int(cumulative[0]),
            edges=[round(edge, 4) for edge in edges.tolist()],
            packs=np.diff(cumulative).tolist(),
        )


@dataclass(frozen=True)
class SizeFacts:
    """Packs by their number of samples (segments).

    Attributes:
        mean, least, median, most: samples of a pack.
        logarithmic: true if the bins have equal ratios.
        classes: the bins.
    """

    mean: float
    least: int
    median: int
    most: int
    logarithmic: bool
    classes: list[Bin]

    @classmethod
    def of(cls, plan: Plan) -> SizeFacts:
        """Count packs in bins of equal ratios if sizes differ much, else of equal width."""
        sizes = Histogram.of(np.diff(plan.offsets))
        minimum, median, maximum = percentiles(sizes, (0.0, 50.0, 100.0))
        # Equal steps would put nearly all packs into the first bin.
        is_wide = maximum > 40 and maximum > 8 * median
        edges = ratio_edges(minimum, maximum) if is_wide else step_edges(minimum, maximum)
        return cls(sizes.total / sizes.num_items, minimum, median, maximum, is_wide, count_bins(sizes, edges))


@dataclass(frozen=True)
class PlanFacts:
    """Numbers on one plan.

    Attributes:
        plan: the plan itself.
        losses: samples and tokens in no pack.
        variety: difference of packs from the data; None for a plan without packs, as are the next two.
        fill: packs by fill.
        sizes: packs by number of samples.
    """

    plan: Plan
    losses: Losses
    variety: Variety | None
    fill: FillFacts | None
    sizes: SizeFacts | None

    @classmethod
    def of(cls, plan: Plan, variety: Variety | None) -> PlanFacts:
        """Summarize a plan."""
        fill, sizes = (FillFacts.of(plan), SizeFacts.of(plan)) if plan.num_packs else (None, None)
        return cls(plan, Losses.of(plan), variety, fill, sizes)

    @property
    def is_uniform(self) -> bool:
        """True if segments of a pack are more alike than chance makes them, so that mixing helps."""
        return self.variety is not None and self.variety.packs.alikeness > MAX_ALIKENESS

    def as_dict(self) -> dict[str, Any]:
        """Return a dictionary for JSON."""
        plan = self.plan
        return {
            "capacity": plan.capacity,
            "num_packs": plan.num_packs,
            "lower_bound": plan.bound,
            "fill_ratio": plan.fill_ratio,
            "padding": dict(zip(("behind_segments", "at_ends_of_rows"), plan.padding, strict=True)),
            "fingerprint": short(plan.fingerprint),
            "settings": self.plan.record,
            "ledger": plan.ledger.as_dict(),
            "lost": asdict(self.losses),
            "variety": None if self.variety is None else {**asdict(self.variety), "words": self.variety.describe()},
            "fill": None if self.fill is None else asdict(self.fill),
            "samples_per_pack": None if self.sizes is None else asdict(self.sizes),
        }

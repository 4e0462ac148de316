"""Lengths, packs and losses in numbers: bins of histograms, percentiles, and facts of all
samples.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from brimful.base.fingerprint import short
from brimful.base.ragged import offsets_of
from brimful.base.typing import AnyIntArray, Int64Array
from brimful.base.wording import counted, percent
from brimful.lengths.table import LengthTable
from brimful.plan import Plan
from brimful.plan.counts.histogram import Histogram
from brimful.plan.ledger import MUCH_LOST, drop_reason


@dataclass(frozen=True)
class Bin:
    """Items from ``begin`` to ``end - 1``: their number and their sum."""

    begin: int
    end: int
    number: int
    total: int

    def describe(self, noun: str) -> str:
        """Describe the values of the bin: ``1 token``, ``4 tokens`` or ``4 … 7 tokens``."""
        is_single = self.end - self.begin == 1
        return (
            counted(self.begin, noun) if is_single else f"{self.begin:,} … {self.end - 1:,} {noun}s"
        )


def count_bins(items: Histogram, edges: AnyIntArray) -> list[Bin]:
    """Count the items in each bin; edges must cover them all.

    >>> count_bins(Histogram.of(np.array([1, 2, 3, 7])), np.array([1, 2, 4, 8]))
    [Bin(begin=1, end=2, number=1, total=1), Bin(begin=2, end=4, number=2, total=5), Bin(begin=4, end=8, number=1, total=7)]
    """
    # Items below an edge are a prefix of the sorted lengths: differences of running sums count a
    # bin.
    indices = np.searchsorted(items.lengths, edges)
    counts = np.diff(offsets_of(items.counts)[indices])
    totals = np.diff(offsets_of(items.lengths * items.counts)[indices])
    return [Bin(*map(int, row)) for row in zip(edges[:-1], edges[1:], counts, totals, strict=True)]


def ratio_edges(minimum: int, maximum: int, per_octave: int = 2) -> Int64Array:
    """Return whole numbers that rise by a constant ratio and cover the range.

    The first is a power of two at or below ``minimum``, the last one above ``maximum``.

    >>> ratio_edges(3, 9).tolist()
    [2, 3, 4, 6, 8, 11, 16]
    """
    # Rounding makes small edges equal: unique removes them.
    octaves = (
        np.arange(per_octave * (minimum.bit_length() - 1), per_octave * maximum.bit_length() + 1)
        / per_octave
    )
    edges: Int64Array = np.unique(np.rint(2.0**octaves).astype(np.int64))
    return edges


def percentiles(items: Histogram, marks: tuple[float, ...]) -> list[int]:
    """Return the item that each percentage of the items does not exceed.

    >>> percentiles(Histogram.of(np.array([1, 2, 3, 7])), (0, 50, 100))
    [1, 2, 7]
    """
    cumulative = np.cumsum(items.counts)
    # The mark 0 means the smallest item, whose rank is 1.
    ranks = np.maximum(1, np.ceil(np.asarray(marks) / 100 * cumulative[-1]))
    return [int(length) for length in items.lengths[np.searchsorted(cumulative, ranks)]]


@dataclass(frozen=True)
class LengthFacts:
    """Lengths of samples, or of the segments of a plan without its length table.

    Attributes:
        of: ``samples``, or ``segments`` if some may be parts of samples.
        number: of them.
        tokens: of all together.
        mean, shortest, p5, median, p95, p99, longest: tokens.
        fingerprint: of the table, short; None without one.
        classes: bins of equal ratios.
    """

    of: str
    number: int
    tokens: int
    mean: float
    shortest: int
    p5: int
    median: int
    p95: int
    p99: int
    longest: int
    fingerprint: str | None
    classes: list[Bin]

    @classmethod
    def of_items(
        cls, items: Histogram, table: LengthTable | None, *, shares: bool = False
    ) -> LengthFacts | None:
        """Summarize lengths; None without items.

        Args:
            items: lengths of the samples of a table, or of a plan without its table.
            table: the table.
            shares: true if the plan has trees, in which every sample is whole.
        """
        if not items.num_items:
            return None
        names = {"shortest": 0, "p5": 5, "median": 50, "p95": 95, "p99": 99, "longest": 100}
        marks = dict(zip(names, percentiles(items, tuple(names.values())), strict=True))
        return cls(
            of="segments" if table is None and not shares else "samples",
            number=items.num_items,
            tokens=items.total,
            mean=items.total / items.num_items,
            **marks,
            fingerprint=None if table is None else short(table.fingerprint),
            classes=count_bins(items, ratio_edges(marks["shortest"], marks["longest"])),
        )


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
        reasons = [
            f"{count:,} {drop_reason(name)}" for name, count in plan.outcome.dropped_by.items()
        ]
        why = (
            f"dropped {', '.join(reasons)}"
            if reasons
            else f"longer than {counted(plan.settings.max_path or plan.capacity, 'token')}"
        )
        why = f"{why}, overflow policy {plan.settings.overflow_policy.value}"
        tokens_ratio, samples_ratio = (
            ledger.lost_ratio,
            ledger.samples_dropped / max(1, ledger.samples_in),
        )
        losses = {
            f"with {percent(samples_ratio, 2)} of the samples": ledger.samples_dropped,
            f"cut off {counted(ledger.samples_truncated, 'sample')}": ledger.samples_truncated,
        }
        lost_by = " and ".join(text for text, count in losses.items() if count)
        warning = f"{percent(tokens_ratio, 2)} of the tokens are lost, {lost_by}: {why}"
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
        widths = (
            width
            for width in _FILL_WIDTHS
            if width * plan.capacity >= 100 and 100 - _FILL_BINS * width <= low
        )
        width = next(widths, _FILL_WIDTHS[-1])
        edges = 100 - width * np.arange(_FILL_BINS, -1, -1)
        # A token count on an edge may be off by rounding of the percentage: 1e-6 of a token mends
        # it.
        cumulative = np.searchsorted(
            tokens, np.floor(edges / 100 * plan.capacity + 1e-6), side="right"
        )
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
    """Packs by their number of samples; parts of a sample that was split count one by one.

    Attributes:
        mean, least, median, most: samples of a pack.
        classes: the bins.
    """

    mean: float
    least: int
    median: int
    most: int
    classes: list[Bin]

    @classmethod
    def of(cls, plan: Plan) -> SizeFacts:
        """Count packs in bins of equal ratios, eight to a doubling."""
        sizes = Histogram.of(plan.samples_of_packs)
        least, median, most = percentiles(sizes, (0.0, 50.0, 100.0))
        bins = count_bins(sizes, ratio_edges(least, most, per_octave=8))
        return cls(sizes.total / sizes.num_items, least, median, most, bins)


@dataclass(frozen=True)
class PlanFacts:
    """Numbers on one plan.

    Attributes:
        plan: the plan itself.
        losses: samples and tokens in no pack.
        fill: packs by fill; None for a plan without packs, as is the next.
        sizes: packs by number of samples.
    """

    plan: Plan
    losses: Losses
    fill: FillFacts | None
    sizes: SizeFacts | None

    @classmethod
    def of(cls, plan: Plan) -> PlanFacts:
        """Summarize a plan."""
        fill, sizes = (FillFacts.of(plan), SizeFacts.of(plan)) if plan.num_packs else (None, None)
        return cls(plan, Losses.of(plan), fill, sizes)

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
            "fill": None if self.fill is None else asdict(self.fill),
            "samples_per_pack": None if self.sizes is None else asdict(self.sizes),
        }

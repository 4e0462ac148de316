"""Numbers on the lengths of samples."""

from __future__ import annotations

from dataclasses import dataclass

from brimful.fingerprint import short
from brimful.measure import LengthTable
from brimful.plan.counts.histogram import Histogram
from brimful.report.analysis.bins import Bin, count_bins, percentiles, ratio_edges


@dataclass(frozen=True)
class LengthFacts:
    """Lengths of samples, or of the segments of a plan without its length table.

    Attributes:
        of: ``samples`` or ``segments``.
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
    def of_items(cls, items: Histogram, table: LengthTable | None) -> LengthFacts | None:
        """Summarize lengths; None without items."""
        if not items.num_items:
            return None
        shortest, p5, median, p95, p99, longest = percentiles(items, (0.0, 5.0, 50.0, 95.0, 99.0, 100.0))
        plural = "segments" if table is None else "samples"
        fingerprint = None if table is None else short(table.fingerprint)
        bins = count_bins(items, ratio_edges(shortest, longest))
        mean = items.total / items.num_items
        return cls(
            plural, items.num_items, items.total, mean, shortest, p5, median, p95, p99, longest, fingerprint, bins
        )

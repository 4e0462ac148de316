"""Numbers on the lengths of samples."""

from __future__ import annotations

from dataclasses import dataclass

from brimful.fingerprint import short
from brimful.measure import LengthTable
from brimful.plan.histogram import Histogram
from brimful.report.analysis.bins import Bin, count_bins, percentiles, ratio_edges

__all__ = ["LengthFacts"]


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
        """Summarize lengths; None if there are none."""
        if not items.num_items:
            return None
        shortest, p5, median, p95, p99, longest = percentiles(items, (0.0, 5.0, 50.0, 95.0, 99.0, 100.0))
        return cls(
            of="segments" if table is None else "samples",
            number=items.num_items,
            tokens=items.total,
            mean=items.total / items.num_items,
            shortest=shortest,
            p5=p5,
            median=median,
            p95=p95,
            p99=p99,
            longest=longest,
            fingerprint=None if table is None else short(table.fingerprint),
            classes=count_bins(items, ratio_edges(shortest, longest)),
        )

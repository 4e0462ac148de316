"""What other capacities would give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from brimful.measure import LengthTable
from brimful.plan import Alignment
from brimful.plan.counts.histogram import Histogram
from brimful.plan.fit.best_fit_decreasing import best_fit_decreasing
from brimful.plan.ledger import MUCH_LOST
from brimful.report.markup import percent

__all__ = ["CAPACITIES", "CapacityPoint", "draw_sweep", "sweep_capacities"]

CAPACITIES = (1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
_NONE = Alignment()


@dataclass(frozen=True)
class CapacityPoint:
    """One capacity: what packing there gives, what is too long for it, and what padding one sample a row would give.

    Attributes:
        capacity: tokens.
        num_packs, fill_ratio, samples_per_pack: of the samples that fit.
        oversized, oversized_ratio: samples that do not fit, and their share of all samples.
        tokens_lost, lost_ratio: the tokens of those, and their share of all tokens.
        padded_fill_ratio: of rows of one sample that fits, padded to the capacity.
    """

    capacity: int
    num_packs: int
    fill_ratio: float
    samples_per_pack: float
    oversized: int
    oversized_ratio: float
    tokens_lost: int
    lost_ratio: float
    padded_fill_ratio: float

    @property
    def loses_much(self) -> bool:
        """Whether leaving out what is too long deserves a warning."""
        return self.lost_ratio >= MUCH_LOST

    def steps_per_epoch(self, packs_per_step: int) -> int:
        """Optimizer steps of an epoch, the last one perhaps not full."""
        return -(-self.num_packs // packs_per_step)


def sweep_capacities(
    lengths: LengthTable | Histogram,
    capacities: Sequence[int] = CAPACITIES,
    *,
    alignment: Alignment = _NONE,
) -> list[CapacityPoint]:
    """Plan the same lengths at several capacities, best fit decreasing, leaving out what is longer.

    Counts of lengths are enough for that, so the cost depends on the number of different lengths alone.

    Args:
        lengths: a table, or counts of lengths that are at hand.
        capacities: tokens, ascending. The sweep ends early where one pack holds everything.
        alignment: of segments and rows. Capacities below one aligned row are left out.

    >>> point, = sweep_capacities(LengthTable.from_lengths([3, 3, 5, 6, 1, 1]), capacities=[5])
    >>> point.num_packs, point.oversized, point.samples_per_pack
    (3, 1, 1.6666666666666667)
    """
    if isinstance(lengths, LengthTable):
        lengths = Histogram.of(lengths.tokens[lengths.tokens > 0])
    points = []
    for capacity in capacities:
        if capacity < alignment.total:
            continue
        usable = alignment.usable(capacity)
        upto = int(np.searchsorted(lengths.lengths, usable, side="right"))
        fitting = Histogram(lengths.lengths[:upto], lengths.counts[:upto])
        number = fitting.num_items
        if not number:
            continue
        aligned = Histogram.of_counts(alignment.rounded(fitting.lengths), fitting.counts)
        packs = best_fit_decreasing(aligned, capacity=usable).num_packs
        points.append(
            CapacityPoint(
                capacity=capacity,
                num_packs=packs,
                fill_ratio=fitting.total / (packs * capacity),
                samples_per_pack=number / packs,
                oversized=lengths.num_items - number,
                oversized_ratio=(lengths.num_items - number) / lengths.num_items,
                tokens_lost=lengths.total - fitting.total,
                lost_ratio=(lengths.total - fitting.total) / lengths.total,
                padded_fill_ratio=fitting.total / (number * capacity),
            )
        )
        if not points[-1].oversized and packs <= 1:
            break
    return points


def draw_sweep(points: Sequence[CapacityPoint], packs_per_step: int | None = None) -> list[str]:
    """The sweep as a table, with steps an epoch if the packs of a step are known."""
    steps = "" if packs_per_step is None else f"  {'steps/epoch':>11}"
    lines = [
        f"{'capacity':>9}  {'packs':>11}  {'fill':>8}  {'samples/pack':>12}  {'too long':>9}  {'tokens lost':>11}  "
        f"{'padded to it':>12}{steps}"
    ]
    for point in points:
        steps = "" if packs_per_step is None else f"  {point.steps_per_epoch(packs_per_step):>11,}"
        lines.append(
            f"{point.capacity:>9,}  {point.num_packs:>11,}  {100 * point.fill_ratio:>6.2f} %  "
            f"{point.samples_per_pack:>12.1f}  {point.oversized:>9,}  {percent(point.lost_ratio, 2):>11}  "
            f"{100 * point.padded_fill_ratio:>5.1f} % full{steps}{'  ← much is lost' if point.loses_much else ''}"
        )
    return lines

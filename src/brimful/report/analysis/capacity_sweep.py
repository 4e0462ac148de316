"""Results of packing the same lengths at other capacities."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from brimful.plan import Alignment
from brimful.plan.counts.histogram import Histogram
from brimful.plan.fit.best_fit_decreasing import best_fit_decreasing
from brimful.plan.ledger import MUCH_LOST

CAPACITIES = (1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
"""Capacities of every sweep, tokens."""


@dataclass(frozen=True)
class CapacityPoint:
    """Packing at one capacity, losses to it, and padding to it with one sample a row.

    Attributes:
        capacity: tokens.
        num_packs, fill_ratio, samples_per_pack: of the samples that fit.
        oversized, oversized_ratio: samples that do not fit, and their share of all samples.
        tokens_lost, lost_ratio: tokens of those, and their share of all tokens.
        padded_fill_ratio: of rows of one sample that fits, padded to the capacity.
        steps_per_epoch: optimizer steps, the last one perhaps not full.
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
    steps_per_epoch: int

    @property
    def loses_much(self) -> bool:
        """True if the samples that are too long hold so large a share of the tokens that a warning is due."""
        return self.lost_ratio >= MUCH_LOST


def sweep_capacities(
    lengths: Histogram, capacities: Sequence[int], *, alignment: Alignment, packs_per_step: int
) -> list[CapacityPoint]:
    """Plan the same lengths at several capacities, best fit decreasing, without the samples that are too long.

    Counts of lengths are enough, so the cost depends on the number of different lengths alone.

    Args:
        lengths: of the samples, without empty and rejected ones.
        capacities: tokens, ascending. The sweep ends early if one pack holds everything.
        alignment: of segments and rows. Capacities below one aligned row are left out.
        packs_per_step: packs of an optimizer step on all ranks.

    >>> lengths = Histogram.of(np.array([3, 3, 5, 6, 1, 1]))
    >>> point, = sweep_capacities(lengths, [5], alignment=Alignment(), packs_per_step=1)
    >>> point.num_packs, point.oversized, point.samples_per_pack
    (3, 1, 1.6666666666666667)
    """
    points = []
    for capacity in capacities:
        if capacity < alignment.total:
            continue
        # Samples fit by their own length, and are packed by their aligned one.
        usable = alignment.usable(capacity)
        num_lengths = int(np.searchsorted(lengths.lengths, usable, side="right"))
        items = Histogram(lengths.lengths[:num_lengths], lengths.counts[:num_lengths])
        if not items.num_items:
            continue
        aligned_items = Histogram.of_counts(alignment.rounded(items.lengths), items.counts)
        num_packs = best_fit_decreasing(aligned_items, capacity=usable).num_packs
        num_oversized, tokens_lost = lengths.num_items - items.num_items, lengths.total - items.total
        points.append(
            CapacityPoint(
                capacity=capacity,
                num_packs=num_packs,
                fill_ratio=items.total / (num_packs * capacity),
                samples_per_pack=items.num_items / num_packs,
                oversized=num_oversized,
                oversized_ratio=num_oversized / lengths.num_items,
                tokens_lost=tokens_lost,
                lost_ratio=tokens_lost / lengths.total,
                padded_fill_ratio=items.total / (items.num_items * capacity),
                steps_per_epoch=-(-num_packs // packs_per_step),
            )
        )
        # One pack holds everything: larger capacities say the same.
        if not num_oversized and num_packs <= 1:
            break
    return points

"""What other capacities would give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from brimful.measure import LengthTable
from brimful.plan import plan_packs

__all__ = ["CapacityPoint", "draw_sweep", "sweep_capacities"]

_CAPACITIES = (1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)


@dataclass(frozen=True)
class CapacityPoint:
    """One capacity: what packing there gives, and what padding one sample a row would."""

    capacity: int
    num_packs: int
    fill_ratio: float
    samples_per_pack: float
    oversized: int
    padded_fill_ratio: float


def sweep_capacities(table: LengthTable, capacities: Sequence[int] = _CAPACITIES) -> list[CapacityPoint]:
    """Plan the same lengths at several capacities, leaving out what is longer."""
    tokens = table.tokens[table.tokens > 0]
    points = []
    for capacity in capacities:
        fitting = tokens[tokens <= capacity]
        if not len(fitting):
            continue
        plan = plan_packs(fitting, capacity=capacity, algorithm="best_fit_decreasing", seed=None)
        points.append(
            CapacityPoint(
                capacity=capacity,
                num_packs=plan.num_packs,
                fill_ratio=plan.fill_ratio,
                samples_per_pack=len(fitting) / plan.num_packs,
                oversized=len(tokens) - len(fitting),
                padded_fill_ratio=float(fitting.sum(dtype=np.int64) / (len(fitting) * capacity)),
            )
        )
        if not points[-1].oversized and plan.num_packs <= 1:
            break
    return points


def draw_sweep(points: Sequence[CapacityPoint]) -> list[str]:
    """The sweep as a table."""
    lines = [
        f"{'capacity':>9}  {'packs':>11}  {'fill':>8}  {'samples/pack':>12}  {'too long':>9}  {'padded to it':>12}"
    ]
    return lines + [
        f"{point.capacity:>9,}  {point.num_packs:>11,}  {100 * point.fill_ratio:>6.2f} %  "
        f"{point.samples_per_pack:>12.1f}  {point.oversized:>9,}  {100 * point.padded_fill_ratio:>8.1f} % full"
        for point in points
    ]

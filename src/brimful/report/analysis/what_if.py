"""Other capacities and other algorithms for the same lengths."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from brimful.measure import LengthTable
from brimful.plan import ALGORITHMS, Alignment, Overflow, Plan, PlanSettings, plan_with
from brimful.plan.counts.histogram import Histogram
from brimful.plan.fit.best_fit_decreasing import best_fit_decreasing
from brimful.plan.ledger import MUCH_LOST

CAPACITIES = (1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
"""Capacities of every sweep, tokens."""

_ALGORITHMS = tuple(name for name, algorithm in ALGORITHMS.items() if algorithm.is_compared)
"""Algorithms that need no time limit."""


@dataclass(frozen=True, kw_only=True)
class PackingOutcome:
    """Packs of the same lengths under one choice of settings.

    Attributes:
        capacity: tokens.
        num_packs, fill_ratio, samples_per_pack: of the samples in packs.
        oversized: samples that are longer than the capacity.
        tokens_lost, lost_ratio: tokens in no pack, and their share of all tokens.
        steps_per_epoch: optimizer steps; the last one may be smaller.
    """

    capacity: int
    num_packs: int
    fill_ratio: float
    samples_per_pack: float
    oversized: int
    tokens_lost: int
    lost_ratio: float
    steps_per_epoch: int

    @property
    def loses_much(self) -> bool:
        """True if the lost share of the tokens is large enough for a warning."""
        return self.lost_ratio >= MUCH_LOST


@dataclass(frozen=True, kw_only=True)
class CapacityPoint(PackingOutcome):
    """Packing at one capacity without the samples that are too long, and padding to it.

    Attributes:
        padded_fill_ratio: fill of rows of one sample that fits, padded to the capacity.
    """

    padded_fill_ratio: float


@dataclass(frozen=True, kw_only=True)
class Alternative(PackingOutcome):
    """A plan with another capacity or algorithm.

    Attributes:
        algorithm: its name.
        chosen: true for the plan that the others are compared with.
        over_bound: packs above the lower bound.
    """

    algorithm: str
    chosen: bool
    over_bound: int


def sweep_capacities(
    lengths: Histogram, capacities: Sequence[int], *, alignment: Alignment, packs_per_step: int
) -> list[CapacityPoint]:
    """Plan the same lengths at several capacities, best fit decreasing, without the samples that
    are too long.

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
        num_oversized, tokens_lost = (
            lengths.num_items - items.num_items,
            lengths.total - items.total,
        )
        points.append(
            CapacityPoint(
                capacity=capacity,
                num_packs=num_packs,
                fill_ratio=items.total / (num_packs * capacity),
                samples_per_pack=items.num_items / num_packs,
                oversized=num_oversized,
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


def compare_plans(
    table: LengthTable, plan: Plan, *, packs_per_step: int, capacities: Sequence[int] = ()
) -> list[Alternative]:
    """Plan the same lengths at other capacities and with other algorithms, with the plan's overflow
    policy and seed.

    Pure: no I/O. Under the policy ``error``, samples too long for a smaller capacity are left out
    and counted.

    Args:
        table: the lengths of the plan.
        plan: to compare with.
        packs_per_step: packs of an optimizer step on all ranks.
        capacities: tokens; half, twice and four times the plan's if empty.

    Returns:
        Alternatives by capacity, the plan first at its own.

    >>> from brimful.plan import plan_packs
    >>> table = LengthTable.from_lengths([3, 3, 5, 6, 1, 1])
    >>> rows = compare_plans(table, plan_packs(table, capacity=7), packs_per_step=1, capacities=[14])
    >>> [(row.capacity, row.algorithm, row.num_packs) for row in rows if row.chosen or row.algorithm == "next_fit"]
    [(7, 'auto', 3), (7, 'next_fit', 4), (14, 'next_fit', 2)]
    """
    capacities = capacities or [plan.capacity // 2, 2 * plan.capacity, 4 * plan.capacity]
    settings = plan.settings
    alternatives: list[Alternative] = []

    def add(other: Plan) -> None:
        alternatives.append(
            Alternative(
                capacity=other.capacity,
                algorithm=other.settings.algorithm,
                chosen=other is plan,
                num_packs=other.num_packs,
                over_bound=other.num_packs - other.bound,
                fill_ratio=other.fill_ratio,
                samples_per_pack=int(other.samples_of_packs.sum()) / max(1, other.num_packs),
                oversized=int((table.tokens > other.capacity).sum()),
                tokens_lost=other.ledger.tokens_dropped + other.ledger.tokens_truncated,
                lost_ratio=other.ledger.lost_ratio,
                steps_per_epoch=-(-other.num_packs // packs_per_step),
            )
        )

    policy = settings.overflow_policy
    for capacity in sorted({plan.capacity, *capacities}):
        # Below one aligned row nothing can be planned, and capacities are int32.
        if not max(1, plan.alignment.total) <= capacity < 2**31:
            continue
        if capacity == plan.capacity:
            add(plan)
        # Textbook algorithms know one budget and no trees: with these, `auto` is compared at each
        # capacity.
        is_auto = settings.budgets or settings.shares
        for algorithm in ("auto",) if is_auto else _ALGORITHMS:
            if capacity != plan.capacity or algorithm != settings.algorithm:
                other_settings = PlanSettings(
                    capacity=capacity,
                    algorithm=algorithm,
                    overflow=Overflow.DROP if policy is Overflow.ERROR else policy,
                    budgets=settings.budgets,
                    alignment=settings.alignment,
                    share=settings.share,
                    max_path=settings.max_path,
                    seed=settings.seed,
                )
                add(plan_with(table, other_settings))
    return alternatives

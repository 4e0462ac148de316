"""Other capacities and other algorithms beside one plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from brimful.measure import LengthTable
from brimful.plan import Overflow, Plan, plan_packs

__all__ = ["Alternative", "compare_plans", "draw_comparison"]

_ALGORITHMS = ("best_fit_decreasing", "first_fit_decreasing", "next_fit")
"""Those that need no time limit."""


@dataclass(frozen=True)
class Alternative:
    """One capacity and algorithm.

    Attributes:
        chosen: whether it is the plan that the others are compared to.
        over_bound: packs above the lower bound.
        tokens_lost: dropped and truncated.
        lost_ratio: of all tokens.
    """

    capacity: int
    algorithm: str
    chosen: bool
    num_packs: int
    over_bound: int
    fill_ratio: float
    samples_per_pack: float
    oversized: int
    tokens_lost: int
    lost_ratio: float
    steps_per_epoch: int


def compare_plans(
    table: LengthTable, plan: Plan, *, packs_per_step: int, capacities: Sequence[int] = ()
) -> list[Alternative]:
    """Plan the same lengths at other capacities and with other algorithms, with the plan's overflow policy and seed.

    Pure: no I/O. Where the policy is ``error``, what is too long for a smaller capacity is left out and counted.

    Args:
        table: what was planned.
        plan: to compare with.
        packs_per_step: packs of an optimizer step on all ranks.
        capacities: tokens; half, twice and four times the plan's if empty.

    Returns:
        By capacity, and at each the plan first.

    >>> table = LengthTable.from_lengths([3, 3, 5, 6, 1, 1])
    >>> rows = compare_plans(table, plan_packs(table, capacity=7), packs_per_step=1, capacities=[14])
    >>> [(row.capacity, row.algorithm, row.num_packs) for row in rows if row.chosen or row.algorithm == "next_fit"]
    [(7, 'auto', 3), (7, 'next_fit', 4), (14, 'next_fit', 2)]
    """
    others = capacities or [plan.capacity // 2, 2 * plan.capacity, 4 * plan.capacity]
    policy = Overflow.named(str(plan.settings["overflow"]))
    seed = plan.settings["seed"]
    found = []
    for capacity in sorted({plan.capacity, *others}):
        if not max(1, plan.alignment.total) <= capacity < 2**31:
            continue
        oversized = int((table.tokens > capacity).sum())
        if capacity == plan.capacity:
            found.append(_alternative(plan, True, oversized, packs_per_step))
        budgets = plan.settings.get("budgets")
        for algorithm in ("auto",) if budgets else _ALGORITHMS:
            if capacity == plan.capacity and algorithm == plan.settings["algorithm"]:
                continue
            made = plan_packs(
                table,
                capacity=capacity,
                algorithm=algorithm,
                overflow=Overflow.DROP if policy is Overflow.ERROR else policy,
                budgets=budgets,
                alignment=plan.alignment,
                seed=seed,
            )
            found.append(_alternative(made, False, oversized, packs_per_step))
    return found


def _alternative(plan: Plan, chosen: bool, oversized: int, packs_per_step: int) -> Alternative:
    ledger = plan.ledger
    lost = ledger.tokens_dropped + ledger.tokens_truncated
    return Alternative(
        capacity=plan.capacity,
        algorithm=str(plan.settings["algorithm"]),
        chosen=chosen,
        num_packs=plan.num_packs,
        over_bound=plan.num_packs - plan.bound,
        fill_ratio=plan.fill_ratio,
        samples_per_pack=plan.num_segments / max(1, plan.num_packs),
        oversized=oversized,
        tokens_lost=lost,
        lost_ratio=lost / max(1, ledger.tokens_in),
        steps_per_epoch=-(-plan.num_packs // packs_per_step),
    )


def draw_comparison(rows: Sequence[Alternative]) -> list[str]:
    """The comparison as a table; the plan has an arrow."""
    lines = [
        f"{'capacity':>9}  {'algorithm':<21} {'packs':>11}  {'over bound':>10}  {'fill':>8}  {'samples/pack':>12}  "
        f"{'too long':>9}  {'tokens lost':>11}  {'steps/epoch':>11}"
    ]
    return lines + [
        f"{row.capacity:>9,}  {row.algorithm:<21} {row.num_packs:>11,}  {row.over_bound:>10,}  "
        f"{100 * row.fill_ratio:>6.2f} %  {row.samples_per_pack:>12.1f}  {row.oversized:>9,}  "
        f"{100 * row.lost_ratio:>9.2f} %  {row.steps_per_epoch:>11,}{'  ← this plan' if row.chosen else ''}"
        for row in rows
    ]

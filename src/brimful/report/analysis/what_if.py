"""Other capacities and other algorithms, compared with one plan."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from brimful.measure import LengthTable
from brimful.plan import ALGORITHMS, Overflow, Plan, PlanSettings, plan_with

_ALGORITHMS = tuple(name for name, algorithm in ALGORITHMS.items() if algorithm.is_compared)
"""Algorithms that need no time limit."""


@dataclass(frozen=True)
class Alternative:
    """One capacity and algorithm.

    Attributes:
        chosen: true for the plan that the others are compared to.
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

    Pure: no I/O. Under the policy ``error``, samples too long for a smaller capacity are left out and counted.

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
    return [
        Alternative(
            capacity=other.capacity,
            algorithm=other.settings.algorithm,
            chosen=other is plan,
            num_packs=other.num_packs,
            over_bound=other.num_packs - other.bound,
            fill_ratio=other.fill_ratio,
            samples_per_pack=other.num_segments / max(1, other.num_packs),
            oversized=int((table.tokens > other.capacity).sum()),
            tokens_lost=other.ledger.tokens_dropped + other.ledger.tokens_truncated,
            lost_ratio=other.ledger.lost_ratio,
            steps_per_epoch=-(-other.num_packs // packs_per_step),
        )
        for other in _plans(table, plan, {plan.capacity, *capacities})
    ]


def _plans(table: LengthTable, plan: Plan, capacities: set[int]) -> Iterator[Plan]:
    """Yield one plan after the other, so that only one is in memory with the plan itself."""
    settings = plan.settings
    policy = settings.overflow_policy
    for capacity in sorted(capacities):
        # Below one aligned row nothing can be planned, and capacities are int32.
        if not max(1, plan.alignment.total) <= capacity < 2**31:
            continue
        if capacity == plan.capacity:
            yield plan
        # Textbook algorithms know one budget: with several, `auto` is compared at each capacity.
        for algorithm in ("auto",) if settings.budgets else _ALGORITHMS:
            # The plan itself was yielded first.
            if capacity == plan.capacity and algorithm == settings.algorithm:
                continue
            other_settings = PlanSettings(
                capacity=capacity,
                algorithm=algorithm,
                overflow=Overflow.DROP if policy is Overflow.ERROR else policy,
                budgets=settings.budgets,
                alignment=settings.alignment,
                seed=settings.seed,
            )
            yield plan_with(table, other_settings)

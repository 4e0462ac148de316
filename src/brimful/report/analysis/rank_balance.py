"""Cost of each rank at each step, in the order of the packs and with packs exchanged for balance."""

from dataclasses import dataclass

import numpy as np

from brimful.plan import Plan
from brimful.plan.schedule import Barrier, Tail, imbalance, pack_costs, pack_squares, schedule_packs
from brimful.report.analysis.training_run import TrainingRun

_MAX_SPANS = 48
"""Steps of an epoch that are listed one by one, evenly spread."""


@dataclass(frozen=True)
class StepSpan:
    """Cost of the cheapest and of the most costly rank at one step, ÷ the mean over all steps and ranks."""

    step: int
    least: float
    most: float


@dataclass(frozen=True)
class OrderCosts:
    """Costs under one order of the packs.

    Attributes:
        mean, p99, worst: max ÷ mean over the ranks, of all steps; ranks wait at every micro-batch.
        mean_at_step: mean of the same if ranks wait once a step.
        rank_tokens: tokens of each rank in an epoch.
        rank_squares: sum of the squares of segment lengths of each rank in an epoch, tokens².
        spans: of some steps, evenly spread.
    """

    mean: float
    p99: float
    worst: float
    mean_at_step: float
    rank_tokens: list[int]
    rank_squares: list[int]
    spans: list[StepSpan]


@dataclass(frozen=True)
class RankBalance:
    """Cost on each rank and step.

    Attributes:
        num_steps: full ones; packs that fill no step are left out.
        pack_cost_spread: cost of the most costly pack ÷ mean cost of a pack.
        attention_ratio: cost of attention over squares ÷ all cost.
        as_it_comes, balanced: in seeded order, and exchanged by cost.
    """

    num_steps: int
    pack_cost_spread: float
    attention_ratio: float
    as_it_comes: OrderCosts
    balanced: OrderCosts


def measure_rank_balance(plan: Plan, run: TrainingRun) -> RankBalance | None:
    """Compute the cost on each rank at each step of the first epoch.

    Pure: no I/O.

    Args:
        plan: the packs.
        run: the shape of its steps, and the costs of packs.

    Returns:
        None if the plan has too few packs for one full step.

    >>> from brimful.plan import CostModel, plan_packs
    >>> plan = plan_packs([8, 8, 4, 4, 4, 4], capacity=8, algorithm="next_fit")  # 8 | 8 | 4 4 | 4 4
    >>> square = CostModel(linear=0, quadratic=1, tile=1)
    >>> work = measure_rank_balance(plan, TrainingRun(dp_world_size=2, cost_model=square))
    >>> work.num_steps, work.balanced.mean
    (2, 1.0)
    """
    if plan.num_packs < run.packs_per_step:
        return None
    costs = pack_costs(plan.offsets, plan.lengths, run.cost_model)
    squares = pack_squares(plan.offsets, plan.lengths)

    def order_costs(balance: bool) -> OrderCosts:
        schedule = schedule_packs(
            plan.num_packs,
            dp_world_size=run.dp_world_size,
            micro_batches=run.gradient_accumulation_steps,
            packs_per_micro_batch=run.packs_per_forward,
            epoch=0,
            seed=0,
            tail=Tail.DROP,
            costs=costs if balance else None,
        )
        waits = imbalance(schedule, costs, barrier=Barrier.MICRO_BATCH)
        # Axes of a schedule: step, rank, micro-batch, pack.
        loads = costs[schedule].sum(axis=(2, 3))  # [steps, ranks]
        loads /= loads.mean()
        steps = np.unique(np.linspace(0, len(loads) - 1, min(_MAX_SPANS, len(loads))).astype(int))
        return OrderCosts(
            mean=float(waits.mean()),
            p99=float(np.percentile(waits, 99)),
            worst=float(waits.max()),
            mean_at_step=float(imbalance(schedule, costs, barrier=Barrier.STEP).mean()),
            rank_tokens=plan.pack_tokens[schedule].sum(axis=(0, 2, 3)).tolist(),
            rank_squares=squares[schedule].sum(axis=(0, 2, 3)).tolist(),
            spans=[StepSpan(int(step), float(loads[step].min()), float(loads[step].max())) for step in steps],
        )

    # Attention is the part of the cost that does not grow with tokens alone.
    linear = run.cost_model.linear * plan.pack_tokens.astype(np.float64)
    total = float(costs.sum())
    return RankBalance(
        num_steps=plan.num_packs // run.packs_per_step,
        pack_cost_spread=float(costs.max() / costs.mean()),
        attention_ratio=1 - float(linear.sum()) / total if total else 0.0,
        as_it_comes=order_costs(balance=False),
        balanced=order_costs(balance=True),
    )

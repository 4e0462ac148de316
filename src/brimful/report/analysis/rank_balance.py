"""Cost of each rank at each step, in seeded order and with packs exchanged for balance."""

from dataclasses import dataclass

import numpy as np

from brimful.base.typing import Float64Array, Int64Array
from brimful.base.wording import setting
from brimful.errors import SettingsError
from brimful.lengths.table import LengthTable
from brimful.plan import Plan
from brimful.plan.schedule import Barrier, Component, Tail, imbalance, pack_squares, schedule_packs
from brimful.report.analysis.training_run import TrainingRun


@dataclass(frozen=True)
class OrderCosts:
    """Costs under one order of the packs.

    Attributes:
        mean, p99, worst: max ÷ mean over the ranks, of all steps; ranks wait at every micro-batch.
        mean_at_step: mean of the same if ranks wait once a step.
        rank_tokens: tokens of each rank in an epoch.
        rank_squares: sum of the squares of segment lengths of each rank in an epoch, tokens²; in a
            tree, of the square of the end of a segment less the square of its start.
    """

    mean: float
    p99: float
    worst: float
    mean_at_step: float
    rank_tokens: list[int]
    rank_squares: list[int]


@dataclass(frozen=True)
class ComponentBalance:
    """Time of one part of the model: the slowest rank ÷ the mean, over all micro-batches of an
    epoch together.

    Attributes:
        part: name of the part.
        share: its cost ÷ all cost.
        as_it_comes: in seeded order.
        balanced: with packs exchanged by the costs of all parts.
        alone: with packs exchanged by the cost of this part alone, a practical lower bound for
            orders of all parts.
    """

    part: Component
    share: float
    as_it_comes: float
    balanced: float
    alone: float


@dataclass(frozen=True)
class RankBalance:
    """Cost on each rank and step.

    Attributes:
        num_steps: full ones; packs that fill no step are left out.
        pack_cost_spread: cost of the costliest pack ÷ mean cost of a pack.
        as_it_comes, balanced: in seeded order, and exchanged by cost.
        parts: towers and language model, if towers have work; they run in turn, each ending at its
            barriers.
        notes: sentences on costs that were not counted.
    """

    num_steps: int
    pack_cost_spread: float
    as_it_comes: OrderCosts
    balanced: OrderCosts
    parts: list[ComponentBalance]
    notes: list[str]

    @property
    def orders(self) -> dict[str, OrderCosts]:
        """Costs under each order of the packs, by its name in words."""
        return {"in seeded order": self.as_it_comes, "balanced by cost": self.balanced}


def measure_rank_balance(
    plan: Plan, run: TrainingRun, table: LengthTable | None = None
) -> RankBalance | None:
    """Compute the cost on each rank at each step of the first epoch.

    Pure: no I/O.

    Args:
        plan: the packs.
        run: the shape of its steps, and the costs of packs.
        table: inputs of the towers; without it only the language model is counted.

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
    costs, components, notes = _costs_of_components(plan, run, table)
    totals = costs.sum(axis=1)
    depths = None if plan.sharing is None else plan.starts
    squares = pack_squares(plan.offsets, plan.lengths, depths=depths)

    def schedule_by(weights: Float64Array | None) -> Int64Array:
        return schedule_packs(
            plan.num_packs,
            dp_world_size=run.dp_world_size,
            micro_batches=run.gradient_accumulation_steps,
            packs_per_micro_batch=run.packs_per_forward,
            epoch=0,
            seed=0,
            tail=Tail.DROP,
            costs=weights,
        )

    def order_costs(schedule: Int64Array) -> OrderCosts:
        waits = imbalance(schedule, costs, barrier=Barrier.MICRO_BATCH)
        return OrderCosts(
            mean=float(waits.mean()),
            p99=float(np.percentile(waits, 99)),
            worst=float(waits.max()),
            mean_at_step=float(imbalance(schedule, costs, barrier=Barrier.STEP).mean()),
            # Axes of a schedule: step, rank, micro-batch, pack.
            rank_tokens=plan.pack_tokens[schedule].sum(axis=(0, 2, 3)).tolist(),
            rank_squares=squares[schedule].sum(axis=(0, 2, 3)).tolist(),
        )

    seeded_order, balanced = schedule_by(None), schedule_by(costs)
    balances = []
    for column, component in enumerate(components if len(components) > 1 else ()):
        cost = costs[:, column]
        balances.append(
            ComponentBalance(
                component,
                share=float(cost.sum() / totals.sum()),
                as_it_comes=_slowest_over_mean(seeded_order, cost),
                balanced=_slowest_over_mean(balanced, cost),
                alone=_slowest_over_mean(schedule_by(cost), cost),
            )
        )
    return RankBalance(
        num_steps=plan.num_packs // run.packs_per_step,
        pack_cost_spread=float(totals.max() / totals.mean()),
        as_it_comes=order_costs(seeded_order),
        balanced=order_costs(balanced),
        parts=balances,
        notes=notes,
    )


def _costs_of_components(
    plan: Plan, run: TrainingRun, table: LengthTable | None
) -> tuple[Float64Array, list[Component], list[str]]:
    """Return costs ``[num_packs, components]`` of the parts that have work, their names, and notes on
    uncounted costs.
    """
    model, notes = run.cost_model, []
    costs = plan.costs(model)[:, None]
    components = [Component.LANGUAGE_MODEL]
    if table is not None:
        for component, column in (
            (Component.VISION_TOWER, "patches"),
            (Component.AUDIO_TOWER, "audio_frames"),
        ):
            if (
                component not in model.components
                and column in table.budgets
                and (table.budgets[column] > 0).any()
            ):
                notes.append(
                    f"the model has no {component.value.replace('_', ' ')}, and the samples have "
                    f"{column.replace('_', ' ')}: that cost is not counted; name the config.json "
                    f"of your model with {setting('model_config')}"
                )
        try:
            all_costs = plan.costs(model, table)
        except SettingsError as error:  # an older table, which measured less
            return costs, components, [*notes, f"towers are not counted: {error.message}"]
        columns = [column for column in range(all_costs.shape[1]) if all_costs[:, column].any()]
        if columns:
            costs = all_costs[:, columns]
            components = [model.components[column] for column in columns]
    return costs, components, notes


def _slowest_over_mean(schedule: Int64Array, costs: Float64Array) -> float:
    """Return the sum over all micro-batches of the slowest rank's cost ÷ the mean rank's."""
    work = costs[schedule].sum(axis=3)  # [steps, ranks, micro-batches]
    mean = float(work.mean(axis=1).sum())
    return float(work.max(axis=1).sum()) / mean if mean else 1.0

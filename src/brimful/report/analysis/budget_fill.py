"""Fill of packs in each budget: tokens, and measured columns of media."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from brimful.measure import LengthTable
from brimful.plan import Plan

_FOR_COSTS = ("patch_blocks",)
"""Columns that only cost models read: shown only if they are limited."""


@dataclass(frozen=True)
class BudgetFill:
    """Content of packs in one budget.

    Attributes:
        name: of the budget, which is its unit.
        capacity: most that a pack may hold; None if it is not limited.
        total: of all packs.
        least, mean, most: of a pack.
    """

    name: str
    capacity: int | None
    total: int
    least: int
    mean: float
    most: int

    @property
    def fill_ratio(self) -> float | None:
        """Mean ÷ capacity; None without a limit."""
        return None if self.capacity is None else self.mean / self.capacity


def measure_budget_fill(plan: Plan, table: LengthTable | None) -> list[BudgetFill]:
    """Return the fill of tokens and of each budget of the table that any sample takes; empty for tokens alone.

    A split sample counts in each of its packs with all that it takes of a column, as in planning.

    Pure: no I/O.

    >>> from brimful.plan import plan_packs
    >>> table = LengthTable.from_lengths([3, 5, 6], patches=[0, 16, 8])
    >>> plan = plan_packs(table, capacity=8, budgets={"patches": 16})
    >>> [(fill.name, fill.capacity, fill.most) for fill in measure_budget_fill(plan, table)]
    [('tokens', 8, 8), ('patches', 16, 16)]
    """
    if table is None or not plan.num_packs:
        return []
    limits = {"tokens": plan.capacity, **(plan.settings.budgets or {})}
    columns = {name: column for name, column in table.budgets.items() if name not in ("tokens", "loss_tokens")}
    columns = {
        name: column
        for name, column in columns.items()
        if name in limits or (name not in _FOR_COSTS and int(column.max(initial=0)) > 0)
    }
    if not columns:
        return []
    sums = {"tokens": np.asarray(plan.pack_tokens, dtype=np.int64)}
    for name, column in columns.items():
        sums[name] = np.add.reduceat(column[plan.sample_ids].astype(np.int64), plan.offsets[:-1])
    return [
        BudgetFill(name, limits.get(name), int(use.sum()), int(use.min()), float(use.mean()), int(use.max()))
        for name, use in sums.items()
    ]

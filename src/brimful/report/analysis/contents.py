"""Contents of packs: what they hold of each budget, and of each source.

Sources of long samples lose most to dropping and cutting, so the packed mixture may differ from the requested one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from brimful.base.typing import AnyIntArray
from brimful.base.wording import setting
from brimful.errors import SettingsError
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


@dataclass(frozen=True)
class SourceShare:
    """Samples and tokens of one source, in all and in packs."""

    name: str
    samples: int
    tokens: int
    samples_packed: int
    tokens_packed: int


def source_shares(
    sources: AnyIntArray, names: Sequence[str], table: LengthTable, plan: Plan | None
) -> list[SourceShare]:
    """Count samples and tokens by source.

    Pure: no I/O. Rejected samples have no length and are not counted.

    Args:
        sources: ``int[num_samples]``, the source of each sample, from 0.
        names: of the sources.
        table: the lengths.
        plan: the packs; None counts nothing as packed.

    Raises:
        SettingsError: another number of entries than samples, or a source without a name.

    >>> from brimful.plan import plan_packs
    >>> table = LengthTable.from_lengths([2, 3, 9])
    >>> plan = plan_packs(table, capacity=5, overflow="truncate")
    >>> source_shares(np.array([0, 0, 1]), ["chats", "books"], table, plan)[1]
    SourceShare(name='books', samples=1, tokens=9, samples_packed=1, tokens_packed=5)
    """
    if sources.shape != (len(table),) or sources.dtype.kind not in "iu":
        raise SettingsError(
            f"{setting('sources')} must hold one whole number for each of the {len(table):,} samples and has shape "
            f"{sources.shape} of {sources.dtype}"
        )
    if len(sources) and not 0 <= int(sources.min()) <= int(sources.max()) < len(names):
        # Of two wrong numbers, name the negative one: it is wrong for any number of names.
        wrong = int(sources.max()) if int(sources.min()) >= 0 else int(sources.min())
        raise SettingsError(
            f"{setting('sources')} names source {wrong}, and only {len(names)} have a name: add {setting('source_names')}"
        )

    def total(source_ids: AnyIntArray, tokens: AnyIntArray | None = None) -> list[int]:
        sums = np.bincount(source_ids, weights=tokens, minlength=len(names))
        return [round(value) for value in sums.tolist()]

    is_measured = table.tokens >= 0
    columns = [total(sources[is_measured]), total(sources[is_measured], table.tokens[is_measured])]
    if plan is None:
        columns += [[0] * len(names)] * 2
    else:
        # A split sample has several segments: it counts once as a sample, and with the tokens of each.
        is_packed = np.zeros(len(table), dtype=bool)
        is_packed[plan.sample_ids] = True
        columns += [total(sources[is_packed]), total(sources[plan.sample_ids], plan.lengths)]
    return [SourceShare(name, *row) for name, row in zip(names, zip(*columns, strict=True), strict=True)]


def sources_of_table(table: LengthTable) -> tuple[AnyIntArray, list[str]] | None:
    """Read the sources from ``provenance["parts"]``: pairs of a name and a number of samples, in order.

    Returns:
        ``int32[num_samples]`` and names; None if the table names fewer than two, or if they do not add up to its samples.

    >>> table = LengthTable(LengthTable.from_lengths([2, 3, 9]).budgets, provenance={"parts": [["a", 2], ["b", 1]]})
    >>> sources, names = sources_of_table(table)
    >>> sources.tolist(), names
    ([0, 0, 1], ['a', 'b'])
    """
    parts: list[Any] = table.provenance.get("parts") or []
    counts = [int(count) for _, count in parts]
    # A single source has all shares.
    if len(parts) < 2 or sum(counts) != len(table):
        return None
    return np.repeat(np.arange(len(parts), dtype=np.int32), counts), [str(name) for name, _ in parts]

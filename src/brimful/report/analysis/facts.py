"""All numbers of a report: the page, the terminal and ``--json`` show the same.

Sources of long samples lose most to dropping and cutting, so the packed mixture may differ from the
requested one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from brimful.base.typing import AnyIntArray
from brimful.base.wording import setting
from brimful.errors import SettingsError
from brimful.measure import LengthTable
from brimful.media.store import MediaCensus
from brimful.mixtures.proportions import SourceDraws, sources_of_record
from brimful.plan import Alignment, Plan
from brimful.plan.counts.histogram import Histogram
from brimful.report.analysis.advice import Advice, advise
from brimful.report.analysis.plan_facts import LengthFacts, PlanFacts
from brimful.report.analysis.rank_balance import RankBalance, measure_rank_balance
from brimful.report.analysis.shared_work import SharedWork
from brimful.report.analysis.shown_packs import ShownPack
from brimful.report.analysis.training_run import TrainingRun
from brimful.report.analysis.what_if import CAPACITIES, CapacityPoint, sweep_capacities
from brimful.trees.account import lengths_in_packs, sample_ends

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
    """Return the fill of tokens and of each budget of the table that any sample takes; empty for
    tokens alone.

    A split sample counts in each of its packs with all that it takes of a column, as in planning;
    what samples of a pack share counts once.

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
    sums = {"tokens": np.asarray(plan.pack_tokens, dtype=np.int64)}
    for name, column in table.budgets.items():
        is_used = name not in _FOR_COSTS and int(column.max(initial=0)) > 0
        if name not in ("tokens", "loss_tokens") and (name in limits or is_used):
            if plan.sharing is not None:
                sums[name] = plan.sums_by_pack(table, name)
                continue
            uses = column[plan.sample_ids].astype(np.int64)
            sums[name] = np.add.reduceat(uses, plan.offsets[:-1])
    if len(sums) == 1:
        return []
    return [
        BudgetFill(
            name,
            limits.get(name),
            int(use.sum()),
            int(use.min()),
            float(use.mean()),
            int(use.max()),
        )
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
    is_number = sources.shape == (len(table),) and sources.dtype.kind in "iu"
    if not is_number or (
        len(sources) and not 0 <= int(sources.min()) <= int(sources.max()) < len(names)
    ):
        raise SettingsError(
            f"{setting('sources')} must hold the number of its source, from 0 to "
            f"{len(names) - 1}, for each of the {len(table):,} samples: every source has a "
            f"{setting('source_names')}"
        )

    def total(source_ids: AnyIntArray, tokens: AnyIntArray | None = None) -> list[int]:
        sums = np.bincount(source_ids, weights=tokens, minlength=len(names))
        return [round(value) for value in sums.tolist()]

    is_measured = table.tokens >= 0
    columns = [total(sources[is_measured]), total(sources[is_measured], table.tokens[is_measured])]
    if plan is None:
        columns += [[0] * len(names)] * 2
    else:
        # A split sample has several segments: it counts once as a sample, and with the tokens of
        # each. A sample that shares its beginning counts with all of its tokens.
        sample_ids = plan.sample_ids[sample_ends(plan)]
        is_packed = np.zeros(len(table), dtype=bool)
        is_packed[sample_ids] = True
        columns += [total(sources[is_packed]), total(sources[sample_ids], lengths_in_packs(plan))]
    return [
        SourceShare(name, *row) for name, row in zip(names, zip(*columns, strict=True), strict=True)
    ]


def sources_of_table(table: LengthTable) -> tuple[AnyIntArray, list[str]] | None:
    """Read the sources from ``provenance["parts"]``: pairs of a name and a number of samples, in
    order.

    Returns:
        ``int32[num_samples]`` and names; None if the table names fewer than two, or if they do not
        add up to its samples.

    >>> table = LengthTable(LengthTable.from_lengths([2, 3, 9]).budgets, provenance={"parts": [["a", 2], ["b", 1]]})
    >>> sources, names = sources_of_table(table)
    >>> sources.tolist(), names
    ([0, 0, 1], ['a', 'b'])
    """
    entries: list[Any] = table.provenance.get("parts") or []
    counts = [int(count) for _, count in entries]
    # A single source has all shares.
    if len(entries) < 2 or sum(counts) != len(table):
        return None
    return np.repeat(np.arange(len(entries), dtype=np.int32), counts), [
        str(name) for name, _ in entries
    ]


MAX_REJECTS = 20
"""Maximum number of rejected rows that a report lists."""


@dataclass(frozen=True)
class Facts:
    """The numbers of one report; a part that is not known is None.

    Attributes:
        title: subject of the report.
        table, plan: the subject itself.
        run: the training run.
        length_facts: of the samples; of the plan's segments without a table.
        plan_facts: of the plan.
        advice: on turning packing on.
        sweep: other capacities.
        shares: of the sources.
        work: cost on ranks and steps.
        budgets: fill in each budget, if tokens are not the only one.
        shown: some packs as they are.
        mixed: shares of the sources of a mixture, requested and realized.
        media: media in the packs.
        shared: what samples share, in a plan with trees.
    """

    title: str
    table: LengthTable | None
    plan: Plan | None
    run: TrainingRun
    length_facts: LengthFacts | None
    plan_facts: PlanFacts | None
    advice: Advice | None
    sweep: list[CapacityPoint]
    shares: list[SourceShare] | None
    work: RankBalance | None
    budgets: list[BudgetFill] = field(default_factory=list)
    shown: list[ShownPack] = field(default_factory=list)
    mixed: list[SourceDraws] = field(default_factory=list)
    media: MediaCensus = field(default_factory=MediaCensus)
    shared: SharedWork | None = None

    @property
    def has_losses(self) -> bool:
        """True if sources lose samples: not for a mixture, which leaves them for later epochs."""
        return self.plan is not None and self.plan.settings.draw is None

    def as_dict(self) -> dict[str, Any]:
        """Return a dictionary for JSON, with the bins of every histogram."""
        names = ("run", "advice", "sweep", "shares", "work")
        values = {name: getattr(self, name) for name in names}
        values |= {"lengths": self.length_facts, "plan": self.plan_facts}
        facts = {
            "title": self.title,
            **{name: _plain(value) for name, value in values.items()},
            "rejects": [] if self.table is None else self.table.rejects[:MAX_REJECTS],
            "account": {} if self.table is None else self.table.account.as_dict(),
        }
        if self.media.kinds:
            facts["media"] = self.media.as_dict()
        return facts | {
            name: _plain(value)
            for name in ("budgets", "mixed", "shown", "shared")
            if (value := getattr(self, name))
        }


def _plain(fact: Any) -> Any:
    """Return a part of a report for JSON: None, an object, or a list of objects."""
    if isinstance(fact, list):
        return [_plain(one) for one in fact]
    return None if fact is None else fact.as_dict() if hasattr(fact, "as_dict") else asdict(fact)


def gather_facts(
    title: str,
    *,
    table: LengthTable | None,
    plan: Plan | None,
    run: TrainingRun,
    sources: tuple[AnyIntArray, Sequence[str]] | None = None,
    shown: Sequence[ShownPack] = (),
    media: MediaCensus | None = None,
) -> Facts:
    """Compute the numbers of a report.

    Pure: no I/O.

    Args:
        title: subject of the report.
        table: lengths of the samples; without them the sweep is missing, and lengths are the plan's
            segments.
        plan: packs; without them the advice is missing.
        run: the training run.
        sources: ``int[num_samples]`` and names; if None, the table's own (``sources_of_table``).
        shown: packs to show as they are (``show_packs``).
        media: media in the packs of a store.

    Raises:
        PlanMismatchError: a table of another number of samples than the plan's.
        SettingsError: impossible settings of the run, or sources that do not fit the table.

    >>> from brimful.plan import plan_packs
    >>> table = LengthTable.from_lengths([3, 3, 5, 6, 1, 1])
    >>> facts = gather_facts("six", table=table, plan=plan_packs(table, capacity=7), run=TrainingRun())
    >>> facts.as_dict()["plan"]["samples_per_pack"]["mean"]
    2.0
    """
    shares, sweep = None, []
    if table is not None:
        # Rejected samples have the length −1, and empty ones are in no pack.
        items = Histogram.of(table.tokens[table.tokens > 0])
        sources = sources or sources_of_table(table)
    else:
        assert plan is not None
        items = Histogram.of(lengths_in_packs(plan))

    # Advice comes first, because it checks the run, and that plan and table belong together.
    advice = work = None
    if plan is not None and plan.num_packs:
        advice = advise(table, plan, run)
        # A single rank never waits.
        if run.dp_world_size > 1:
            work = measure_rank_balance(plan, run, table)
    if table is not None:
        alignment = Alignment() if plan is None else plan.alignment
        capacities = sorted({*CAPACITIES, *([] if plan is None else [plan.capacity])})
        sweep = sweep_capacities(
            items, capacities, alignment=alignment, packs_per_step=run.packs_per_step
        )
        if sources is not None:
            shares = source_shares(*sources, table, plan)
    has_trees = plan is not None and plan.sharing is not None
    return Facts(
        title=title,
        table=table,
        plan=plan,
        run=run,
        length_facts=LengthFacts.of_items(items, table, shares=has_trees),
        plan_facts=None if plan is None else PlanFacts.of(plan),
        advice=advice,
        sweep=sweep,
        shares=shares,
        work=work,
        budgets=[] if plan is None else measure_budget_fill(plan, table),
        shown=list(shown),
        mixed=[] if plan is None else sources_of_record(plan.outcome.drawn),
        media=media or MediaCensus(),
        shared=None if plan is None else SharedWork.of(plan, run.cost_model, table),
    )

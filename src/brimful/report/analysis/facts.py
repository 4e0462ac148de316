"""All numbers of a report: the page, the terminal and ``--json`` show the same."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from brimful.base.typing import AnyIntArray
from brimful.measure import LengthTable
from brimful.media.store import MediaCensus
from brimful.plan import Alignment, Plan
from brimful.plan.counts.histogram import Histogram
from brimful.plan.order.diversity import measure_variety
from brimful.plan.policies.proportions import SourceDraws, sources_of_record
from brimful.report.analysis.advise import Advice, advise
from brimful.report.analysis.contents import (
    BudgetFill,
    SourceShare,
    measure_budget_fill,
    source_shares,
    sources_of_table,
)
from brimful.report.analysis.plan_facts import LengthFacts, PlanFacts
from brimful.report.analysis.rank_balance import RankBalance, measure_rank_balance
from brimful.report.analysis.shown_packs import ShownPack
from brimful.report.analysis.training_run import TrainingRun
from brimful.report.analysis.what_if import CAPACITIES, CapacityPoint, sweep_capacities

_MAX_REJECTS = 20
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

    @property
    def has_losses(self) -> bool:
        """True if sources lose samples: not for a mixture, which leaves them for later epochs."""
        return self.plan is not None and self.plan.settings.mixture is None

    @property
    def rejects(self) -> Sequence[Sequence[Any]]:
        """The first rejected rows: sample id, file and line, and reason."""
        return [] if self.table is None else self.table.rejects[:_MAX_REJECTS]

    def as_dict(self) -> dict[str, Any]:
        """Return a dictionary for JSON, with the bins of every histogram."""
        facts = {
            "title": self.title,
            "run": self.run.as_dict(),
            "lengths": _plain(self.length_facts),
            "plan": None if self.plan_facts is None else self.plan_facts.as_dict(),
            "advice": _plain(self.advice),
            "sweep": _plain(self.sweep),
            "rejects": self.rejects,
            "account": {} if self.table is None else self.table.account.as_dict(),
            "shares": _plain(self.shares),
            "work": _plain(self.work),
        }
        parts = {
            "budgets": _plain(self.budgets),
            "mixed": _plain(self.mixed),
            "media": self.media.as_dict() if self.media.kinds else None,
            "shown": [pack.as_dict() for pack in self.shown],
        }
        return facts | {name: part for name, part in parts.items() if part}


def _plain(part: Any) -> Any:
    """Return a part of a report for JSON: None, a dataclass, or a list of dataclasses."""
    if part is None:
        return None
    return [asdict(one) for one in part] if isinstance(part, list) else asdict(part)


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
        table: lengths of the samples; without them the sweep is missing, and lengths are the plan's segments.
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
        items = Histogram.of(plan.lengths)

    # Advice comes first, because it checks the run, and that plan and table belong together.
    advice = work = variety = None
    if plan is not None and plan.num_packs:
        advice = advise(table, plan, run)
        variety = measure_variety(
            plan.offsets,
            plan.lengths,
            sources=None if sources is None else sources[0][plan.sample_ids],
            loss_tokens=None,
            steps=None,
        )
        # A single rank never waits.
        if run.dp_world_size > 1:
            work = measure_rank_balance(plan, run, table)
    if table is not None:
        alignment = Alignment() if plan is None else plan.alignment
        capacities = sorted({*CAPACITIES, *([] if plan is None else [plan.capacity])})
        sweep = sweep_capacities(items, capacities, alignment=alignment, packs_per_step=run.packs_per_step)
        if sources is not None:
            shares = source_shares(*sources, table, plan)
    return Facts(
        title=title,
        table=table,
        plan=plan,
        run=run,
        length_facts=LengthFacts.of_items(items, table),
        plan_facts=None if plan is None else PlanFacts.of(plan, variety),
        advice=advice,
        sweep=sweep,
        shares=shares,
        work=work,
        budgets=[] if plan is None else measure_budget_fill(plan, table),
        shown=list(shown),
        mixed=[] if plan is None else sources_of_record(plan.outcome.mixed),
        media=media or MediaCensus(),
    )

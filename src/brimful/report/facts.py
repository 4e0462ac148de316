"""Everything that a report says, as numbers: the page, the terminal and ``--json`` show the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from brimful.fingerprint import short
from brimful.measure import LengthTable
from brimful.plan import Alignment, Plan
from brimful.plan.counts.histogram import Histogram
from brimful.plan.order.diversity import Variety, measure_variety
from brimful.plan.schedule import CostModel
from brimful.report.advisor import Advice, advise
from brimful.report.classes import classify, percentiles, ratio_edges, step_edges
from brimful.report.lost import Lost
from brimful.report.models import DEFAULT_MODEL, cost_model_named
from brimful.report.shares import SourceShare, source_shares, sources_of_table
from brimful.report.sweep import CAPACITIES, CapacityPoint, sweep_capacities
from brimful.report.work import Work, weigh_steps
from brimful.typing import AnyIntArray

__all__ = ["ALIKE", "Facts", "Run", "gather_facts"]

ALIKE = 1.5
"""Alikeness of the segments of a pack above which mixing is worth a word; 1 is what chance gives."""

_FILL_CLASSES = 20
_FILL_WIDTHS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Percent; the widest shows everything."""
_MARKS = (0.0, 5.0, 50.0, 95.0, 99.0, 100.0)
_REJECTS_SHOWN = 20


@dataclass(frozen=True)
class Run:
    """How the model is trained: what a step is made of.

    Attributes:
        dp_world_size, micro_batch_size, gradient_accumulation_steps: of the run without packing.
        packs_per_micro_batch: with packing; ``micro_batch_size`` if None.
        learning_rate, warmup_steps: of the run without packing, if known.
        cost_model: of the model.
        model: what the model is called.
    """

    dp_world_size: int = 1
    micro_batch_size: int = 1
    gradient_accumulation_steps: int = 1
    packs_per_micro_batch: int | None = None
    learning_rate: float | None = None
    warmup_steps: int | None = None
    cost_model: CostModel = field(default_factory=lambda: cost_model_named(DEFAULT_MODEL))
    model: str = DEFAULT_MODEL

    @property
    def packs_per_step(self) -> int:
        """Packs of one step on all ranks, with the settings as they are."""
        forward = self.packs_per_micro_batch or self.micro_batch_size
        return self.dp_world_size * forward * self.gradient_accumulation_steps


@dataclass(frozen=True)
class Facts:
    """The numbers of one report; a part that is not known is None.

    Attributes:
        title: what was reported on.
        table, plan: as given.
        items: counts of the lengths of samples; of segments if there is no table.
        run: how the model is trained.
        advice: what packing changes.
        sweep: other capacities.
        shares: of the sources.
        work: cost on ranks and steps.
        variety: how far packs differ from the data.
    """

    title: str
    table: LengthTable | None
    plan: Plan | None
    items: Histogram
    run: Run
    advice: Advice | None
    sweep: list[CapacityPoint]
    shares: list[SourceShare] | None
    work: Work | None
    variety: Variety | None

    def as_dict(self) -> dict[str, Any]:
        """For JSON, with the classes of every histogram."""
        return {
            "title": self.title,
            "run": _run(self.run),
            "lengths": self._lengths(),
            "plan": self._plan(),
            "advice": None if self.advice is None else self.advice.as_dict(),
            "sweep": [
                {**asdict(point), "steps_per_epoch": point.steps_per_epoch(self.run.packs_per_step)}
                for point in self.sweep
            ],
            "rejects": [] if self.table is None else self.table.rejects[:_REJECTS_SHOWN],
            "account": {} if self.table is None else self.table.account.as_dict(),
            "shares": None if self.shares is None else [asdict(share) for share in self.shares],
            "work": None if self.work is None else asdict(self.work),
        }

    def _lengths(self) -> dict[str, Any] | None:
        items = self.items
        if not items.num_items:
            return None
        least, *middle, most = percentiles(items, _MARKS)
        return {
            "of": "segments" if self.table is None else "samples",
            "number": items.num_items,
            "tokens": items.total,
            "mean": items.total / items.num_items,
            "shortest": least,
            **dict(zip(("p5", "median", "p95", "p99"), middle, strict=True)),
            "longest": most,
            "fingerprint": None if self.table is None else short(self.table.fingerprint),
            "classes": [asdict(one) for one in classify(items, ratio_edges(least, most))],
        }

    def _plan(self) -> dict[str, Any] | None:
        plan = self.plan
        if plan is None:
            return None
        found: dict[str, Any] = {
            "capacity": plan.capacity,
            "num_packs": plan.num_packs,
            "lower_bound": plan.bound,
            "fill_ratio": plan.fill_ratio,
            "padding": dict(zip(("behind_segments", "at_ends_of_rows"), plan.padding, strict=True)),
            "fingerprint": short(plan.fingerprint),
            "settings": dict(plan.settings),
            "ledger": plan.ledger.as_dict(),
            "lost": Lost.of(plan).as_dict(),
        }
        if self.variety is not None:
            found["variety"] = {**asdict(self.variety), "words": self.variety.describe()}
        if plan.num_packs:
            found["fill"] = _fill(plan)
            sizes = Histogram.of(np.diff(plan.offsets))
            least, _, median, _, _, most = percentiles(sizes, _MARKS)
            wide = most > 40 and most > 8 * median
            edges = ratio_edges(least, most) if wide else step_edges(least, most, classes=30)
            found["samples_per_pack"] = {
                "mean": sizes.total / sizes.num_items,
                "least": least,
                "median": median,
                "most": most,
                "logarithmic": wide,
                "classes": [asdict(one) for one in classify(sizes, edges)],
            }
        return found


def _run(run: Run) -> dict[str, Any]:
    found = {name: value for name, value in asdict(run).items() if name != "cost_model"}
    return {
        **found,
        "crossover_length": run.cost_model.crossover_length if run.cost_model.quadratic else None,
        "cost_unit": run.cost_model.unit,
    }


def _fill(plan: Plan) -> dict[str, Any]:
    """Packs by fill, in classes from a round percentage below nearly all of them up to full."""
    ordered = np.sort(plan.pack_tokens)
    number = len(ordered)
    low = 100.0 * float(ordered[int(0.01 * number)]) / plan.capacity
    widths = [width for width in _FILL_WIDTHS if width * plan.capacity >= 100]  # at least a token
    width = next((width for width in widths if 100 - _FILL_CLASSES * width <= low), _FILL_WIDTHS[-1])
    edges = 100 - width * np.arange(_FILL_CLASSES, -1, -1)  # percent; a class holds its upper edge
    upto = np.searchsorted(ordered, np.floor(edges / 100 * plan.capacity + 1e-6), side="right")
    upto[-1] = number
    return {
        "least": float(ordered[0]) / plan.capacity,
        "median": float(ordered[(number - 1) // 2]) / plan.capacity,
        "full": int(number - np.searchsorted(ordered, plan.capacity)),
        "below": int(upto[0]),
        "edges": [round(edge, 4) for edge in edges.tolist()],
        "packs": np.diff(upto).tolist(),
    }


def _capacities(plan: Plan | None) -> list[int]:
    """Those of every sweep, and that of the plan."""
    return sorted({*CAPACITIES, *([] if plan is None else [plan.capacity])})


def gather_facts(
    title: str,
    *,
    table: LengthTable | None,
    plan: Plan | None,
    run: Run,
    sources: tuple[AnyIntArray, Sequence[str]] | None = None,
) -> Facts:
    """Work out what a report says.

    Pure: no I/O.

    Args:
        title: what is reported on.
        table: lengths of the samples; without them there is no sweep, and lengths are those of the plan's segments.
        plan: packs; without them there is no advice.
        run: how the model is trained.
        sources: ``int[num_samples]`` and names; if None, what the table knows of (``sources_of_table``).

    Raises:
        PlanMismatchError: a table of another number of samples than the plan's.
        SettingsError: impossible settings of the run, or sources that do not fit the table.

    >>> from brimful.plan import plan_packs
    >>> table = LengthTable.from_lengths([3, 3, 5, 6, 1, 1])
    >>> facts = gather_facts("six", table=table, plan=plan_packs(table, capacity=7), run=Run())
    >>> facts.as_dict()["plan"]["samples_per_pack"]["mean"]
    2.0
    """
    known = None
    if table is not None:
        known = (sources if sources is not None else sources_of_table(table)) or None
        items = Histogram.of(table.tokens[table.tokens > 0])
    else:
        assert plan is not None
        items = Histogram.of(plan.lengths)
    advice = work = variety = None
    if plan is not None and plan.num_packs:
        shape = {
            "dp_world_size": run.dp_world_size,
            "gradient_accumulation_steps": run.gradient_accumulation_steps,
        }
        advice = advise(
            table,
            plan,
            **shape,
            micro_batch_size=run.micro_batch_size,
            packs_per_micro_batch=run.packs_per_micro_batch,
            cost_model=run.cost_model,
            learning_rate=run.learning_rate,
            warmup_steps=run.warmup_steps,
        )
        variety = measure_variety(
            plan.offsets,
            plan.lengths,
            sources=None if known is None else np.asarray(known[0])[plan.sample_ids],
            loss_tokens=None,
            steps=None,
        )
        if run.dp_world_size > 1:
            work = weigh_steps(plan, run.cost_model, **shape, packs_per_micro_batch=advice.packs_per_micro_batch)
    alignment = Alignment() if plan is None else plan.alignment
    return Facts(
        title=title,
        table=table,
        plan=plan,
        items=items,
        run=run,
        advice=advice,
        sweep=[] if table is None else sweep_capacities(items, _capacities(plan), alignment=alignment),
        shares=None if known is None or table is None else source_shares(*known, table, plan),
        work=work,
        variety=variety,
    )

"""Tables of a report: the page and the terminal draw the same columns and rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from brimful.base.wording import counted, percent, size_of
from brimful.media.store import MediaCensus
from brimful.mixtures.proportions import SourceDraws
from brimful.plan.ledger import MUCH_LOST
from brimful.report.analysis.advice import Advice
from brimful.report.analysis.facts import BudgetFill, Facts, SourceShare
from brimful.report.analysis.rank_balance import ComponentBalance, RankBalance
from brimful.report.analysis.shared_work import SharedWork
from brimful.report.analysis.what_if import Alternative, CapacityPoint, PackingOutcome


@dataclass(frozen=True)
class Percentage:
    """A share in percent: on the page with a bar under it, or in the color of loss.

    Attributes:
        ratio: from 0 to 1.
        color: of the bar; empty without a bar.
        digits: decimals of the percentage.
        is_lost: true for a large loss.
    """

    ratio: float
    color: str = ""
    digits: int = 1
    is_lost: bool = False


Cell: TypeAlias = "str | int | Percentage | None"
"""A text, a count, a share, or None for a number that is not known."""

Row: TypeAlias = dict[str, Cell]
"""The cells of a row by the heads of their columns. The first cell names the row."""


@dataclass(frozen=True)
class ReportTable:
    """Rows with the same columns.

    Attributes:
        rows: one or more.
        remarks: words on each row, empty for most; empty as a whole if no row has any.
        strong: index of the row that stands out on the page; None for no row.
    """

    rows: Sequence[Row]
    remarks: Sequence[str] = ()
    strong: int | None = None

    def without(self, *heads: str) -> ReportTable:
        """Return the table without some of its columns."""
        rows = [{head: row[head] for head in row if head not in heads} for row in self.rows]
        return ReportTable(rows, self.remarks, self.strong)


class TitledTable(NamedTuple):
    """A part of a report that is one table.

    Attributes:
        name: of the part, unique in a report.
        title: of the part.
        caption: how to read the table.
        table: the table.
    """

    name: str
    title: str
    caption: str
    table: ReportTable


def titled_tables(facts: Facts) -> list[TitledTable]:
    """Return the parts of a report that are one table, in their order."""
    shared: tuple[TitledTable, ...] = ()
    if facts.shared is not None:
        rows = sharing_table(facts.shared, facts.run.model)
        shared = (
            TitledTable("shared", "Shared beginnings", _sharing_sentence(facts.shared), rows),
        )
    tables = (
        *shared,
        TitledTable(
            "budgets",
            "Budgets",
            "A pack is full when one of its budgets is: the others may have room left.",
            budgets_table(facts.budgets),
        ),
        TitledTable(
            "media",
            "Images, videos and audio",
            f"Their bytes: {'; '.join(facts.media.places())}.",
            media_table(facts.media),
        ),
        TitledTable(
            "mixture",
            "Mixture",
            "Shares that were requested, and shares in the packs; the remaining samples come in "
            "later epochs.",
            mixture_table(facts.mixed),
        ),
        TitledTable(
            "sources",
            "Sources",
            "Share of each source before packing and in the packs: if they differ, dropping and "
            "cutting changed the mix.",
            shares_table(facts.shares or (), facts.has_losses),
        ),
    )
    return [table for table in tables if table.table.rows]


def _sharing_sentence(shared: SharedWork) -> str:
    tokens = shared.tokens
    sentence = (
        f"{tokens.sharing:,} of {counted(tokens.samples, 'sample')} share their beginning with "
        f"others of their pack, in {counted(tokens.trees, 'tree')}. "
    )
    if tokens.not_shared is not None and tokens.not_shared.phrases:
        sentence += f"Not shared: {tokens.not_shared.phrases}. "
    return (
        f"{sentence}The last row is the expected speed-up; loss and optimizer, which have as much "
        "work as without trees, are not in it."
    )


def sharing_table(shared: SharedWork, model: str) -> ReportTable:
    """Compare the samples, each on its own, with their trees."""
    tokens = shared.tokens
    rows: list[Row] = [
        {"": name, "samples": flat, "trees": tree, "times fewer": f"{ratio:.2f}"}
        for name, flat, tree, ratio in (
            ("tokens", tokens.flat_tokens, tokens.tree_tokens, tokens.ratio),
            ("squares of attention", tokens.flat_squares, tokens.tree_squares, tokens.square_ratio),
            (
                f"{shared.unit} of {model}",
                f"{shared.flat_cost:.3g}",
                f"{shared.tree_cost:.3g}",
                shared.speedup,
            ),
        )
    ]
    return ReportTable(rows)


def text_of(cell: Cell) -> str:
    """Return the text of a cell.

    >>> [text_of(cell) for cell in ("a", 1200, Percentage(0.25), None)]
    ['a', '1,200', '25.0 %', '–']
    """
    if cell is None:
        return "–"
    if isinstance(cell, Percentage):
        return percent(cell.ratio, cell.digits)
    return cell if isinstance(cell, str) else f"{cell:,}"


def loss(ratio: float) -> Percentage:
    """Return the cell of a lost share."""
    return Percentage(ratio, digits=2, is_lost=ratio >= MUCH_LOST)


def runs_table(advice: Advice) -> ReportTable:
    """Compare a step of the unpacked run with a step of the packed one."""
    longest, capacity = advice.padded_to_longest, advice.padded_to_capacity
    packed_steps = {"packed, nothing else changed": advice.packed}
    if not advice.nothing_to_set:
        packed_steps[f"packed, {advice.best_setting}"] = advice.best.step
    # A run is its name, its step, and the positions of a step: padded rows, or aligned packs.
    runs = [
        ("unpacked, padded to the longest", advice.unpacked, longest.step_tokens),
        (f"unpacked, padded to {advice.capacity:,}", advice.unpacked, capacity.step_tokens),
        *(
            (run, step, advice.positions_per_token * step.tokens)
            for run, step in packed_steps.items()
        ),
    ]
    rows: list[Row] = [
        {
            "run": run,
            "rows/step": step.rows,
            "samples/step": round(step.samples),
            "tokens/step": round(step.tokens),
            "with padding": round(positions),
            "loss tokens, at most": round(step.loss_tokens or 0),
            "steps/epoch": step.steps_per_epoch,
        }
        for run, step, positions in runs
    ]
    table = ReportTable(rows, strong=len(rows) - 1)
    return table.without("loss tokens, at most") if advice.unpacked.loss_tokens is None else table


def choices_table(advice: Advice) -> ReportTable:
    """List the choices of settings, with learning rates by linear and by square root scaling."""
    rows: list[Row] = []
    for choice in advice.choices:
        sgd, adam = advice.rates(choice)
        packs, accumulation = choice.packs_per_micro_batch, choice.gradient_accumulation_steps
        rows.append(
            {
                "packs × accumulation": f"{packs:,} × {accumulation:,}",
                "samples/step": round(choice.step.samples),
                "ratio": f"{choice.batch_ratio:.2f}",
                "tokens/step": round(choice.step.tokens),
                "steps/epoch": choice.step.steps_per_epoch,
                "LR, SGD": sgd,
                "LR, Adam": adam,
                "warm-up": choice.warmup_steps,
            }
        )
    remarks = [", ".join(choice.merits) for choice in advice.choices]
    table = ReportTable(rows, remarks, strong=advice.recommended)
    return table.without("warm-up") if advice.warmup_steps is None else table


def _planned(packs: PackingOutcome) -> Row:
    return {
        "capacity": packs.capacity,
        "packs": packs.num_packs,
        "fill": percent(packs.fill_ratio, 2),
        "samples/pack": f"{packs.samples_per_pack:,.1f}",
        "too long": packs.oversized,
        "tokens lost": loss(packs.lost_ratio),
    }


def sweep_table(points: Sequence[CapacityPoint]) -> ReportTable:
    """List other capacities."""
    rows: list[Row] = [
        {
            **_planned(point),
            "padded to it": f"{percent(point.padded_fill_ratio)} full",
            "steps/epoch": point.steps_per_epoch,
        }
        for point in points
    ]
    return ReportTable(rows, ["← much is lost" if point.loses_much else "" for point in points])


def comparison_table(plans: Sequence[Alternative]) -> ReportTable:
    """List other capacities and algorithms."""
    rows: list[Row] = [
        {
            "capacity": plan.capacity,
            "algorithm": plan.algorithm,
            **_planned(plan),
            "over bound": plan.over_bound,
            "steps/epoch": plan.steps_per_epoch,
        }
        for plan in plans
    ]
    return ReportTable(rows, ["← this plan" if plan.chosen else "" for plan in plans])


def budgets_table(fills: Sequence[BudgetFill]) -> ReportTable:
    """List the fill of packs in each budget."""
    rows: list[Row] = []
    for fill in fills:
        color = "one" if fill.name == "tokens" else "two"
        rows.append(
            {
                "budget": fill.name.replace("_", " "),
                "limit of a pack": fill.capacity,
                "fill": None if fill.fill_ratio is None else Percentage(fill.fill_ratio, color),
                "least": fill.least,
                "mean": f"{fill.mean:,.1f}",
                "most": fill.most,
                "in all packs": fill.total,
            }
        )
    return ReportTable(rows)


def media_table(media: MediaCensus) -> ReportTable:
    """Count the media of a store, one kind a row."""
    rows: list[Row] = []
    for modality, count in media.kinds.items():
        row: Row = {
            "kind": modality,
            "in packs": count.count,
            "distinct": count.distinct,
            "bytes": size_of(count.bytes),
            "tokens": count.tokens,
            "patches": count.patches,
            "frames": count.frames,
            "columns of spectrograms": count.mel_frames,
            "largest": None,
        }
        medium = count.largest
        if medium is not None:
            row["largest"] = f"{medium.name!r} of sample {medium.sample}: {medium.tokens:,} tokens"
        rows.append(row)
    return ReportTable(rows)


def shares_table(shares: Sequence[SourceShare], has_plan: bool) -> ReportTable:
    """List the share of each source; before packing and after if there is a plan."""

    def of_all(name: str, source: SourceShare, color: str) -> Percentage:
        total = sum(getattr(one, name) for one in shares)
        return Percentage(getattr(source, name) / max(1, total), color)

    rows: list[Row] = [
        {
            "source": source.name,
            "samples": source.samples,
            "of samples": of_all("samples", source, "one"),
            "of packed samples": of_all("samples_packed", source, "one"),
            "tokens": source.tokens,
            "of tokens": of_all("tokens", source, "two"),
            "of packed tokens": of_all("tokens_packed", source, "two"),
            # A source that loses much is marked, even if the whole plan loses little.
            "tokens lost": loss((source.tokens - source.tokens_packed) / max(1, source.tokens)),
        }
        for source in shares
    ]
    table = ReportTable(rows)
    # Without a plan nothing is packed or lost.
    lost_heads = ("of packed samples", "of packed tokens", "tokens lost")
    return table if has_plan else table.without(*lost_heads)


def mixture_table(sources: Sequence[SourceDraws]) -> ReportTable:
    """List the share of each source of a mixture, requested and realized."""
    rows: list[Row] = [
        {
            "source": source.source,
            "asked for": Percentage(source.requested, "one"),
            "realized": Percentage(source.realised, "two"),
            "samples packed": source.draws,
            "repeats": source.draws - source.distinct,
            "tokens packed": source.tokens,
            "samples left": source.left,
            "targets count": f"{source.factor or 0:.4g}",
        }
        for source in sources
    ]
    is_weighted = any(source.factor is not None for source in sources)
    return ReportTable(rows) if is_weighted else ReportTable(rows).without("targets count")


def orders_table(work: RankBalance) -> ReportTable:
    """List the waiting of ranks under each order of packs: slowest rank ÷ mean rank."""
    rows: list[Row] = []
    for order, costs in work.orders.items():
        loads = (costs.rank_tokens, costs.rank_squares)
        tokens, squares = (f"{max(load) * len(load) / sum(load):.3f}" for load in loads)
        rows.append(
            {
                "order of packs": order,
                "mean wait": f"{costs.mean:.3f}",
                "99 % of steps below": f"{costs.p99:.3f}",
                "worst step": f"{costs.worst:.3f}",
                "ranks meet once a step": f"{costs.mean_at_step:.3f}",
                "Σ length": tokens,
                "Σ length²": squares,
            }
        )
    return ReportTable(rows)


def components_table(components: Sequence[ComponentBalance]) -> ReportTable:
    """List the waiting in each part of a model: slowest rank ÷ mean rank over the epoch."""
    rows: list[Row] = [
        {
            "part of the model": component.part.value.replace("_", " "),
            "share of the cost": percent(component.share),
            "in seeded order": f"{component.as_it_comes:.3f}",
            "balanced by cost": f"{component.balanced:.3f}",
            "balanced for it alone": f"{component.alone:.3f}",
        }
        for component in components
    ]
    return ReportTable(rows)

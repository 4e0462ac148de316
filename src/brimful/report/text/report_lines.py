"""A report as lines, and its tables."""

from brimful.base.wording import setting
from brimful.lengths.table import LengthTable
from brimful.plan.counts.histogram import Histogram
from brimful.report.analysis.advice import Advice
from brimful.report.analysis.facts import Facts
from brimful.report.analysis.plan_facts import count_bins, ratio_edges
from brimful.report.table_model import (
    Percentage,
    ReportTable,
    Row,
    choices_table,
    components_table,
    orders_table,
    runs_table,
    sweep_table,
    text_of,
    titled_tables,
)
from brimful.report.text.artefact_lines import describe_lengths, describe_plan


def draw_table(table: ReportTable) -> list[str]:
    """Draw a table with aligned columns, each row followed by its remark.

    >>> draw_table(ReportTable([{"capacity": 64, "packs": 1200}, {"capacity": 128, "packs": 9}], ["", "← best"]))
    ['  capacity  packs', '        64  1,200', '       128      9  ← best']
    """
    columns = [[head, *(text_of(row[head]) for row in table.rows)] for head in table.rows[0]]
    widths = [max(map(len, column)) for column in columns]
    lines = ["".join(map("  {:>{}}".format, row, widths)) for row in zip(*columns, strict=True)]
    for index, remark in enumerate(table.remarks, start=1):
        lines[index] += f"  {remark}" if remark else ""
    return lines


_BAR_WIDTH = 48
"""Characters of the longest bar."""


def describe_facts(facts: Facts) -> list[str]:
    """Describe everything, with choices and steps only for a run of more than one pack a step."""
    lines = []
    has_steps = facts.run.packs_per_step > 1
    if facts.table is not None:
        lines += [*describe_lengths(facts.table), "", *draw_histogram(facts.table)]
    if facts.plan is not None:
        lines += ["", *describe_plan(facts.plan)]
    lines += facts.media.lines()
    for section in titled_tables(facts):
        lines += ["", f"{section.title}: {section.caption}", *draw_table(section.table)]
    if facts.work is not None:
        lines += [
            "",
            f"slowest rank ÷ mean rank, {facts.run.model}",
            *draw_table(orders_table(facts.work)),
        ]
        if facts.work.parts:
            lines += ["", *draw_table(components_table(facts.work.parts))]
        lines += [f"warning        {note}" for note in facts.work.notes]
    if facts.advice is not None:
        lines += ["", *describe_advice(facts.advice)]
        if has_steps:
            lines += ["", *draw_choices(facts.advice)]
        else:
            names = ("dp_world_size", "micro_batch_size", "gradient_accumulation_steps")
            lines.append(f"               for your run add {', '.join(map(setting, names))}")
    if facts.sweep:
        sweep = sweep_table(facts.sweep)
        sweep = sweep if has_steps else sweep.without("steps/epoch")
        alone = "" if facts.shared is None else ", each sample on its own"
        lines += ["", f"other capacities, by best fit decreasing{alone}", *draw_table(sweep)]
    return lines


def describe_advice(advice: Advice) -> list[str]:
    """Describe a step before and after packing, and the settings that restore it.

    >>> from brimful.plan import CostModel, plan_packs
    >>> from brimful.report.analysis.advice import advise
    >>> plan = plan_packs([4, 4, 2, 2], capacity=8, algorithm="next_fit")
    >>> for line in describe_advice(advise(None, plan, dp_world_size=1, micro_batch_size=1,
    ...     gradient_accumulation_steps=2, cost_model=CostModel(linear=1, quadratic=0)))[:2]:
    ...     print(line)
    samples/step   4, was 2 unpacked -> accumulation 2 → 1 gives 2
    steps/epoch    1, was 2 unpacked -> accumulation 1 gives 2
    """
    packed_step, unpacked_step, best_step = advice.packed, advice.unpacked, advice.best.step
    samples = (
        f"samples/step   {packed_step.samples:,.0f}, was {unpacked_step.samples:,.0f} unpacked"
    )
    steps = (
        f"steps/epoch    {packed_step.steps_per_epoch:,}, was "
        f"{unpacked_step.steps_per_epoch:,} unpacked"
    )
    if not advice.nothing_to_set:
        samples += f" -> {_changes(advice)} gives {best_step.samples:,.0f}"
        steps += f" -> {advice.best_setting} gives {best_step.steps_per_epoch:,}"
    return [samples, steps, "", *draw_table(runs_table(advice))]


def _changes(advice: Advice) -> str:
    """List the settings that differ in the recommended choice, with both values."""
    best = advice.best
    settings = (
        ("accumulation", advice.gradient_accumulation_steps, best.gradient_accumulation_steps),
        ("packs a forward", advice.packs_per_micro_batch, best.packs_per_micro_batch),
    )
    return ", ".join(
        f"{name} {current:,} → {value:,}" for name, current, value in settings if current != value
    )


def draw_choices(advice: Advice) -> list[str]:
    """Draw the choices as a table, and list the notes with their sources."""
    lines = [*draw_table(choices_table(advice)), ""]
    return lines + [f"{note.topic:<15}{note.text} [{note.source}]" for note in advice.notes]


def draw_histogram(table: LengthTable) -> list[str]:
    """Draw samples and tokens by length, in bins that double.

    A heavy tail shows as few samples that hold many of the tokens.
    """
    values = table.tokens[table.tokens > 0]
    if not len(values):
        return []
    items = Histogram.of(values)
    bins = count_bins(items, ratio_edges(int(values.min()), int(values.max()), per_octave=1))
    max_count = max(length_bin.number for length_bin in bins)
    rows: list[Row] = [
        {
            "tokens": f"{length_bin.begin:,} … {length_bin.end - 1:,}",
            "samples": length_bin.number,
            "share of tokens": Percentage(length_bin.total / items.total),
        }
        for length_bin in bins
    ]
    bars = ["█" * round(_BAR_WIDTH * length_bin.number / max_count) for length_bin in bins]
    # A bin that holds anything shows something.
    bars = [
        bar or "▏" * bool(length_bin.number) for bar, length_bin in zip(bars, bins, strict=True)
    ]
    return draw_table(ReportTable(rows, bars))

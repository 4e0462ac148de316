"""The parts of the page that are drawn: lengths, packs, capacities, work."""

from __future__ import annotations

import math
from typing import Any

from brimful.messages import counted, in_python, setting
from brimful.report.charts import Axis, Bar, Chart, decade_axis, decimal, linear_axis, log_axis, round_ticks
from brimful.report.facts import ALIKE
from brimful.report.markup import Cell, figure, loss, paragraph, percent, section, table, warning, whole
from brimful.report.sweep import CapacityPoint
from brimful.report.work import Schedule, Work

__all__ = ["capacity_section", "lengths_section", "packs_section", "work_section"]


def _percent_axis(label: str, most: float) -> Axis:
    return linear_axis(label, 0, 100 * most, show=lambda value: f"{value:g} %")


def lengths_section(lengths: dict[str, Any], capacity: int | None) -> str:
    """How long samples are, and which of them hold the tokens."""
    of, number, tokens = lengths["of"], lengths["number"], lengths["tokens"]
    classes = lengths["classes"]
    most = max(max(one["number"] / number, one["total"] / tokens) for one in classes)
    chart = Chart(
        f"Lengths of {of}",
        f"Each pair of bars is one class of lengths: where the second bar is taller, a few long {of} hold many of the "
        f"tokens.",
        log_axis(f"length of a {of[:-1]} in tokens (k = 1,024)", classes[0]["begin"], classes[-1]["end"]),
        _percent_axis("share of the whole", most),
    )
    for colour, key, whole_of, what, half in (
        ("one", "number", number, of[:-1], 0),
        ("two", "total", tokens, "token", 1),
    ):
        bars = []
        for one in classes:
            begin, end = one["begin"], one["end"]
            middle = math.sqrt(begin * end)
            span = f"{begin:,} … {end - 1:,} tokens" if end - begin > 1 else counted(begin, "token")
            says = f"{span}: {counted(one[key], what)}, {percent(one[key] / whole_of)}"
            bars.append(Bar(middle if half else begin, end if half else middle, 100 * one[key] / whole_of, says))
        chart.bars(colour, bars, gap=0.6)
    if capacity is not None and chart.x.begin <= capacity <= chart.x.end:
        chart.mark(capacity, f"capacity {capacity:,}")
    marks = [
        (name, whole(lengths[key]))
        for name, key in (
            ("shortest", "shortest"),
            ("5 % are at most", "p5"),
            ("half are at most", "median"),
            ("mean", "mean"),
            ("95 % are at most", "p95"),
            ("99 % are at most", "p99"),
            ("longest", "longest"),
        )
    ]
    verb = "holds" if number == 1 else "hold"
    words = f"{counted(number, of[:-1])} {verb} {counted(tokens, 'token')}."
    if of == "segments":
        words += " There is no length table here, so these are the segments of the plan, after dropping and cutting."
    drawn = figure(chart, "chart-lengths", [("one", f"share of {of}"), ("two", "share of tokens")])
    return section(
        "lengths", "Lengths", paragraph(words), f'<div class="pair">{drawn}{table(["length", "tokens"], marks)}</div>'
    )


def packs_section(plan: dict[str, Any]) -> str:
    """How full packs are, and how many samples share one."""
    variety = plan.get("variety")
    words = []
    if variety is not None:
        words.append(paragraph(f"How packs differ from the data: {'; '.join(variety['words'])}."))
        if variety["packs"]["alikeness"] > ALIKE:
            words.append(
                paragraph(
                    in_python(
                        f"Segments of a pack are alike. With {setting('mix', True)} they are exchanged, at no cost in fill."
                    )
                )
            )
    return section("packs", "Packs", f'<div class="pair">{_fill(plan)}{_sizes(plan)}</div>', *words)


def _fill(plan: dict[str, Any]) -> str:
    fill, number = plan["fill"], plan["num_packs"]
    edges, packs = fill["edges"], fill["packs"]
    chart = Chart(
        "Fill of packs",
        f"Bars are packs by fill, the line is the share of packs at most so full: the further right, the less padding. "
        f"{percent(fill['full'] / number)} are full to the last token; emptier than the axis shows: {fill['below']:,}.",
        Axis("fill of a pack", edges[0], edges[-1], round_ticks(edges[0], edges[-1], 6), lambda value: f"{value:g} %"),
        _percent_axis("share of packs", 1.0),
    )
    bars = [
        Bar(
            begin,
            end,
            100 * count / number,
            f"{begin:g} … {end:g} %: {counted(count, 'pack')}, {percent(count / number)}",
        )
        for begin, end, count in zip(edges, edges[1:], packs, strict=False)
    ]
    chart.bars("one", bars)
    upto, points = fill["below"], []
    for edge, count in zip(edges, [0, *packs], strict=True):
        upto += count
        points.append((edge, 100 * upto / number))
    chart.line("two", points)
    return figure(chart, "chart-fill", [("one", "packs of this fill"), ("two", "packs at most so full")])


def _sizes(plan: dict[str, Any]) -> str:
    sizes, number = plan["samples_per_pack"], plan["num_packs"]
    classes = sizes["classes"]
    begin, end = classes[0]["begin"], classes[-1]["end"]
    label = "samples (segments) in a pack"
    one_each = all(one["end"] - one["begin"] == 1 for one in classes)
    if sizes["logarithmic"]:
        axis, shift = decade_axis(label, begin, end), 0.0
    elif one_each:  # a bar stands over its number
        axis, shift = Axis(label, begin - 0.5, end - 0.5, round_ticks(begin, end - 1, 9, whole=True), decimal), 0.5
    else:
        axis, shift = linear_axis(label, begin, end), 0.0
    chart = Chart(
        "Samples in a pack",
        f"Bars are packs by how many samples share them: {whole(sizes['least'])} to {whole(sizes['most'])}, "
        f"{sizes['mean']:,.1f} on average, which is the factor by which an unchanged batch size grows.",
        axis,
        _percent_axis("share of packs", max(one["number"] for one in classes) / number),
    )
    bars = []
    for one in classes:
        span = f"{one['begin']:,}" if one["end"] - one["begin"] == 1 else f"{one['begin']:,} … {one['end'] - 1:,}"
        noun = "sample" if span == "1" else "samples"
        says = f"{span} {noun}: {counted(one['number'], 'pack')}, {percent(one['number'] / number)}"
        bars.append(Bar(one["begin"] - shift, one["end"] - shift, 100 * one["number"] / number, says))
    chart.bars("one", bars)
    return figure(chart, "chart-sizes")


def capacity_section(points: list[CapacityPoint], packs_per_step: int, capacity: int | None) -> str:
    """What other capacities would give."""
    first, last = points[0].capacity, points[-1].capacity
    axis = log_axis("capacity in tokens (k = 1,024)", first, last)
    fill = Chart(
        "Fill by capacity",
        "The upper line is packing, the lower one a row for each sample padded to the capacity: the gap is what packing "
        "saves.",
        axis,
        _percent_axis("real tokens ÷ positions", 1.0),
    )
    fill.line("one", [(point.capacity, 100 * point.fill_ratio) for point in points], dots=True)
    fill.line("two", [(point.capacity, 100 * point.padded_fill_ratio) for point in points], dots=True)
    steps = Chart(
        "Steps an epoch by capacity",
        f"Steps of {counted(packs_per_step, 'pack')}: a longer pack holds more samples, so an unchanged batch means fewer, larger "
        f"steps.",
        axis,
        decade_axis(
            "steps an epoch",
            max(1, min(point.steps_per_epoch(packs_per_step) for point in points)),
            max(point.steps_per_epoch(packs_per_step) for point in points),
        ),
    )
    steps.line("one", [(point.capacity, point.steps_per_epoch(packs_per_step)) for point in points], dots=True)
    for chart in (fill, steps):
        if capacity is not None and axis.begin <= capacity <= axis.end:
            chart.mark(capacity, f"this plan: {capacity:,}")
    rows = [
        [
            whole(point.capacity),
            whole(point.num_packs),
            percent(point.fill_ratio, 2),
            f"{point.samples_per_pack:,.1f}",
            whole(point.steps_per_epoch(packs_per_step)),
            whole(point.oversized),
            loss(point.lost_ratio, much=point.loses_much),
            percent(point.padded_fill_ratio),
        ]
        for point in points
    ]
    heads = [
        "capacity",
        "packs",
        "fill",
        "samples a pack",
        "steps an epoch",
        "too long",
        "tokens lost",
        "fill if padded",
    ]
    legend = [("one", "packed"), ("two", "padded")]
    return section(
        "capacities",
        "Other capacities",
        paragraph("The same lengths planned anew, best fit decreasing, leaving out what is longer than the capacity."),
        *_capacities_that_lose(points),
        f'<div class="pair">{figure(fill, "chart-capacity", legend)}{figure(steps, "chart-steps")}</div>',
        table(heads, rows),
    )


def _capacities_that_lose(points: list[CapacityPoint]) -> list[str]:
    """A warning on capacities that much is too long for."""
    lost = [f"{percent(point.lost_ratio)} at {point.capacity:,}" for point in points if point.loses_much]
    return [warning(f"Too long, and so left out, of all tokens: {', '.join(lost)}.")] if lost else []


def work_section(work: Work, run: dict[str, Any]) -> str:
    """What ranks have to do, and how long they wait for each other."""
    ranks = len(work.balanced.rank_tokens)
    pairs = [("one", "in seeded order", work.as_it_comes), ("two", "balanced by cost", work.balanced)]
    spans = [span for _, _, schedule in pairs for span in schedule.spans]
    shown, width = len(work.balanced.spans), work.num_steps / len(work.balanced.spans)
    by_step = Chart(
        "Cost of a step on the ranks",
        "Each bar reaches from the rank with least work to the one with most, mean 1: the shorter, the less ranks wait. "
        + ("All steps." if shown == work.num_steps else f"{shown} of {work.num_steps:,} steps, evenly spread."),
        Axis(
            "step",
            -width / 2,
            work.num_steps - 1 + width / 2,
            round_ticks(0, work.num_steps - 1, whole=True),
            lambda step: f"{step:,}",
        ),
        linear_axis("cost ÷ mean", min(span.least for span in spans), max(span.most for span in spans), _ratio),
    )
    for number, (colour, name, schedule) in enumerate(pairs):
        begin = -0.45 + 0.45 * number
        by_step.bars(
            colour,
            [
                Bar(span.step + begin * width, span.step + (begin + 0.45) * width, span.most, f"step {span.step:,}, {name}: {span.least:.3f} … {span.most:.3f}", span.least)
                for span in schedule.spans
            ],
            gap=0.4,
            least=3,
        )  # fmt: skip
    squares = {name: _over_mean(schedule.rank_squares) for _, name, schedule in pairs}
    values = [value for each in squares.values() for value in each]
    by_rank = Chart(
        "Squares of lengths on each rank",
        "Sum of the squares of segment lengths over the epoch, which attention is proportional to: a flat line is equal "
        "work.",
        Axis("data-parallel rank", 0, max(1, ranks - 1), round_ticks(0, ranks - 1, 9, whole=True)),
        linear_axis("Σ length² ÷ mean", min(values), max(values), _ratio),
    )
    for colour, name, _ in pairs:
        by_rank.line(colour, list(enumerate(squares[name])), dots=ranks <= 32)
    legend = [(colour, name) for colour, name, _ in pairs]
    rows = [_schedule_row(name, schedule) for _, name, schedule in pairs]
    heads = [
        "order of packs",
        "mean wait",
        "99 % of steps below",
        "worst step",
        "ranks meet once a step",
        "Σ length",
        "Σ length²",
    ]
    words = (
        f"{run['model']}: attention over squares is {percent(work.attention_ratio)} of the cost, and the most costly pack "
        f"costs {work.pack_cost_spread:.2f} times the mean. {counted(work.num_steps, 'full step')} on {counted(ranks, 'rank')}."
    )
    read = (
        "Slowest rank ÷ mean rank: 1.000 is no waiting. The first three columns are for sharded parameters (FSDP, ZeRO-3), "
        "where ranks meet at every micro-batch. The last two: most ÷ mean over the ranks, of an epoch."
    )
    return section(
        "work",
        "Cost on ranks and steps",
        paragraph(words),
        f'<div class="pair">{figure(by_step, "chart-steps-cost", legend)}{figure(by_rank, "chart-ranks", legend)}</div>',
        table(heads, rows),
        paragraph(read, "fine"),
    )


def _ratio(value: float) -> str:
    return f"{value:g}"


def _over_mean(values: list[int]) -> list[float]:
    mean = sum(values) / len(values)
    return [value / mean for value in values]


def _schedule_row(name: str, schedule: Schedule) -> list[Cell]:
    waits = [schedule.mean, schedule.p99, schedule.worst, schedule.mean_at_step]
    most = [max(_over_mean(schedule.rank_tokens)), max(_over_mean(schedule.rank_squares))]
    return [name, *(f"{value:.3f}" for value in waits + most)]

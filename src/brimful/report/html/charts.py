"""Charts of the page: lengths, packs, capacities, work."""

import math
from itertools import accumulate, pairwise

from brimful.base.wording import counted, percent
from brimful.report.analysis.plan_facts import FillFacts, LengthFacts, SizeFacts
from brimful.report.analysis.rank_balance import RankBalance
from brimful.report.analysis.what_if import CapacityPoint
from brimful.report.html.markup import figure
from brimful.report.html.svg import (
    Axis,
    Bar,
    Chart,
    decade_axis,
    linear_axis,
    log_axis,
)

_COLORS = ("one", "two")
"""Colors of the first and the second series of a chart."""


def _percent_axis(label: str, max_ratio: float) -> Axis:
    return linear_axis(label, 0, 100 * max_ratio, show="{:g} %".format)


def _share_bar(begin: float, end: float, span: str, number: int, total: int, noun: str) -> Bar:
    """Return a bar as high as a share in percent; its title describes its span."""
    title = f"{span}: {counted(number, noun)}, {percent(number / total)}"
    return Bar(begin, end, 100 * number / total, title)


def lengths_chart(lengths: LengthFacts, capacity: int | None) -> str:
    """Draw the distribution of lengths, by samples and by tokens."""
    plural, number, tokens, bins = lengths.of, lengths.number, lengths.tokens, lengths.classes
    singular = plural[:-1]
    max_ratio = max(max(one.number / number, one.total / tokens) for one in bins)
    chart = Chart(
        f"Lengths of {plural}",
        "Each pair of bars is one class of lengths: where the second bar is taller, a few long "
        f"{plural} hold many of the tokens.",
        log_axis(f"length of a {singular} in tokens (k = 1,024)", bins[0].begin, bins[-1].end),
        _percent_axis("share of the whole", max_ratio),
    )
    # A pair of bars meets at the middle of its bin: samples on the left, tokens on the right.
    sample_bars, token_bars = [], []
    for one in bins:
        middle, span = math.sqrt(one.begin * one.end), one.describe("token")
        sample_bars.append(_share_bar(one.begin, middle, span, one.number, number, singular))
        token_bars.append(_share_bar(middle, one.end, span, one.total, tokens, "token"))
    chart.bars("one", sample_bars, gap=0.6)
    chart.bars("two", token_bars, gap=0.6)
    chart.mark(capacity, "capacity")
    return figure(
        chart, "chart-lengths", [("one", f"share of {plural}"), ("two", "share of tokens")]
    )


def fill_chart(fill: FillFacts, num_packs: int) -> str:
    """Draw the distribution of the fill of packs."""
    edges = fill.edges
    chart = Chart(
        "Fill of packs",
        "Bars are packs by fill, the line is the share of packs up to a fill: the further right, "
        f"the less padding. {percent(fill.full / num_packs)} are full to the last token; "
        f"packs emptier than the axis shows: {fill.below:,}.",
        linear_axis("fill of a pack", edges[0], edges[-1], "{:g} %".format),
        _percent_axis("share of packs", 1.0),
    )
    bars = [
        _share_bar(begin, end, f"{begin:g} … {end:g} %", packs, num_packs, "pack")
        for (begin, end), packs in zip(pairwise(edges), fill.packs, strict=True)
    ]
    chart.bars("one", bars)
    # The line begins with the packs that are emptier than the axis shows.
    cumulative = accumulate(fill.packs, initial=fill.below)
    chart.line(
        "two",
        [(edge, 100 * packs / num_packs) for edge, packs in zip(edges, cumulative, strict=True)],
    )
    return figure(
        chart, "chart-fill", [("one", "packs of this fill"), ("two", "packs up to this fill")]
    )


def sizes_chart(sizes: SizeFacts, num_packs: int) -> str:
    """Draw the distribution of the number of samples in a pack."""
    bins = sizes.classes
    begin, end = bins[0].begin, bins[-1].end
    label = "samples (segments) in a pack"
    axis = (
        decade_axis(label, begin, end)
        if sizes.logarithmic
        else linear_axis(label, begin, end, whole=True)
    )
    chart = Chart(
        "Samples in a pack",
        f"Bars are packs by how many samples share them: {sizes.least:,} to {sizes.most:,}, "
        f"{sizes.mean:,.1f} on average, which is the factor by which an unchanged batch size "
        "grows.",
        axis,
        _percent_axis("share of packs", max(one.number for one in bins) / num_packs),
    )
    bars = [
        _share_bar(one.begin, one.end, one.describe("sample"), one.number, num_packs, "pack")
        for one in bins
    ]
    chart.bars("one", bars)
    return figure(chart, "chart-sizes")


def capacity_charts(
    points: list[CapacityPoint], packs_per_step: int, capacity: int | None
) -> list[str]:
    """Draw fill and steps at other capacities."""
    num_steps = [point.steps_per_epoch for point in points]
    # Both charts share the axis of capacities, so a mark is at the same place in both.
    axis = log_axis("capacity in tokens (k = 1,024)", points[0].capacity, points[-1].capacity)
    fill = Chart(
        "Fill by capacity",
        "The upper line is packing, the lower one a row for each sample padded to the capacity: "
        "the gap is what packing saves.",
        axis,
        _percent_axis("real tokens ÷ positions", 1.0),
    )
    fill.line("one", [(point.capacity, 100 * point.fill_ratio) for point in points], dots=True)
    fill.line(
        "two", [(point.capacity, 100 * point.padded_fill_ratio) for point in points], dots=True
    )
    steps = Chart(
        "Steps an epoch by capacity",
        f"Steps of {counted(packs_per_step, 'pack')}: a longer pack holds more samples, so an "
        "unchanged batch means fewer, larger steps.",
        axis,
        decade_axis("steps an epoch", min(num_steps), max(num_steps)),
    )
    steps.line("one", [(point.capacity, point.steps_per_epoch) for point in points], dots=True)
    for chart in (fill, steps):
        chart.mark(capacity, "this plan:")
    return [
        figure(fill, "chart-capacity", [("one", "packed"), ("two", "padded")]),
        figure(steps, "chart-steps"),
    ]


def work_charts(work: RankBalance) -> list[str]:
    """Draw the costs of each step, and the squares of lengths of each rank."""
    legend = list(zip(_COLORS, work.orders, strict=True))
    return [
        figure(_costs_by_step(work), "chart-steps-cost", legend),
        figure(_squares_by_rank(work), "chart-ranks", legend),
    ]


def _costs_by_step(work: RankBalance) -> Chart:
    """Draw the cheapest and the costliest rank of each step, one bar for each order of packs."""
    spans = [span for costs in work.orders.values() for span in costs.spans]
    num_spans, last = len(work.balanced.spans), work.num_steps - 1
    width = work.num_steps / num_spans
    steps = (
        "All steps."
        if num_spans == work.num_steps
        else f"{num_spans} of {work.num_steps:,} steps, evenly spread."
    )
    chart = Chart(
        "Cost of a step on the ranks",
        "Each bar reaches from the rank with least work to the one with most, mean 1: the shorter, "
        f"the less ranks wait. {steps}",
        linear_axis("step", 0, last + width, "{:,}".format, whole=True),
        linear_axis(
            "cost ÷ mean",
            min(span.least for span in spans),
            max(span.most for span in spans),
            "{:g}".format,
        ),
    )
    # The bars of one step lie side by side, each 0.45 of its width wide.
    for shift, color, (order, costs) in zip((0, 0.45), _COLORS, work.orders.items(), strict=True):
        bars = []
        for span in costs.spans:
            begin = span.step + shift * width
            title = f"step {span.step:,}, {order}: {span.least:.3f} … {span.most:.3f}"
            bars.append(Bar(begin, begin + 0.45 * width, span.most, title, span.least))
        chart.bars(color, bars, gap=0.4, min_height=3)
    return chart


def _squares_by_rank(work: RankBalance) -> Chart:
    """Draw the sum of squares of each rank, one line for each order of packs."""
    # Over the mean, so that a flat line at 1 is equal work at any size of data.
    lines = []
    for costs in work.orders.values():
        mean = sum(costs.rank_squares) / len(costs.rank_squares)
        lines.append([squares / mean for squares in costs.rank_squares])
    ratios = [ratio for line in lines for ratio in line]
    ranks = len(lines[0])
    chart = Chart(
        "Squares of lengths on each rank",
        "Sum of the squares of segment lengths over the epoch, which attention is proportional to: "
        "a flat line is equal work.",
        linear_axis("data-parallel rank", 0, ranks - 1, whole=True),
        linear_axis("Σ length² ÷ mean", min(ratios), max(ratios), "{:g}".format),
    )
    for color, line in zip(_COLORS, lines, strict=True):
        chart.line(color, list(enumerate(line)), dots=ranks <= 32)
    return chart

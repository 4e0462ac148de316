"""Parts of the page that are drawn: lengths, packs, capacities, work."""

import math
from itertools import accumulate, pairwise

from brimful.messages import counted, in_python, percent, setting, whole
from brimful.report.analysis.capacity_sweep import CapacityPoint
from brimful.report.analysis.length_facts import LengthFacts
from brimful.report.analysis.plan_facts import FillFacts, PlanFacts, SizeFacts
from brimful.report.analysis.rank_balance import OrderCosts, RankBalance
from brimful.report.html.markup import Column, figure, loss, paragraph, section, table, table_of, warning
from brimful.report.html.svg import Axis, Bar, Chart, decade_axis, decimal, linear_axis, log_axis, round_ticks


def _percent_axis(label: str, max_ratio: float) -> Axis:
    return linear_axis(label, 0, 100 * max_ratio, show="{:g} %".format)


def _share_bar(begin: float, end: float, span: str, number: int, total: int, noun: str) -> Bar:
    """Return a bar as high as a share in percent; its title describes its span."""
    return Bar(begin, end, 100 * number / total, f"{span}: {counted(number, noun)}, {percent(number / total)}")


def lengths_section(lengths: LengthFacts, capacity: int | None) -> str:
    """Return the distribution of lengths, by samples and by tokens."""
    plural, number, tokens, bins = lengths.of, lengths.number, lengths.tokens, lengths.classes
    singular = plural[:-1]
    max_ratio = max(max(length_bin.number / number, length_bin.total / tokens) for length_bin in bins)
    chart = Chart(
        f"Lengths of {plural}",
        f"Each pair of bars is one class of lengths: where the second bar is taller, a few long {plural} hold many of the "
        f"tokens.",
        log_axis(f"length of a {singular} in tokens (k = 1,024)", bins[0].begin, bins[-1].end),
        _percent_axis("share of the whole", max_ratio),
    )
    # A pair of bars shares its bin at the middle of the logarithmic axis: samples on the left, tokens on the right.
    sample_bars, token_bars = [], []
    for length_bin in bins:
        middle, span = math.sqrt(length_bin.begin * length_bin.end), length_bin.describe("token")
        sample_bars.append(_share_bar(length_bin.begin, middle, span, length_bin.number, number, singular))
        token_bars.append(_share_bar(middle, length_bin.end, span, length_bin.total, tokens, "token"))
    chart.bars("one", sample_bars, gap=0.6)
    chart.bars("two", token_bars, gap=0.6)
    chart.mark(capacity, "capacity")

    rows = [
        ("shortest", whole(lengths.shortest)),
        ("5 % are at most", whole(lengths.p5)),
        ("half are at most", whole(lengths.median)),
        ("mean", whole(lengths.mean)),
        ("95 % are at most", whole(lengths.p95)),
        ("99 % are at most", whole(lengths.p99)),
        ("longest", whole(lengths.longest)),
    ]
    words = f"{counted(number, singular)} {'holds' if number == 1 else 'hold'} {counted(tokens, 'token')}."
    if plural == "segments":
        words += " The length table is missing, so these are the segments of the plan, after dropping and cutting."
    svg = figure(chart, "chart-lengths", [("one", f"share of {plural}"), ("two", "share of tokens")])
    return section("lengths", "Lengths", paragraph(words), _pair(svg, table(["length", "tokens"], rows)))


def _pair(figure_1: str, figure_2: str) -> str:
    return f'<div class="pair">{figure_1}{figure_2}</div>'


def packs_section(facts: PlanFacts) -> str:
    """Return the distributions of fill and of samples in a pack; nothing for a plan without packs."""
    if facts.variety is None or facts.fill is None or facts.sizes is None:
        return ""
    words = [paragraph(f"How packs differ from the data: {'; '.join(facts.variety.describe())}.")]
    if facts.is_uniform:
        text = f"Segments of a pack are alike. With {setting('mix', True)} they are exchanged, at no cost in fill."
        words.append(paragraph(in_python(text)))
    charts = _pair(_fill(facts.fill, facts.plan.num_packs), _sizes(facts.sizes, facts.plan.num_packs))
    return section("packs", "Packs", charts, *words)


def _fill(fill: FillFacts, num_packs: int) -> str:
    edges = fill.edges
    chart = Chart(
        "Fill of packs",
        f"Bars are packs by fill, the line is the share of packs up to a fill: the further right, the less padding. "
        f"{percent(fill.full / num_packs)} are full to the last token; packs emptier than the axis shows: {fill.below:,}.",
        Axis("fill of a pack", edges[0], edges[-1], round_ticks(edges[0], edges[-1], 6), "{:g} %".format),
        _percent_axis("share of packs", 1.0),
    )
    bars = [
        _share_bar(begin, end, f"{begin:g} … {end:g} %", packs, num_packs, "pack")
        for (begin, end), packs in zip(pairwise(edges), fill.packs, strict=True)
    ]
    chart.bars("one", bars)
    # The line begins with the packs that are emptier than the axis shows.
    cumulative = accumulate(fill.packs, initial=fill.below)
    chart.line("two", [(edge, 100 * packs / num_packs) for edge, packs in zip(edges, cumulative, strict=True)])
    return figure(chart, "chart-fill", [("one", "packs of this fill"), ("two", "packs up to this fill")])


def _sizes(sizes: SizeFacts, num_packs: int) -> str:
    bins = sizes.classes
    begin, end = bins[0].begin, bins[-1].end
    label = "samples (segments) in a pack"
    shift = 0.0
    # Few sizes get one bar each, many get a logarithmic axis.
    if sizes.logarithmic:
        axis = decade_axis(label, begin, end)
    elif all(size_bin.end - size_bin.begin == 1 for size_bin in bins):
        shift = 0.5  # the middle of a bar is at its number
        axis = Axis(label, begin - shift, end - shift, round_ticks(begin, end - 1, 9, whole=True), decimal)
    else:
        axis = linear_axis(label, begin, end)
    chart = Chart(
        "Samples in a pack",
        f"Bars are packs by how many samples share them: {whole(sizes.least)} to {whole(sizes.most)}, "
        f"{sizes.mean:,.1f} on average, which is the factor by which an unchanged batch size grows.",
        axis,
        _percent_axis("share of packs", max(size_bin.number for size_bin in bins) / num_packs),
    )
    bars = [
        _share_bar(
            size_bin.begin - shift,
            size_bin.end - shift,
            size_bin.describe("sample"),
            size_bin.number,
            num_packs,
            "pack",
        )
        for size_bin in bins
    ]
    chart.bars("one", bars)
    return figure(chart, "chart-sizes")


def capacity_section(points: list[CapacityPoint], packs_per_step: int, capacity: int | None) -> str:
    """Return fill, steps and losses at other capacities."""
    num_steps = [point.steps_per_epoch for point in points]
    # Both charts share the axis of capacities, so a mark is at the same place in both.
    axis = log_axis("capacity in tokens (k = 1,024)", points[0].capacity, points[-1].capacity)
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
        decade_axis("steps an epoch", max(1, min(num_steps)), max(num_steps)),
    )
    steps.line("one", [(point.capacity, point.steps_per_epoch) for point in points], dots=True)
    for chart in (fill, steps):
        chart.mark(capacity, "this plan:")

    columns: list[Column[CapacityPoint]] = [
        ("capacity", lambda point: whole(point.capacity)),
        ("packs", lambda point: whole(point.num_packs)),
        ("fill", lambda point: percent(point.fill_ratio, 2)),
        ("samples a pack", lambda point: f"{point.samples_per_pack:,.1f}"),
        ("steps an epoch", lambda point: whole(point.steps_per_epoch)),
        ("too long", lambda point: whole(point.oversized)),
        ("tokens lost", lambda point: loss(point.lost_ratio)),
        ("fill if padded", lambda point: percent(point.padded_fill_ratio)),
    ]
    large_losses = [f"{percent(point.lost_ratio)} at {point.capacity:,}" for point in points if point.loses_much]
    return section(
        "capacities",
        "Other capacities",
        paragraph("The same lengths planned again, best fit decreasing, without samples longer than the capacity."),
        warning(f"Too long, and so left out, of all tokens: {', '.join(large_losses)}.") if large_losses else "",
        _pair(figure(fill, "chart-capacity", [("one", "packed"), ("two", "padded")]), figure(steps, "chart-steps")),
        table_of(columns, points),
    )


def work_section(work: RankBalance, model: str) -> str:
    """Return the cost on each rank, and how long ranks wait for each other."""
    ranks = len(work.balanced.rank_tokens)
    orders = [("one", "in seeded order", work.as_it_comes), ("two", "balanced by cost", work.balanced)]
    legend = [(colour, name) for colour, name, _ in orders]
    words = (
        f"{model}: attention over squares is {percent(work.attention_ratio)} of the cost, and the costliest pack "
        f"costs {work.pack_cost_spread:.2f} times the mean. {counted(work.num_steps, 'full step')} on {counted(ranks, 'rank')}."
    )
    heads = ["order of packs", "mean wait", "99 % of steps below", "worst step", "ranks meet once a step"]
    rows = []
    for _, name, costs in orders:
        loads = (max(_over_mean(costs.rank_tokens)), max(_over_mean(costs.rank_squares)))
        ratios = (costs.mean, costs.p99, costs.worst, costs.mean_at_step, *loads)
        rows.append([name, *(f"{ratio:.3f}" for ratio in ratios)])
    reading = (
        "Slowest rank ÷ mean rank: 1.000 = no wait. The first three columns are for sharded parameters (FSDP, ZeRO-3), "
        "where ranks meet at every micro-batch. The last two: most ÷ mean over the ranks, of an epoch."
    )
    step_figure = figure(_costs_by_step(work, orders), "chart-steps-cost", legend)
    return section(
        "work",
        "Cost on ranks and steps",
        paragraph(words),
        _pair(step_figure, figure(_squares_by_rank(ranks, orders), "chart-ranks", legend)),
        table([*heads, "Σ length", "Σ length²"], rows),
        paragraph(reading, "fine"),
        *_part_rows(work),
        *(warning(f"{note[0].upper()}{note[1:]}.") for note in work.notes),
    )


def _part_rows(work: RankBalance) -> list[str]:
    """Return the table of towers and language model; nothing for a model of texts."""
    if not work.parts:
        return []
    rows = [
        [
            one.part.value.replace("_", " "),
            percent(one.share),
            *(f"{ratio:.3f}" for ratio in (one.as_it_comes, one.balanced, one.alone)),
        ]
        for one in work.parts
    ]
    words = (
        "Parts of the model run one after the other, and ranks wait for each other in each: slowest ÷ mean rank over the "
        "epoch. The last column is what an order for that part alone would reach."
    )
    heads = ["part of the model", "share of the cost", "in seeded order", "balanced by cost", "balanced for it alone"]
    return [table(heads, rows), paragraph(words, "fine")]


def _costs_by_step(work: RankBalance, orders: list[tuple[str, str, OrderCosts]]) -> Chart:
    """Draw the cheapest and the costliest rank of each step, one bar for each order of packs."""
    spans = [span for _, _, costs in orders for span in costs.spans]
    num_spans, last = len(work.balanced.spans), work.num_steps - 1
    width = work.num_steps / num_spans
    steps = "All steps." if num_spans == work.num_steps else f"{num_spans} of {work.num_steps:,} steps, evenly spread."
    chart = Chart(
        "Cost of a step on the ranks",
        "Each bar reaches from the rank with least work to the one with most, mean 1: the shorter, the less ranks wait. "
        + steps,
        Axis("step", -width / 2, last + width / 2, round_ticks(0, last, whole=True), "{:,}".format),
        linear_axis("cost ÷ mean", min(span.least for span in spans), max(span.most for span in spans), "{:g}".format),
    )
    # The bars of one step lie side by side, each 0.45 of its width wide.
    for number, (colour, name, costs) in enumerate(orders):
        begin = -0.45 + 0.45 * number
        end = begin + 0.45
        bars = []
        for span in costs.spans:
            title = f"step {span.step:,}, {name}: {span.least:.3f} … {span.most:.3f}"
            bars.append(Bar(span.step + begin * width, span.step + end * width, span.most, title, span.least))
        chart.bars(colour, bars, gap=0.4, min_height=3)
    return chart


def _squares_by_rank(ranks: int, orders: list[tuple[str, str, OrderCosts]]) -> Chart:
    """Draw the sum of squares of each rank, one line for each order of packs."""
    # Over the mean, so that a flat line at 1 is equal work at any size of data.
    lines = [(colour, _over_mean(costs.rank_squares)) for colour, _, costs in orders]
    ratios = [ratio for _, line in lines for ratio in line]
    chart = Chart(
        "Squares of lengths on each rank",
        "Sum of the squares of segment lengths over the epoch, which attention is proportional to: a flat line is equal "
        "work.",
        Axis("data-parallel rank", 0, max(1, ranks - 1), round_ticks(0, ranks - 1, 9, whole=True)),
        linear_axis("Σ length² ÷ mean", min(ratios), max(ratios), "{:g}".format),
    )
    for colour, line in lines:
        chart.line(colour, list(enumerate(line)), dots=ranks <= 32)
    return chart


def _over_mean(values: list[int]) -> list[float]:
    mean = sum(values) / len(values)
    return [value / mean for value in values]

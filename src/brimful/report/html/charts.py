"""Charts of the page: lengths, packs, capacities."""

import math
from itertools import accumulate, pairwise

from brimful.base.wording import counted, percent
from brimful.report.analysis.plan_facts import FillFacts, LengthFacts, SizeFacts
from brimful.report.analysis.what_if import CapacityPoint
from brimful.report.html.markup import figure
from brimful.report.html.svg import (
    Bar,
    Chart,
    log_axis,
    percent_axis,
)


def _share_bar(start: float, end: float, span: str, count: int, total: int, noun: str) -> Bar:
    """Return a bar as high as a share in percent; its title describes its span."""
    title = f"{span}: {counted(count, noun)}, {percent(count / total)}"
    return Bar(start, end, 100 * count / total, title)


def lengths_chart(lengths: LengthFacts, capacity: int | None) -> str:
    """Draw the distribution of lengths, by samples and by tokens."""
    plural, num_samples, tokens, bins = lengths.of, lengths.number, lengths.tokens, lengths.classes
    singular = plural[:-1]
    max_ratio = max(max(one.number / num_samples, one.total / tokens) for one in bins)
    chart = Chart(
        f"Lengths of {plural}",
        "Each pair of bars is one class of lengths: where the second bar is taller, a few long "
        f"{plural} hold many of the tokens.",
        log_axis(f"length of a {singular} in tokens (k = 1,024)", bins[0].begin, bins[-1].end),
        percent_axis("share of the whole", 0, 100 * max_ratio),
    )
    # A pair of bars meets at the middle of its bin: samples on the left, tokens on the right.
    sample_bars, token_bars = [], []
    for one in bins:
        middle, span = math.sqrt(one.begin * one.end), one.describe("token")
        sample_bars.append(_share_bar(one.begin, middle, span, one.number, num_samples, singular))
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
        percent_axis("fill of a pack", edges[0], edges[-1]),
        percent_axis("share of packs", 0, 100),
    )
    bars = [
        _share_bar(start, end, f"{start:g} … {end:g} %", packs, num_packs, "pack")
        for (start, end), packs in zip(pairwise(edges), fill.packs, strict=True)
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
    chart = Chart(
        "Samples in a pack",
        f"Bars are packs by how many samples share them: {sizes.least:,} to {sizes.most:,}, "
        f"{sizes.mean:,.1f} on average, which is the factor by which an unchanged batch size "
        "grows.",
        log_axis("samples (segments) in a pack", bins[0].begin, bins[-1].end),
        percent_axis("share of packs", 0, 100 * max(one.number for one in bins) / num_packs),
    )
    bars = [
        _share_bar(one.begin, one.end, one.describe("sample"), one.number, num_packs, "pack")
        for one in bins
    ]
    chart.bars("one", bars)
    return figure(chart, "chart-sizes")


def capacity_chart(points: list[CapacityPoint], capacity: int | None) -> str:
    """Draw the fill at other capacities."""
    chart = Chart(
        "Fill by capacity",
        "The upper line is packing, the lower one a row for each sample padded to the capacity: "
        "the gap is what packing saves.",
        log_axis("capacity in tokens (k = 1,024)", points[0].capacity, points[-1].capacity),
        percent_axis("real tokens ÷ positions", 0, 100),
    )
    chart.line("one", [(point.capacity, 100 * point.fill_ratio) for point in points], dots=True)
    chart.line(
        "two", [(point.capacity, 100 * point.padded_fill_ratio) for point in points], dots=True
    )
    chart.mark(capacity, "this plan:")
    return figure(chart, "chart-capacity", [("one", "packed"), ("two", "padded")])

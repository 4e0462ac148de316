"""Charts as inline SVG: bars, lines, ranges and marks on linear or logarithmic axes.

Colors come from the classes of the page, so a chart follows its light and dark theme; texts are
texts, so they can be selected, searched and read aloud. Nothing is loaded and nothing runs.
``docs/adr/0002-dependencies.md`` says why this is not a plotting library.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape

_WIDTH, _HEIGHT = 480, 300
"""Size of a chart, units of its view box."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 24, 48, 48
"""Margins around the axes."""
_MAX_TICKS = 9
"""Marks of one axis."""


def compact(value: float) -> str:
    """Format a number for an axis; k and M are powers of 1,024 if they divide it, else of 1,000.

    >>> [compact(value) for value in (512, 2048, 131072, 1500, 2_000_000, 0.5)]
    ['512', '2k', '128k', '1.5k', '2M', '0.5']
    """
    for power, sign in ((3, "G"), (2, "M"), (1, "k")):
        if value >= 1024**power and value % 1024**power == 0:
            return f"{value / 1024**power:.0f}{sign}"
        if value >= 1000**power:
            return f"{value / 1000**power:.3g}{sign}"
    return f"{value:.3g}"


@dataclass(frozen=True)
class Axis:
    """One axis: its range, its marks, and its label.

    Attributes:
        label: with the unit.
        begin, end: of the range.
        ticks: values with a mark.
        show: function from a mark to its words.
        logarithmic: true if equal ratios are equally far apart.
    """

    label: str
    start: float
    end: float
    ticks: Sequence[float]
    show: Callable[[float], str] = compact
    logarithmic: bool = False

    def fraction(self, value: float) -> float:
        """Return the place of a value, from 0 at the beginning to 1 at the end."""
        # Values outside of the range are drawn on its edge.
        value = min(max(value, self.start), self.end)
        if self.logarithmic:
            return math.log(value / self.start) / math.log(self.end / self.start)
        return (value - self.start) / (self.end - self.start)


def percent_axis(label: str, start: float, end: float) -> Axis:
    """Return an axis of percentages in steps of 1, 2 or 5 times a power of ten, extended to whole
    steps.

    >>> percent_axis("packs", 0, 23).ticks
    [0, 5, 10, 15, 20, 25]
    """
    # An empty range still needs a step.
    span = max(end - start, 1e-9)
    power = 10.0 ** math.floor(math.log10(span / 6))
    step = next(
        factor * power for factor in (1, 2, 5, 10, 20) if span / (factor * power) <= 6 + 1e-9
    )
    first, last = math.floor(start / step + 1e-9), math.ceil(end / step - 1e-9)
    # Without the noise of binary fractions, and as integers if they are.
    ticks = [round(index * step, 10) for index in range(first, max(last, first + 1) + 1)]
    ticks = [int(tick) if tick == int(tick) else tick for tick in ticks]
    return Axis(label, ticks[0], ticks[-1], ticks, "{:g} %".format)


def log_axis(label: str, start: float, end: float) -> Axis:
    """Return an axis in equal ratios, with marks at powers of two, or at every n-th.

    >>> log_axis("tokens", 16, 128).ticks
    [16, 32, 64, 128]
    """
    low = math.floor(math.log2(start))
    high = max(math.ceil(math.log2(end)), low + 1)
    stride = -(-(high - low + 1) // _MAX_TICKS)
    ticks = [2**power for power in range(low, high + 1, stride)]
    return Axis(label, 2**low, 2**high, ticks, logarithmic=True)


@dataclass(frozen=True)
class Bar:
    """A rectangle from ``start`` to ``end`` on the one axis and from 0 to ``high`` on the other, with
    a title.
    """

    start: float
    end: float
    high: float
    title: str


@dataclass
class Chart:
    """A chart that is being drawn; ``svg`` returns it.

    >>> chart = Chart("Fill", "Nearly full.", percent_axis("x", 0, 2), percent_axis("y", 0, 4))
    >>> chart.bars("one", [Bar(0, 1, 3, "three")])
    >>> chart.svg("fill").count("<rect")
    1
    """

    title: str
    description: str
    x: Axis
    y: Axis
    _marks: list[str] = field(default_factory=list)

    def bars(self, colour: str, bars: Sequence[Bar], gap: float = 1.0) -> None:
        """Draw rectangles in a color of the page, each with its title as a tooltip."""
        for bar in bars:
            start, end = self._x(bar.start) + gap / 2, self._x(bar.end) - gap / 2
            top, bottom = self._y(bar.high), self._y(0)
            if bar.high > 0:  # a small bar is visible, an empty one is not
                top = min(top, bottom - 1)
            width = max(end - start, 0.5)
            self._marks.append(
                f'<rect class="{colour}" x="{start:.1f}" y="{top:.1f}" width="{width:.1f}" '
                f'height="{bottom - top:.1f}"><title>{escape(bar.title)}</title></rect>'
            )

    def line(self, colour: str, points: Sequence[tuple[float, float]], dots: bool = False) -> None:
        """Draw points joined by a line."""
        path = " ".join(f"{self._x(x):.1f},{self._y(y):.1f}" for x, y in points)
        self._marks.append(f'<polyline class="line {colour}" points="{path}"/>')
        if dots:
            self._marks += [
                f'<circle class="{colour}" cx="{self._x(x):.1f}" cy="{self._y(y):.1f}" r="3.5">'
                f"<title>{escape(self.x.show(x))}: {escape(self.y.show(y))}</title></circle>"
                for x, y in points
            ]

    def mark(self, value: float | None, name: str) -> None:
        """Draw a dashed line at a value on the horizontal axis, with its name at the top; nothing
        for any other value.
        """
        if value is None or not self.x.start <= value <= self.x.end:
            return
        x = self._x(value)
        anchor, shift = (
            ("end", -5) if x > _WIDTH / 2 else ("start", 5)
        )  # the word points to the middle
        self._marks.append(
            f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 24}" '
            f'y2="{_HEIGHT - _BOTTOM}"/>'
            f'<text class="note" x="{x + shift:.1f}" y="{_TOP - 18}" text-anchor="{anchor}" '
            f'dominant-baseline="central">{escape(name)} {value:,}</text>'
        )

    def svg(self, name: str) -> str:
        """Return the chart; ``name`` is unique in its page."""
        return (
            f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-labelledby="{name}-title '
            f'{name}-description">'
            f'<title id="{name}-title">{escape(self.title)}</title>'
            f'<desc id="{name}-description">{escape(self.description)}</desc>'
            f"{self._axes()}{''.join(self._marks)}</svg>"
        )

    def _x(self, value: float) -> float:
        return _LEFT + self.x.fraction(value) * (_WIDTH - _LEFT - _RIGHT)

    def _y(self, value: float) -> float:
        return _HEIGHT - _BOTTOM - self.y.fraction(value) * (_HEIGHT - _TOP - _BOTTOM)

    def _axes(self) -> str:
        bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
        elements = []
        for tick in self.y.ticks:
            y = self._y(tick)
            elements.append(
                f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
                f'<text x="{_LEFT - 7}" y="{y:.1f}" text-anchor="end" dominant-baseline="central">'
                f"{escape(self.y.show(tick))}</text>"
            )
        for tick in self.x.ticks:
            x = self._x(tick)
            elements.append(
                f'<line class="tick" x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 4}"/>'
                f'<text x="{x:.1f}" y="{bottom + 19}" '
                f'text-anchor="middle">{escape(self.x.show(tick))}</text>'
            )
        # The vertical label is above its axis: letters are larger on a narrow screen, and nothing
        # overlaps there.
        elements.append(
            f'<line class="axis" x1="{_LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}"/>'
            f'<text class="label" x="{(_LEFT + right) / 2}" y="{_HEIGHT - 8}" text-anchor="middle">'
            f"{escape(self.x.label)}</text>"
            f'<text class="label" x="2" y="14">{escape(self.y.label)}</text>'
        )
        return "".join(elements)

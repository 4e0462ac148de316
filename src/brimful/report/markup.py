"""Pieces of the page: tables, tiles, figures. Every text is escaped here, so nothing in a file name is markup."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeAlias

from brimful.report.charts import Chart

__all__ = [
    "Cell",
    "Tile",
    "figure",
    "loss",
    "paragraph",
    "percent",
    "section",
    "share_bar",
    "table",
    "tiles",
    "warning",
    "whole",
]

Cell: TypeAlias = "str | tuple[str, str]"
"""Text, or text and markup of ours that goes under it."""


@dataclass(frozen=True)
class Tile:
    """A big number: what it is, the number, a remark, and whether it is a loss to worry about."""

    name: str
    value: str
    remark: str
    much_lost: bool = False


def whole(number: float) -> str:
    """A count, with separators of thousands.

    >>> whole(1234567.4)
    '1,234,567'
    """
    return f"{number:,.0f}"


def percent(ratio: float, digits: int = 1) -> str:
    """A ratio as a percentage, never rounded up to all or down to nothing.

    >>> percent(0.5), percent(0.99999), percent(0.00001), percent(1.0), percent(0.0)
    ('50.0 %', '> 99.9 %', '< 0.1 %', '100.0 %', '0.0 %')
    """
    least = 10.0**-digits
    value = 100 * ratio
    if 0 < value < least / 2:
        return f"< {least:.{digits}f} %"
    if 100 - least / 2 <= value < 100:
        return f"> {100 - least:.{digits}f} %"
    return f"{value:,.{digits}f} %"


def paragraph(text: str, kind: str = "") -> str:
    """One paragraph of text."""
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def section(name: str, title: str, *parts: str) -> str:
    """A part of the page under a heading."""
    return f'<section id="{name}"><h2>{escape(title)}</h2>{"".join(parts)}</section>'


def warning(text: str) -> str:
    """One paragraph on a loss, in the colour of loss."""
    return f'<p class="warning"><strong>Warning:</strong> {escape(text)}</p>'


def loss(ratio: float, much: bool) -> Cell:
    """A share that is lost, in the colour of loss where it is much."""
    return ("", f'<span class="lost">{percent(ratio, 2)}</span>') if much else percent(ratio, 2)


def tiles(shown: Sequence[Tile]) -> str:
    """Big numbers, each with what it is and a remark."""
    inner = "".join(_tile(tile) for tile in shown)
    return f'<dl class="tiles">{inner}</dl>'


def _tile(tile: Tile) -> str:
    kind = ' class="lost"' if tile.much_lost else ""
    return (
        f"<div{kind}><dt>{escape(tile.name)}</dt>"
        f"<dd><b>{escape(tile.value)}</b><span>{escape(tile.remark)}</span></dd></div>"
    )


def table(heads: Sequence[str], rows: Sequence[Sequence[Cell]], strong: int | None = None) -> str:
    """A table whose first column is text and whose others are numbers; row ``strong`` stands out."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in heads)
    body = "".join(_row(row, at == strong) for at, row in enumerate(rows))
    return (
        '<div class="scroll" tabindex="0" role="group" aria-label="table, scrolls sideways">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _row(row: Sequence[Cell], strong: bool) -> str:
    cells = "".join(f"<td>{_cell(cell)}</td>" for cell in row[1:])
    kind = ' class="strong"' if strong else ""
    return f'<tr{kind}><th scope="row">{_cell(row[0])}</th>{cells}</tr>'


def _cell(cell: Cell) -> str:
    return escape(cell) if isinstance(cell, str) else escape(cell[0]) + cell[1]


def share_bar(ratio: float, colour: str) -> str:
    """A bar as long as a share, for under a number."""
    return f'<span class="share"><i class="{colour}" style="width:{100 * min(max(ratio, 0), 1):.2f}%"></i></span>'


def figure(chart: Chart, name: str, legend: Sequence[tuple[str, str]] = ()) -> str:
    """A chart with its heading, what its colours mean, and a sentence on how to read it."""
    keys = "".join(f'<li><i class="{colour}"></i>{escape(label)}</li>' for colour, label in legend)
    explained = f'<ul class="legend">{keys}</ul>' if keys else ""
    return (
        f"<figure><h3>{escape(chart.title)}</h3>{explained}{chart.svg(name)}"
        f"<figcaption>{escape(chart.description)}</figcaption></figure>"
    )

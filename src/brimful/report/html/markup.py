"""Pieces of the page: tables, tiles, figures. Every text is escaped here, so nothing in a file name is markup."""

from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import TypeAlias, TypeVar

from brimful.messages import percent
from brimful.plan.ledger import MUCH_LOST
from brimful.report.html.svg import Chart

Item = TypeVar("Item")

Cell: TypeAlias = "str | tuple[str, str]"
"""Text, or text and our own markup that goes under it."""

Column: TypeAlias = tuple[str, Callable[[Item], Cell]]
"""Head of a column, and the function from an item to its cell."""


def paragraph(text: str, kind: str = "") -> str:
    """Return one paragraph of text."""
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def section(name: str, title: str, *parts: str) -> str:
    """Return a part of the page under a heading."""
    return f'<section id="{name}"><h2>{escape(title)}</h2>{"".join(parts)}</section>'


def warning(text: str) -> str:
    """Return one paragraph on a loss, in the color of loss."""
    return f'<p class="warning"><strong>Warning:</strong> {escape(text)}</p>'


def loss(ratio: float) -> Cell:
    """Return the cell of a lost share, in the color of loss if it is large."""
    return percent(ratio, 2) if ratio < MUCH_LOST else ("", f'<span class="lost">{percent(ratio, 2)}</span>')


def share(ratio: float, colour: str) -> Cell:
    """Return the cell of a share: its percentage above a bar of that length."""
    # A bar never leaves its cell, even after rounding.
    width = 100 * min(max(ratio, 0), 1)
    return percent(ratio), f'<span class="share"><i class="{colour}" style="width:{width:.2f}%"></i></span>'


def tile(name: str, value: str, remark: str, much_lost: bool = False) -> str:
    """Return a big number under its name, with a remark; ``much_lost`` puts it in the color of loss."""
    kind = ' class="lost"' if much_lost else ""
    return f"<div{kind}><dt>{escape(name)}</dt><dd><b>{escape(value)}</b><span>{escape(remark)}</span></dd></div>"


def table_of(columns: Sequence[Column[Item]], items: Iterable[Item], strong: int | None = None) -> str:
    """Return a table with one row for each item; row ``strong`` stands out."""
    rows = [[show(item) for _, show in columns] for item in items]
    return table([head for head, _ in columns], rows, strong)


def table(heads: Sequence[str], rows: Sequence[Sequence[Cell]], strong: int | None = None) -> str:
    """Return a table whose first column is text and whose others are numbers; row ``strong`` stands out."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in heads)
    body = "".join(_row(row, index == strong) for index, row in enumerate(rows))
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


def figure(chart: Chart, name: str, legend: Sequence[tuple[str, str]] = ()) -> str:
    """Return a chart with its heading, the meaning of its colors, and a sentence on how to read it."""
    keys = "".join(f'<li><i class="{colour}"></i>{escape(label)}</li>' for colour, label in legend)
    colours = f'<ul class="legend">{keys}</ul>' if keys else ""
    return (
        f"<figure><h3>{escape(chart.title)}</h3>{colours}{chart.svg(name)}"
        f"<figcaption>{escape(chart.description)}</figcaption></figure>"
    )

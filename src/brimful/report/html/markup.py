"""Pieces of the page. Every text is escaped here, so nothing in a file name is markup."""

from collections.abc import Sequence
from html import escape

from brimful.report.html.svg import Chart
from brimful.report.table_model import Cell, Percentage, ReportTable, text_of


def paragraph(text: str, css_class: str = "") -> str:
    """Return one paragraph of text."""
    return f'<p class="{css_class}">{escape(text)}</p>' if css_class else f"<p>{escape(text)}</p>"


def warning(text: str) -> str:
    """Return one paragraph on a loss, in the color of loss."""
    return f'<p class="warning"><strong>Warning:</strong> {escape(text)}</p>'


def section(name: str, title: str, *blocks: str) -> str:
    """Return a part of the page under a heading."""
    return f'<section id="{name}"><h2>{escape(title)}</h2>{"".join(blocks)}</section>'


def pair(*blocks: str) -> str:
    """Return two parts side by side, if the screen is wide enough."""
    return f'<div class="pair">{"".join(blocks)}</div>'


def tile(name: str, value: str, remark: str, much_lost: bool = False) -> str:
    """Return a big number with its name and a remark; ``much_lost`` shows it in the color of
    loss.
    """
    css_class = ' class="lost"' if much_lost else ""
    figure = f"<b>{escape(value)}</b><span>{escape(remark)}</span>"
    return f"<div{css_class}><dt>{escape(name)}</dt><dd>{figure}</dd></div>"


def table(table: ReportTable) -> str:
    """Return a table whose first column is text and whose others are numbers."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in table.rows[0])
    body = []
    for index, row in enumerate(table.rows):
        name, *cells = map(_cell, row.values())
        if table.remarks and table.remarks[index]:
            name += f" <small>{escape(table.remarks[index])}</small>"
        css_class = ' class="strong"' if index == table.strong else ""
        columns = "".join(f"<td>{cell}</td>" for cell in cells)
        body.append(f'<tr{css_class}><th scope="row">{name}</th>{columns}</tr>')
    return (
        '<div class="scroll" tabindex="0" role="group" aria-label="table, scrolls sideways">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )


def _cell(cell: Cell) -> str:
    text = escape(text_of(cell))
    if not isinstance(cell, Percentage):
        return text
    if cell.color:
        # A bar never leaves its cell, even after rounding.
        width = 100 * min(max(cell.ratio, 0), 1)
        return (
            f'{text}<span class="share"><i class="{cell.color}" '
            f'style="width:{width:.2f}%"></i></span>'
        )
    return f'<span class="lost">{text}</span>' if cell.is_lost else text


def figure(chart: Chart, name: str, legend: Sequence[tuple[str, str]] = ()) -> str:
    """Return a chart with its heading, the meaning of its colors, and how to read it."""
    keys = "".join(f'<li><i class="{color}"></i>{escape(label)}</li>' for color, label in legend)
    colors = f'<ul class="legend">{keys}</ul>' if keys else ""
    return (
        f"<figure><h3>{escape(chart.title)}</h3>{colors}{chart.svg(name)}"
        f"<figcaption>{escape(chart.description)}</figcaption></figure>"
    )

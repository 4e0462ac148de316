"""Results on standard output: one line of JSON, or text that fits the terminal."""

import json
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, zip_longest
from textwrap import wrap
from typing import Any

import click

from brimful.cli.program import in_flags

_LABEL = 15
"""Characters of the label before a description: ``packs          91 of 1,024 tokens``."""

MIN_WIDTH = 40
"""Characters of a line on the narrowest terminal; a narrower one breaks lines itself."""

_GAP = "  "
"""Blanks between two cells of a table."""

_CELL = re.compile(r" *\S+(?: \S+)*")
"""Pattern of a cell: two blanks separate it from the previous cell, and belong to it."""

_WORDS = re.compile(r"[^\W\d]{2,} [^\W\d]{2,}|←")
"""Pattern that matches in a last column of words, and not in a column of numbers."""

_BAR = "█"


def show(data: Callable[[], Any], lines: Callable[[], Iterable[str]], as_json: bool) -> None:
    """Print a result: ``data`` as JSON, or ``lines`` as text; only the printed one is computed."""
    if as_json:
        show_json(data())
    else:
        show_lines(lines())


def show_json(value: Any) -> None:
    """Print a result as one line of JSON."""
    click.echo(json.dumps(value, ensure_ascii=False))


def show_lines(lines: Iterable[str]) -> None:
    """Print a result as text: settings as flags, folded on a narrow terminal, in whole lines elsewhere."""
    texts = [in_flags(text) for line in lines for text in line.split("\n")]
    # A file or pipe gets whole lines, which tools can search.
    if sys.stdout.isatty():
        texts = list(fitted(texts, max(MIN_WIDTH, shutil.get_terminal_size().columns)))
    for text in texts:
        click.echo(text)


def fitted(lines: Sequence[str], width: int) -> Iterator[str]:
    """Fold lines to a width.

    Text continues on the next line, indented to the end of its label. A table that is too wide is cut into several, one
    below the other, each with the first columns.

    >>> print("\\n".join(fitted(["lower bound    91 packs: at what any plan needs"], 40)))
    lower bound    91 packs: at what any
                   plan needs
    >>> print("\\n".join(fitted(["  capacity     packs      fill", "     1,024        93   97.5 %"], 20)))
      capacity  packs
         1,024     93
    <BLANKLINE>
      capacity     fill
         1,024  97.5 %
    """
    # Rows of one table are folded together, so that its columns stay aligned.
    for is_table, block in groupby(_joined(lines), key=_is_row):
        rows = list(block)
        if is_table and max(map(len, rows)) > width:
            yield from _narrow_table(rows, width)
        else:
            for row in rows:
                yield from _folded(row, width)


def _joined(lines: Iterable[str]) -> list[str]:
    """Join lines that were folded after a label, so that they can be folded to another width."""
    joined: list[str] = []
    for line in lines:
        is_indented = line[:_LABEL].isspace() and line[_LABEL : _LABEL + 1].strip() and len(line) > _LABEL
        if joined and is_indented and _is_labelled(joined[-1]) and not _is_row(line):
            joined[-1] = f"{joined[-1]} {line.strip()}"
        else:
            joined.append(line)
    return joined


def _is_labelled(line: str) -> bool:
    label = line[:_LABEL]
    return bool(label[:1].strip()) and label[-1] == " " and _GAP not in label.rstrip() and len(line) > _LABEL


def _is_row(line: str) -> bool:
    """Return true for a line of a table: at least three cells and no label."""
    return not _is_labelled(line) and len(_CELL.findall(line)) >= 3


def _folded(line: str, width: int) -> list[str]:
    """Fold one line that is not a row of a table."""
    if len(line) <= width:
        return [line]
    # Continuation lines are indented to the end of the label, or by two blanks more than the first line.
    hang = _LABEL if _is_labelled(line) else len(line) - len(line.lstrip()) + 2
    start = line[:_LABEL] if _is_labelled(line) else " " * (hang - 2)
    text = line[len(start) :].strip()
    return wrap(text, width, initial_indent=start, subsequent_indent=" " * hang, break_on_hyphens=False)


def _narrow_table(rows: Sequence[str], width: int) -> Iterator[str]:
    """Cut a table into several that fit, each with the first columns."""
    cells = _cells(rows)
    if all(set(row[-1].strip()) <= {_BAR} for row in cells):
        yield from _shorter_bars(cells, width)
        return
    # A last column of words is not a column: in the first table it follows its row, on the same line or below.
    notes = [""] * len(cells)
    if any(_WORDS.search(row[-1]) for row in cells):
        notes = [row[-1].strip() for row in cells]
        cells = [row[:-1] for row in cells]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    # Columns without numbers belong to the first column: together they name the row.
    num_keys = 1
    while num_keys < len(widths) - 1 and not any(char.isdigit() for row in cells[1:] for char in row[num_keys]):
        num_keys += 1
    start = num_keys
    while start < len(widths):
        # This table has the columns start to end - 1: at least one, even if it is too wide.
        end = start + 1
        while end < len(widths) and sum(widths[:num_keys]) + sum(widths[start : end + 1]) <= width:
            end += 1
        if start > num_keys:
            yield ""
        for row, note in zip(cells, notes, strict=True):
            line = "".join([*row[:num_keys], *row[start:end]]).rstrip()
            if not note or start > num_keys:
                yield line
            elif len(line) + len(_GAP) + len(note) <= width:
                yield line + _GAP + note
            else:
                yield line
                yield from wrap(note, width, initial_indent=" " * 4, subsequent_indent=" " * 6)
        start = end


def _cells(rows: Sequence[str]) -> list[list[str]]:
    """Return the cells of each row, equally wide in a column, with at most two leading blanks."""
    # A column covers all characters that any row has there.
    profile = "".join(" " if set(characters) == {" "} else "x" for characters in zip_longest(*rows, fillvalue=" "))
    columns = [match.span() for match in _CELL.finditer(profile)]
    cells = [[row.ljust(end)[begin:end] for begin, end in columns] for row in rows]
    spare = [min(len(cell) - len(cell.lstrip()) for cell in column) - 2 for column in zip(*cells, strict=True)]
    return [[cell[max(0, count) :] for cell, count in zip(row, spare, strict=True)] for row in cells]


def _shorter_bars(cells: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    """Scale the bars of the last column until the longest fits; no bar vanishes."""
    room = width - sum(map(len, cells[0][:-1])) - len(_GAP)
    bars = [len(row[-1].strip()) for row in cells]
    longest = max(1, *bars)
    scaled = max(1, min(longest, room))
    for row, bar in zip(cells, bars, strict=True):
        yield ("".join(row[:-1]) + _GAP + _BAR * -(-bar * scaled // longest)).rstrip()

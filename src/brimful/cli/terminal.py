"""Results on standard output: one line of JSON for machines; for people, lines that fit the terminal."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from textwrap import wrap
from typing import Any

import click

from brimful.cli.flags import in_flags

__all__ = ["fitted", "show_json", "show_lines"]

_LABEL = 15
"""Columns of the label in front of what is described: ``packs          91 of 1,024 tokens``."""
_NARROWEST = 40
_GAP = "  "
_CELLS = re.compile(r"\S+(?: \S+)*")
_NOTE = re.compile(r"[^\W\d]{2,} [^\W\d]{2,}|←")
"""What a last column of words has, and one of numbers has not."""
_BAR = "█"


def show_json(value: Any) -> None:
    """A result for machines, on one line."""
    click.echo(json.dumps(value, ensure_ascii=False))


def show_lines(lines: Iterable[str]) -> None:
    """A result for people: its settings as flags, folded on a narrow terminal; whole lines where nobody looks."""
    told = [in_flags(piece) for line in lines for piece in line.split("\n")]
    width = max(_NARROWEST, shutil.get_terminal_size().columns) if sys.stdout.isatty() else None
    for line in told if width is None else fitted(told, width):
        click.echo(line)


def fitted(lines: Sequence[str], width: int) -> Iterator[str]:
    """The same lines within so many columns.

    Text goes on below itself, behind its label. A table that is too wide is cut into several, one below the other,
    each with the first columns.

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
    for is_table, block in groupby(_joined(lines), key=_is_row):
        rows = list(block)
        if is_table and max(map(len, rows)) > width:
            yield from _narrow_table(rows, width)
        else:
            for row in rows:
                yield from _folded(row, width)


def _joined(lines: Iterable[str]) -> Iterator[str]:
    """Lines with what was folded behind a label put together again, to be folded anew."""
    held: str | None = None
    for line in lines:
        goes_on = line[:_LABEL].isspace() and line[_LABEL : _LABEL + 1].strip() and len(line) > _LABEL
        if held is not None and goes_on and _is_labelled(held) and not _is_row(line):
            held = f"{held} {line.strip()}"
            continue
        if held is not None:
            yield held
        held = line
    if held is not None:
        yield held


def _is_labelled(line: str) -> bool:
    label = line[:_LABEL]
    return bool(label[:1].strip()) and label[-1] == " " and _GAP not in label.rstrip() and len(line) > _LABEL


def _is_row(line: str) -> bool:
    """A line of a table: three cells or more, none of which is a label."""
    return not _is_labelled(line) and len(_CELLS.findall(line.replace("   ", _GAP + " "))) >= 3


def _folded(line: str, width: int) -> list[str]:
    if len(line) <= width:
        return [line]
    hang = _LABEL if _is_labelled(line) else len(line) - len(line.lstrip()) + 2
    start = line[:_LABEL] if _is_labelled(line) else " " * (hang - 2)
    rest = line[len(start) :].strip()
    return wrap(rest, width, initial_indent=start, subsequent_indent=" " * hang, break_on_hyphens=False)


def _narrow_table(rows: Sequence[str], width: int) -> Iterator[str]:
    cells = _cells(rows)
    if all(set(row[-1].strip()) <= {_BAR} for row in cells):
        yield from _shorter_bars(cells, width)
        return
    notes = [""] * len(cells)
    if any(_NOTE.search(row[-1]) for row in cells):
        notes = [row[-1].strip() for row in cells]
        cells = [row[:-1] for row in cells]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    keys = 1
    while keys < len(widths) - 1 and not any(char.isdigit() for row in cells[1:] for char in row[keys]):
        keys += 1  # names beside the first column belong to it
    start = keys
    while start < len(widths):
        end = start + 1
        while end < len(widths) and sum(widths[:keys]) + sum(widths[start : end + 1]) <= width:
            end += 1
        if start > keys:
            yield ""
        for row, note in zip(cells, notes, strict=True):
            line = "".join([*row[:keys], *row[start:end]]).rstrip()
            if not note or start > keys:
                yield line
            elif len(line) + len(_GAP) + len(note) <= width:
                yield line + _GAP + note
            else:
                yield line
                yield from wrap(note, width, initial_indent=" " * 4, subsequent_indent=" " * 6)
        start = end


def _cells(rows: Sequence[str]) -> list[list[str]]:
    """The cells of each row, those of a column equally wide, with no more than two blanks in front."""
    cells = [[row.ljust(end)[begin:end] for begin, end in _columns(rows)] for row in rows]
    spare = [min(len(cell) - len(cell.lstrip()) for cell in column) - 2 for column in zip(*cells, strict=True)]
    return [[cell[max(0, cut) :] for cell, cut in zip(row, spare, strict=True)] for row in cells]


def _columns(rows: Sequence[str]) -> list[tuple[int, int]]:
    """Where columns begin and end: they are divided by two blanks that all rows have; blanks belong to the right one."""
    longest = max(map(len, rows))
    blank = [all(row[at : at + 1] in ("", " ") for row in rows) for at in range(longest)]
    ends = [at for at in range(1, longest) if blank[at] and not blank[at - 1] and (at + 1 >= longest or blank[at + 1])]
    edges = [0, *ends, longest]
    return [(begin, end) for begin, end in pairwise(edges) if not all(blank[begin:end])]


def _shorter_bars(cells: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    head = sum(map(len, cells[0][:-1])) + len(_GAP)
    most = max(len(row[-1].strip()) for row in cells)
    room = max(1, min(most, width - head))
    for row in cells:
        bar = len(row[-1].strip())
        yield ("".join(row[:-1]) + _GAP + _BAR * (-(-bar * room // most) if bar else 0)).rstrip()

"""Results on standard output: one line of JSON, or text that fits the terminal."""

import json
import shutil
import sys
from collections.abc import Callable, Iterable
from textwrap import wrap
from typing import Any

import click

from brimful.cli.program import in_flags

_LABEL = 15
"""Characters of the label before a description: ``packs          91 of 1,024 tokens``."""

_MIN_WIDTH = 40
"""Characters of a line on the narrowest terminal; a narrower one breaks lines itself."""


def show(data: Any, lines: Callable[[], Iterable[str]], as_json: bool) -> None:
    """Print a result: ``data`` as JSON, or ``lines`` as text, which are computed only then."""
    if as_json:
        show_json(data)
    else:
        show_lines(lines())


def show_json(value: Any) -> None:
    """Print a result as one line of JSON."""
    click.echo(json.dumps(value, ensure_ascii=False))


def show_lines(lines: Iterable[str]) -> None:
    """Print a result as text: settings as flags, descriptions folded to the terminal, whole lines elsewhere."""
    # A file or pipe gets whole lines, which tools can search.
    width = max(_MIN_WIDTH, shutil.get_terminal_size().columns) if sys.stdout.isatty() else None
    for line in lines:
        for text in in_flags(line).split("\n"):
            click.echo(text if width is None else folded(text, width))


def folded(line: str, width: int) -> str:
    """Fold a description at a width, indented to the end of its label. Rows of tables, which have none, stay whole.

    >>> print(folded("lower bound    91 packs: at what any plan needs", 40))
    lower bound    91 packs: at what any
                   plan needs
    """
    label, text = line[:_LABEL], line[_LABEL:].strip()
    if len(line) <= width or label[0] == " " or label[-1] != " ":
        return line
    lines = wrap(text, width, initial_indent=label, subsequent_indent=" " * _LABEL, break_on_hyphens=False)
    return "\n".join(lines)

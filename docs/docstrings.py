"""Docstrings as Markdown has them: it would read ``>>>`` as quotations, and ``::`` and tables of ``====`` as text."""

import inspect
import re
from typing import Any

_EXAMPLE = re.compile(r"^( *)>>> .*(?:\n *(?=\S).*)*", re.MULTILINE)
_LITERAL = re.compile(r"^ *::$\n|(?<=\S):(?=:$)", re.MULTILINE)
_BAR = r"={4,}(?:  +={4,})+"
_TABLE = re.compile(
    rf"^( *)({_BAR})\n(.*?)^ *{_BAR}$(?:\n((?:(?! *=)[^\n]*\S[^\n]*\n)+) *{_BAR}$)?",
    re.MULTILINE | re.DOTALL,
)
"""Indent, bar, rows; or, with a second part, heads and rows."""


def markdown_of(text: str) -> str:
    """Return a docstring as Markdown; an empty line ends an example, as in doctest.

    >>> print(markdown_of("====  ====\\nkey   type,\\n      shape\\n====  ===="))
    | | |
    |-|-|
    | key | type, shape |
    >>> print(markdown_of("====  ====\\nkey   type\\n====  ====\\na     b\\n====  ===="))
    | key | type |
    |-|-|
    | a | b |
    """
    text = _TABLE.sub(_table, text)
    return _EXAMPLE.sub(lambda it: f"{it[1]}```pycon\n{it[0]}\n{it[1]}```", _LITERAL.sub("", text))


def _table(match: re.Match[str]) -> str:
    indent, bar, first, second = match.groups()
    starts = [it.start() + len(indent) for it in re.finditer("=+", bar)]
    heads = _rows(first, starts) if second else [[""] * len(starts)]
    lines = [_line(row) for row in (*heads, *_rows(second or first, starts))]
    lines.insert(len(heads), "|-" * len(starts) + "|")
    return "\n".join(indent + line for line in lines)


def _line(row: list[str]) -> str:
    return "|" + "|".join(f" {cell} " if cell else " " for cell in row) + "|"


def _rows(body: str, starts: list[int]) -> list[list[str]]:
    rows: list[list[str]] = []
    for line in body.splitlines():
        if any(line[start - 1 : start].strip() for start in starts[1:]):
            raise ValueError(f"a cell is wider than its column: {line.strip()}")
        cells = [line[a:b].strip() for a, b in zip(starts, [*starts[1:], None], strict=True)]
        if cells[0]:
            rows.append(cells)
        else:
            rows[-1] = [f"{old} {new}".strip() for old, new in zip(rows[-1], cells, strict=True)]
    return rows


try:
    import griffe
except ImportError:  # a test of the functions above
    pass
else:

    class MarkdownDocstrings(griffe.Extension):
        """Changes every docstring when it is read."""

        def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
            """Replace the docstring of one object."""
            if obj.docstring is not None:
                obj.docstring.value = markdown_of(inspect.cleandoc(obj.docstring.value))

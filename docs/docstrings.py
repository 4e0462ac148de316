"""Docstrings as Markdown has them: it would read ``>>>`` as quotations, and ``::`` and tables of ``====`` as text."""

import inspect
import re
from typing import Any

_EXAMPLE = re.compile(r"^( *)>>> .*(?:\n *(?=\S).*)*", re.MULTILINE)
_LITERAL = re.compile(r"^ *::$\n|(?<=\S):(?=:$)", re.MULTILINE)
_TABLE = re.compile(
    r"^( *)(={4,}(?:  +={4,})+)\n(.*?)^ *={4,}(?:  +={4,})+$", re.MULTILINE | re.DOTALL
)


def markdown_of(text: str) -> str:
    """Return a docstring as Markdown; an empty line ends an example, as in doctest.

    >>> print(markdown_of("====  ====\\nkey   type,\\n      shape\\n====  ===="))
    | | |
    |-|-|
    | key | type, shape |
    """
    text = _TABLE.sub(_table, text)
    return _EXAMPLE.sub(lambda it: f"{it[1]}```pycon\n{it[0]}\n{it[1]}```", _LITERAL.sub("", text))


def _table(match: re.Match[str]) -> str:
    indent, line, body = match.groups()
    starts = [it.start() + len(indent) for it in re.finditer("=+", line)]
    rows: list[list[str]] = []
    for row in body.splitlines():
        cells = [row[a:b].strip() for a, b in zip(starts, [*starts[1:], None], strict=True)]
        if cells[0]:
            rows.append(cells)
        else:
            rows[-1] = [f"{old} {new}".strip() for old, new in zip(rows[-1], cells, strict=True)]
    blank = ["| " * len(starts) + "|", "|-" * len(starts) + "|"]
    return "\n".join(
        indent + line for line in [*blank, *(f"| {' | '.join(row)} |" for row in rows)]
    )


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

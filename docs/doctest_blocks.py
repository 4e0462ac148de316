"""Doctests and literal blocks of docstrings as Markdown has them: it would read ``>>>`` as quotations, and ``::`` as text."""

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^( *)>>> .*(?:\n *(?=\S).*)*", re.MULTILINE)
_LITERAL = re.compile(r"^ *::$\n|(?<=\S):(?=:$)", re.MULTILINE)


def with_blocks(text: str) -> str:
    """Return a docstring whose examples are fenced, without the ``::`` before literal blocks; an empty line ends an example."""
    return _EXAMPLE.sub(lambda it: f"{it[1]}```pycon\n{it[0]}\n{it[1]}```", _LITERAL.sub("", text))


class DoctestBlocks(griffe.Extension):
    """Changes every docstring when it is read."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Fence the examples of one object."""
        if obj.docstring is not None:
            obj.docstring.value = with_blocks(obj.docstring.value)

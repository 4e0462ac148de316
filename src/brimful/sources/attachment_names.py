"""Names by which rows have attachments: columns, parts of messages, and marks in texts.

A row that has one is refused, unless it is read with ``Placing``: its attachments would be lost.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Protocol

from brimful.base.attachment import ATTACHMENT_KINDS

_ENDINGS = ("", "s", "_path", "_paths", "_url", "_urls", "_file", "_files")

COLUMNS: Mapping[str, str] = {
    f"{kind}{ending}": kind for kind in ATTACHMENT_KINDS for ending in _ENDINGS
} | {"speech": "audio"}
"""Columns that hold attachments, with their kind."""

PARTS: Mapping[str, str] = {
    f"{beginning}{kind}{ending}": kind
    for kind in ATTACHMENT_KINDS
    for beginning in ("", "input_")
    for ending in ("", "_url")
}
"""Types of parts that are attachments, with their kind; such a part holds its attachment under a
key of the same name.
"""

_KINDS = "|".join(ATTACHMENT_KINDS)

MARK = re.compile(rf"<({_KINDS})(\d*)>")
"""Mark in a text for the next attachment of a column, or for the one with that number, from 1."""

_PLACEHOLDER = re.compile(rf"<({_KINDS})\d*>|<\|(?:{_KINDS})(?:_pad|_soft_token)?\|>")

_BEGINNING = re.compile(rf"<(?:{_KINDS}|\|)")
"""Beginning of every mark that ``_PLACEHOLDER`` finds; searching for it takes a third of the
time.
"""


class Placing(Protocol):
    """The reading of a row's attachments from the files below a directory.

    Attributes:
        directory: relative names begin here; the current directory if empty.
        allow_outside: files may also lie elsewhere.
    """

    @property
    def directory(self) -> str: ...

    @property
    def allow_outside(self) -> bool: ...

    def placed(
        self,
        content: Mapping[str, Any],
        columns: Mapping[str, Any],
        row_format: Any,
        *,
        ignore: frozenset[str],
    ) -> dict[str, Any]:
        """Return the messages of a row with its attachments in their places, and the attachments;
        nothing if it has none.

        Args:
            content: fields of its sample.
            columns: its columns in ``COLUMNS``.
            row_format: the ``RowFormat`` of the row.
            ignore: marks that are plain text.

        Raises:
            MalformedRowError: a mark without an attachment, or the reverse; or the row is not a
                chat, or of a format without attachments.
        """


def is_attachment(part: Any) -> bool:
    """Return true for a part of a content that is an attachment, or says where one belongs."""
    return isinstance(part, Mapping) and part.get("type") in PARTS


def may_have_marks(text: str) -> bool:
    """Return false for a text without the mark of an attachment, as nearly all are."""
    return "<" in text and _BEGINNING.search(text) is not None


def placeholder(text: str, *, ignore: frozenset[str]) -> str | None:
    """Return the first mark of an attachment in a text, such as ``<image>``; None without one, or
    if it is ignored.

    A mark with a closing tag (``<video> … </video>``) is markup, not a place for an attachment.

    >>> placeholder("Who is it? <image1>", ignore=frozenset())
    '<image1>'
    >>> placeholder("<video><source></video>", ignore=frozenset()) is None
    True
    """
    if "<" not in text:
        return None
    for match in _PLACEHOLDER.finditer(text):
        name = match.group(1)
        is_markup = name is not None and f"</{name}" in text
        if not is_markup and match.group() not in ignore:
            return match.group()
    return None

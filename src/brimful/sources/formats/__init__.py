"""What rows look like: one format per file.

A format says by the keys of a row whether it is its own (``matches``) and turns it into a chat or a text
(``convert``). Its ``fields`` are the keys it reads; a mapping such as ``{"messages": "dialogue"}`` renames
them for data that calls them otherwise.

>>> detect([{"question": "1+1?", "answer": "2"}]).name
'question_answer'
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from brimful.errors import SettingsError, UnknownFormatError
from brimful.sources.formats.alpaca import Alpaca
from brimful.sources.formats.messages import Messages
from brimful.sources.formats.prompt_completion import PromptCompletion
from brimful.sources.formats.question_answer import QuestionAnswer
from brimful.sources.formats.row_format import RowFormat
from brimful.sources.formats.sharegpt import ShareGPT
from brimful.sources.formats.text import Text
from brimful.words import setting

__all__ = ["FORMATS", "RowFormat", "detect", "format_named"]

FORMATS: dict[str, type[RowFormat]] = {
    format_class.name: format_class
    for format_class in (Messages, ShareGPT, Alpaca, PromptCompletion, QuestionAnswer, Text)
}
"""All formats by name, in the order in which they are tried."""


def format_named(name: str, fields: Mapping[str, str] | None = None) -> RowFormat:
    """The format of that name, reading the fields that ``fields`` renames.

    Raises:
        SettingsError: no such format, or a field that it does not have.
    """
    if name not in FORMATS:
        raise SettingsError(f"{setting('format', name)} is unknown: use one of {', '.join(FORMATS)}")
    return FORMATS[name](fields)


def detect(rows: Sequence[Any], fields: Mapping[str, str] | None = None) -> RowFormat:
    """The format that most of these rows match; the earlier one on a tie.

    A row that does not match is that row's fault and is reported when it is read.

    Raises:
        UnknownFormatError: none matches any; the message shows the keys that were found.
    """
    best: RowFormat | None = None
    most = 0
    for format_class in FORMATS.values():
        if fields and not set(fields) <= set(format_class.default_fields):
            continue
        candidate = format_class(fields)
        matches = sum(candidate.matches(row) for row in rows)
        if matches > most:
            best, most = candidate, matches
    if best is not None:
        return best
    shown = sorted(rows[0]) if rows and isinstance(rows[0], Mapping) else [type(row).__name__ for row in rows[:1]]
    raise UnknownFormatError(
        f"the rows have no format that brimful knows; the first has keys {shown}. Name the format and its fields, "
        f"for example {setting('format', 'messages')} with {setting('fields', {'messages': 'dialogue'})} (formats: {', '.join(FORMATS)})"
    )

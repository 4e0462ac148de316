"""Formats of rows: one format per file.

A format says by the keys of a row whether it is its own (``matches``) and turns it into a chat or a text
(``convert``). Its ``fields`` are the keys it reads; a mapping such as ``{"messages": "dialogue"}`` renames
them for data that calls them otherwise.

>>> detect([{"question": "1+1?", "answer": "2"}]).name
'question_answer'
"""

from collections.abc import Mapping, Sequence
from typing import Any

from brimful.errors import SettingsError, UnknownFormatError
from brimful.messages import setting
from brimful.sources.formats.alpaca import Alpaca
from brimful.sources.formats.caption import Caption
from brimful.sources.formats.detection import Detection
from brimful.sources.formats.kto import AlpacaKto, Kto, MessagesKto, ShareGPTKto
from brimful.sources.formats.messages import Messages
from brimful.sources.formats.preference import AlpacaPreference, Preference, ShareGPTPreference
from brimful.sources.formats.prompt_completion import PromptCompletion
from brimful.sources.formats.question_answer import QuestionAnswer
from brimful.sources.formats.row_format import RowFormat
from brimful.sources.formats.sharegpt import ShareGPT
from brimful.sources.formats.text import Text
from brimful.sources.formats.tokens import Tokens
from brimful.sources.formats.transcript import Transcript

__all__ = ["FORMATS", "RowFormat", "detect", "format_named"]

FORMATS: dict[str, type[RowFormat]] = {
    format_class.name: format_class
    for format_class in (
        Tokens,
        ShareGPTPreference,
        AlpacaPreference,
        Preference,
        Messages,
        ShareGPT,
        Alpaca,
        PromptCompletion,
        QuestionAnswer,
        Caption,
        Detection,
        Transcript,
        Text,
        Kto,
        MessagesKto,
        ShareGPTKto,
        AlpacaKto,
    )
}
"""All formats by name, in the order in which they are tried."""


def format_named(name: str, fields: Mapping[str, str] | None = None, prompt: str | None = None) -> RowFormat:
    """Return the format of that name, reading the fields that ``fields`` renames, with a prompt of its own if it has one.

    Raises:
        SettingsError: no such format, or a field that it does not have.
    """
    if name not in FORMATS:
        raise SettingsError(f"{setting('format', name)} is unknown: use one of {', '.join(FORMATS)}")
    return FORMATS[name](fields, prompt)


def detect(rows: Sequence[Any], fields: Mapping[str, str] | None = None, prompt: str | None = None) -> RowFormat:
    """Return the format that most of these rows match; the earlier one on a tie.

    A row that does not match is that row's fault and is reported when it is read.

    Raises:
        UnknownFormatError: none matches any; the message shows the keys of the first row.
    """
    candidates = [
        format_class(fields, prompt)
        for format_class in FORMATS.values()
        if format_class.is_detected and (not fields or set(fields) <= set(format_class.default_fields))
    ]
    matches = [sum(map(candidate.matches, rows)) for candidate in candidates]
    if any(matches):
        return candidates[matches.index(max(matches))]
    keys = [str(key) for key in rows[0]] if rows and isinstance(rows[0], Mapping) else []
    summary = f"has keys {sorted(keys)}" if keys else f"is {type(rows[0]).__name__ if rows else 'none'}"
    example = f"{setting('format', 'messages')} {setting('fields', {'messages': 'dialogue'})}"
    if fields and "messages" not in fields:
        example = f"{setting('format')} beside {setting('fields', dict(fields))}"
    raise UnknownFormatError(
        f"the rows have no format that brimful knows; the first {summary}. {_hint(keys)}Name the format and its fields, for example "
        f"{example} (formats: {', '.join(FORMATS)})"
    )


def _hint(keys: Sequence[str]) -> str:
    """Return a sentence on rows that cannot be packed so far; empty for others."""
    if any(key.startswith(("chosen", "rejected")) for key in keys):
        return "These are preferences: name both sides, as chosen and rejected. "
    if any(key in ("image", "images", "video", "videos", "audio", "audios") for key in keys):
        return "They hold media, which cannot be packed so far. "
    return ""

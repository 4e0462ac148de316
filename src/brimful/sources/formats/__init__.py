"""Formats of rows: one format per file.

A format says by the keys of a row whether it is its own (``matches``) and turns it into a chat, a text or tokens
(``convert``). Its ``fields`` are the keys it reads; a mapping such as ``{"messages": "dialogue"}`` renames them for
data with other keys.

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

__all__ = ["FORMATS", "RowFormat", "detect", "format_named", "suggested"]

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
    """Return the format of that name; ``fields`` renames its fields, ``prompt`` replaces its prompt.

    Raises:
        SettingsError: no such format, or a field that the format does not have.
    """
    if name not in FORMATS:
        raise SettingsError(f"{setting('format', name)} is unknown: use one of {', '.join(FORMATS)}")
    return FORMATS[name](fields, prompt)


def detect(rows: Sequence[Any], fields: Mapping[str, str] | None = None, prompt: str | None = None) -> RowFormat:
    """Return the format that most of these rows match; the earlier one on a tie.

    A row that does not match is reported when it is read.

    Raises:
        UnknownFormatError: no row matches any format; the message shows the keys of the first row.
    """
    candidates = [
        format_class(fields, prompt)
        for format_class in FORMATS.values()
        if format_class.is_detected and (not fields or set(fields) <= set(format_class.default_fields))
    ]
    matches = [sum(map(candidate.matches, rows)) for candidate in candidates]
    if any(matches):
        return candidates[matches.index(max(matches))]
    row = rows[0] if rows and isinstance(rows[0], Mapping) else {}
    keys = [str(key) for key in row]
    summary = f"has keys {sorted(keys)}" if keys else f"is {type(rows[0]).__name__ if rows else 'none'}"
    suggestion = suggested(row)
    example = suggestion or _named("messages", {"messages": "dialogue"})
    if not suggestion and fields and "messages" not in fields:
        example = f"{setting('format')} with {setting('fields', dict(fields))}"
    raise UnknownFormatError(
        f"the rows have no format that brimful knows; the first {summary}. {'' if suggestion else _hint(row)}Name the format and its fields, for example "
        f"{example} (formats: {', '.join(FORMATS)})"
    )


def suggested(row: Any) -> str:
    """Return the settings by which a row can be read, by its keys and values; empty if none are known.

    >>> from brimful.messages import in_python
    >>> in_python(suggested({"problem": "1+1?", "solution": "2"}))
    'format="question_answer" fields={"question": "problem", "answer": "solution"}'
    >>> in_python(suggested({"messages": [], "label": True}))
    'format="messages_kto"'
    >>> in_python(suggested({"chosen_messages": [], "rejected_messages": []}))
    'format="preference" fields={"chosen": "chosen_messages", "rejected": "rejected_messages"}'
    """
    if not isinstance(row, Mapping):
        return ""
    # First KTO rows, which look like rows of other formats except for their label.
    labels = [name for name in ("label", "kto_tag") if isinstance(row.get(name), bool)]
    candidates = [kto({"label": name}) for name in labels for kto in FORMATS.values() if kto.is_unpaired]
    candidates += [format_class() for format_class in FORMATS.values() if format_class.is_detected]
    known_format = next((candidate for candidate in candidates if candidate.matches(row)), None)
    if known_format is not None:
        new_keys = {name: key for name, key in known_format.fields.items() if known_format.default_fields[name] != key}
        return _named(known_format.name, new_keys)
    sides = {side: next((str(key) for key in row if side in str(key)), "") for side in ("chosen", "rejected")}
    if all(sides.values()):
        return _named("preference", {side: key for side, key in sides.items() if side != key})
    for key, value in row.items():
        turn = value[0] if isinstance(value, list) and value else None
        for name, field, keys in _TURNS:
            if isinstance(turn, Mapping) and keys <= turn.keys():
                return _named(name, {field: key})
    for name, synonyms in _SYNONYMS:
        fields = {field: key for field, keys in synonyms.items() for key in keys[::-1] if isinstance(row.get(key), str)}
        if len(fields) == len(synonyms):
            return _named(name, {field: key for field, key in fields.items() if field != key})
    return ""


def _named(name: str, fields: Mapping[str, str]) -> str:
    return f"{setting('format', name)} {setting('fields', dict(fields))}" if fields else setting("format", name)


_TURNS = (
    ("messages", "messages", {"role", "content"}),
    ("sharegpt", "conversations", {"from", "value"}),
)
"""Formats whose turns may stand under any key: name, field, and the keys of a turn."""

_SYNONYMS: tuple[tuple[str, Mapping[str, Sequence[str]]], ...] = (
    (
        "question_answer",
        {
            "question": ("question", "problem", "query", "instruction", "prompt", "input", "user"),
            "answer": ("answer", "solution", "response", "output", "completion", "target", "assistant"),
        },
    ),
    ("text", {"text": ("text", "content", "document", "body", "article")}),
)
"""Keys that data sets use for the fields of a format, the likeliest first."""


_MOST_KEYS_AROUND_ROWS = 4
"""Maximum keys of an object that wraps rows, such as ``{"data": [ … ], "version": 1}``; other JSON files have more."""


def _hint(row: Mapping[str, Any]) -> str:
    """Return a sentence about rows that are not samples as they are; empty for others."""
    if any(str(key).startswith(("chosen", "rejected")) for key in row):
        return "These are preferences: name both answers, as chosen and rejected. "
    lists = [key for key, value in row.items() if isinstance(value, list) and value and suggested(value[0])]
    key = lists[0] if lists and len(row) <= _MOST_KEYS_AROUND_ROWS else None
    return "" if key is None else f"Rows seem to be under {key!r}: write that list to a separate .json file. "

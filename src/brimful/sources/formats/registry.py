"""The table of formats, and the choice of one by a name or by the keys of rows."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from brimful.base.wording import setting
from brimful.errors import SettingsError, UnknownFormatError
from brimful.sources.formats.row_format import RowFormat
from brimful.sources.sample import MalformedRowError

FORMATS: dict[str, type[RowFormat]] = {}
"""All formats by name, in the order in which they are tried; last the formats that have to be named."""

REFUSED_COLUMNS: dict[str, type[RowFormat]] = {}
"""Columns that change what a sample means, each with the format that says why others refuse it."""


_ROWS_FOR_DETECTION = 16
"""Number of rows at the beginning of each file from which its format is detected."""


def register(*formats: type[RowFormat]) -> None:
    """Add formats, which are tried after those that are registered already."""
    for format_class in formats:
        FORMATS[format_class.name] = format_class
        REFUSED_COLUMNS.update(dict.fromkeys(format_class.refused_columns, format_class))
    for name in [name for name, format_class in FORMATS.items() if not format_class.is_detected]:
        FORMATS[name] = FORMATS.pop(name)


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


def detect_rows(
    rows: Iterable[Any], title: str, *, fields: Mapping[str, str] | None, ignore: Collection[str], prompt: str | None
) -> RowFormat | None:
    """Return the format of the first rows of a file; None if none of them can be read.

    Raises:
        UnknownFormatError: no row matches any format; names the file.
    """
    readable = [row for row in islice(rows, _ROWS_FOR_DETECTION) if not isinstance(row, MalformedRowError)]
    if ignore:
        # Without media, text with audio is not a transcript.
        readable = [
            {name: value for name, value in row.items() if name not in ignore} if isinstance(row, Mapping) else row
            for row in readable
        ]
    try:
        return detect(readable, fields, prompt) if readable else None
    except UnknownFormatError as error:
        raise UnknownFormatError(f"{title}: {error.message}") from error


def suggested(row: Any) -> str:
    """Return the settings by which a row can be read, by its keys and values; empty if none are known.

    >>> from brimful.base.wording import in_python
    >>> in_python(suggested({"problem": "1+1?", "solution": "2"}))
    'format="question_answer" fields={"question": "problem", "answer": "solution"}'
    >>> in_python(suggested({"messages": [], "label": True}))
    'format="messages_kto"'
    >>> in_python(suggested({"chosen_messages": [], "rejected_messages": []}))
    'format="preference" fields={"chosen": "chosen_messages", "rejected": "rejected_messages"}'
    """
    if not isinstance(row, Mapping):
        return ""
    # First formats that have to be named, whose rows look like rows of the others.
    for format_class in sorted(FORMATS.values(), key=lambda format_class: format_class.is_detected):
        fields = format_class.matching_fields(row)
        if fields is not None:
            return _named(format_class.name, fields)
    for format_class in FORMATS.values():
        fields = format_class.likely_fields(row)
        if fields is not None:
            return _named(format_class.name, fields)
    return ""


def _named(name: str, fields: Mapping[str, str]) -> str:
    new_keys = {field: key for field, key in fields.items() if FORMATS[name].default_fields[field] != key}
    return f"{setting('format', name)} {setting('fields', new_keys)}" if new_keys else setting("format", name)


_MOST_KEYS_AROUND_ROWS = 4
"""Maximum keys of an object that wraps rows, such as ``{"data": [ … ], "version": 1}``; other JSON files have more."""


def _hint(row: Mapping[str, Any]) -> str:
    """Return a sentence about rows that are not samples as they are; empty for others."""
    hint = "".join(format_class.hint(row) for format_class in FORMATS.values())
    if hint:
        return hint
    lists = [key for key, value in row.items() if isinstance(value, list) and value and suggested(value[0])]
    key = lists[0] if lists and len(row) <= _MOST_KEYS_AROUND_ROWS else None
    return "" if key is None else f"Rows seem to be under {key!r}: write that list to a separate .json file. "

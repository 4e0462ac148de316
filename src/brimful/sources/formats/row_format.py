"""The contract of a row format, the table of formats, and the choice of one by a name or by the
keys of rows.
"""

import abc
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, ClassVar

from brimful.base.checks import MalformedRowError
from brimful.base.wings import LATE_COLUMNS, LATE_FORMATS
from brimful.base.wording import setting
from brimful.errors import SettingsError, UnknownFormatError
from brimful.sources.attachment_names import COLUMNS
from brimful.sources.formats.conversation import as_message, as_text, is_plain, preview
from brimful.sources.rows import RowView
from brimful.sources.sample import Message, PartlyPlainMessages, PlainMessages, Sample


class RowFormat(abc.ABC):
    """Conversion of one row into the messages of a chat, the text of a document, or tokens."""

    name: ClassVar[str]
    default_fields: ClassVar[Mapping[str, str]]
    """The fields that the format reads, each with its default key."""
    required_fields: ClassVar[tuple[str, ...]]
    """Fields by which a row is recognized: it has all of them."""
    default_prompt: ClassVar[str] = ""
    """Turn of the user that the format adds; empty if all turns come from the row."""
    view: ClassVar[type[RowView] | None] = None
    """View that makes several samples of a row, whose parts ``sample_of_part`` converts; None if a
    row is one sample.
    """
    takes_attachments: ClassVar[bool] = True
    """False if its rows are packed as text only."""
    refused_columns: ClassVar[tuple[str, ...]] = ()
    """Columns that change what a row means: rows of formats that do not read them are refused."""
    refusal: ClassVar[str] = ""
    """Reason to refuse rows with one of the ``refused_columns`` in another format, up to the
    remedy.
    """
    has_turns: ClassVar[bool] = True
    """False if its rows are texts or tokens, not conversations."""
    answers_are_alternatives: ClassVar[bool] = False
    """True if each answer of a row follows its first turn alone when it is a sample of its own."""
    turn_keys: ClassVar[frozenset[str]] = frozenset()
    """Keys of a turn, if the first required field is a list of turns."""
    synonyms: ClassVar[Mapping[str, Sequence[str]]] = {}
    """Keys that data sets use for the fields, the likeliest first."""
    has_conversations: ClassVar[bool] = False
    """True if most rows are a role and a text in each turn, and nothing else: ``conversations``
    converts many at once.
    """
    is_detected: ClassVar[bool] = True
    """False if rows look like rows of another format, so that the caller has to name the format."""
    puts_attachments_first: ClassVar[bool] = False
    """True if its rows have attachments and no marks: they come first in the first turn of the user."""

    def __init__(self, fields: Mapping[str, str] | None = None, prompt: str | None = None) -> None:
        """``prompt``: turn of the user that replaces ``default_prompt``; ignored by a format
        without one.
        """
        strangers = sorted(set(fields or {}) - set(self.default_fields))
        if strangers:
            raise SettingsError(
                f"{setting('fields')} {strangers[0]!r} is not a field of format {self.name}: "
                f"it has {', '.join(self.default_fields)}"
            )
        self.fields = {**self.default_fields, **(fields or {})}
        self.prompt = prompt if self.default_prompt else None
        self.columns = frozenset(self.fields.values())
        """Columns that the format reads."""

    def matches(self, row: Any) -> bool:
        """Return true for an object with all required fields."""
        return isinstance(row, Mapping) and all(
            self.fields[name] in row for name in self.required_fields
        )

    @abc.abstractmethod
    def convert(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a ``Sample``.

        These are ``messages`` and ``tools``, or ``text``, or ``input_ids`` and ``labels``.

        Raises:
            MalformedRowError: a field is missing or has the wrong type; names it and shows the
                value.
        """

    def conversations(self, rows: Sequence[dict[str, Any]]) -> Sequence[PlainMessages | None]:
        """Return the messages of many rows at once, for a format in ``has_conversations``.

        None for a row that ``convert`` has to read, or to refuse.
        """
        raise NotImplementedError

    def sample_of_part(self, part: Any, read: Callable[..., Sample]) -> Sample:
        """Return the sample of a part of a row; only for a format with a ``view``.

        Args:
            part: as the view yields it.
            read: function from a row to its sample, with all checks. Its second argument replaces
                ``convert``.
        """
        raise NotImplementedError

    @classmethod
    def matching_fields(cls, row: Mapping[str, Any]) -> Mapping[str, str] | None:
        """Return the fields by which a row is surely of this format; None if it is of another."""
        return {} if cls.is_detected and cls().matches(row) else None

    @classmethod
    def likely_fields(cls, row: Mapping[str, Any]) -> Mapping[str, str] | None:
        """Return the fields by which a row may be of this format, judged by its keys; None if it
        cannot be.
        """
        for key, value in row.items():
            turn = value[0] if isinstance(value, list) and value else None
            if cls.turn_keys and isinstance(turn, Mapping) and cls.turn_keys <= turn.keys():
                return {cls.required_fields[0]: key}
        keys = {
            field: key
            for field, synonyms in cls.synonyms.items()
            for key in synonyms[::-1]
            if isinstance(row.get(key), str)
        }
        return keys if keys and len(keys) == len(cls.synonyms) else None

    def get(self, row: Mapping[str, Any], name: str) -> Any:
        """Return a field, or refuse the row without it."""
        key = self.fields[name]
        if type(row) is not dict and not isinstance(row, Mapping):
            raise MalformedRowError(
                f"a row of format {self.name} must be an object and is {preview(row)}"
            )
        if key not in row:
            raise MalformedRowError(f"field {key!r} is missing (found {sorted(map(str, row))})")
        return row[key]

    def optional(self, row: Mapping[str, Any], name: str) -> Any:
        """Return a field that may be absent or null."""
        return row.get(self.fields[name])

    def text(self, row: Mapping[str, Any], name: str) -> str:
        """Return a field that must be text."""
        return as_text(self.get(row, name), self.fields[name])

    def system_message(self, row: Mapping[str, Any]) -> list[Message]:
        """Return the system message of the field ``system``; none if it is absent or empty."""
        system = self.optional(row, "system")
        return (
            [{"role": "system", "content": as_text(system, self.fields["system"])}]
            if system
            else []
        )

    def messages(
        self, row: Mapping[str, Any], name: str, convert: Callable[[Any, str], Message] = as_message
    ) -> list[Message]:
        """Return the messages of a field that must be a list of at least one turn."""
        turns, key = self.get(row, name), self.fields[name]
        if not isinstance(turns, list):
            raise MalformedRowError(
                f"{key!r} must be a list of turns and is {type(turns).__name__}"
            )
        if not turns:
            raise MalformedRowError(f"{key!r} is empty: a conversation needs at least one turn")
        if convert is as_message:
            plain = PlainMessages.of(turns)
            if plain is not None:
                return plain
            messages = PartlyPlainMessages.of(turns)
            if messages is not None:
                for index in messages.others:
                    if not is_plain(messages[index]):
                        messages[index] = as_message(messages[index], f"{key}[{index}]")
                return messages
            return [
                turn if is_plain(turn) else as_message(turn, f"{key}[{index}]")
                for index, turn in enumerate(turns)
            ]
        return [convert(turn, f"{key}[{index}]") for index, turn in enumerate(turns)]

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.settings == getattr(other, "settings", None)

    def __hash__(self) -> int:
        return hash((self.name, self.prompt, *sorted(self.fields.items())))

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that decide how a row is converted."""
        settings: dict[str, Any] = {"format": self.name, "fields": dict(self.fields)}
        return settings if self.prompt is None else {**settings, "prompt": self.prompt}


FORMATS: dict[str, type[RowFormat] | str] = {}
"""All formats by name, in the order in which they are tried; last the formats that have to be
named. A format of ``LATE_FORMATS`` is the name of its module until it is needed (``format_class``).
"""

REFUSED_COLUMNS: dict[str, type[RowFormat]] = {}
"""Columns that change what a sample means, each with the format that says why others refuse it."""


def register(*formats: type[RowFormat]) -> None:
    """Add formats, which are tried after those that are registered already."""
    for one in formats:
        FORMATS[one.name] = one
        REFUSED_COLUMNS.update(dict.fromkeys(one.refused_columns, one))
    for name, entry in list(FORMATS.items()):
        if not (isinstance(entry, str) or entry.is_detected):
            FORMATS[name] = FORMATS.pop(name)


def format_class(name: str) -> type[RowFormat]:
    """Return the class of a format by its name. The first call for a format of ``LATE_FORMATS``
    registers it, which changes the order of ``FORMATS``: iterate over a copy.

    Raises:
        KeyError: no such format.

    >>> format_class("caption").__name__
    'Caption'
    """
    if isinstance(module := FORMATS[name], str):
        import_module(module)  # which registers it
    return FORMATS[name]  # type: ignore[return-value]


def format_named(
    name: str, fields: Mapping[str, str] | None = None, prompt: str | None = None
) -> RowFormat:
    """Return the format of that name; ``fields`` renames its fields, ``prompt`` replaces its
    prompt.

    Raises:
        SettingsError: no such format, or a field that the format does not have.
    """
    if name not in FORMATS:
        raise SettingsError(
            f"{setting('format', name)} is unknown: use one of {', '.join(FORMATS)}"
        )
    return format_class(name)(fields, prompt)


def detect(
    rows: Sequence[Any], fields: Mapping[str, str] | None = None, prompt: str | None = None
) -> RowFormat:
    """Return the format that most of these rows match; the earlier one on a tie.

    A row that does not match is reported when it is read.

    Raises:
        UnknownFormatError: no row matches any format; the message shows the keys of the first row.
    """
    columns = {
        str(key) for row in rows if isinstance(row, Mapping) for key in (*row, *(fields or ()))
    }
    late_names = LATE_FORMATS if columns.isdisjoint({*COLUMNS, *LATE_COLUMNS}) else ()
    candidates = [
        candidate(fields, prompt)
        for candidate in [format_class(name) for name in [*FORMATS] if name not in late_names]
        if candidate.is_detected and (not fields or set(fields) <= set(candidate.default_fields))
    ]
    matches = [sum(map(candidate.matches, rows)) for candidate in candidates]
    if any(matches):
        return candidates[matches.index(max(matches))]
    row = rows[0] if rows and isinstance(rows[0], Mapping) else {}
    keys = [str(key) for key in row]
    summary = (
        f"has keys {sorted(keys)}" if keys else f"is {type(rows[0]).__name__ if rows else 'none'}"
    )
    example, hint = suggested(row), ""
    if not example:
        example = _named("messages", {"messages": "dialogue"})
        hint = _rows_under_a_key(row)
    raise UnknownFormatError(
        f"the rows have no format that brimful knows; the first {summary}. "
        f"{hint}Name the format and its fields, for example {example} "
        f"(formats: {', '.join(FORMATS)})"
    )


def suggested(row: Any) -> str:
    """Return the settings by which a row can be read, by its keys and values; empty if none are
    known.

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
    formats = [*map(format_class, [*FORMATS])]
    for candidate in sorted(formats, key=lambda candidate: candidate.is_detected):
        fields = candidate.matching_fields(row)
        if fields is not None:
            return _named(candidate.name, fields)
    for candidate in formats:
        fields = candidate.likely_fields(row)
        if fields is not None:
            return _named(candidate.name, fields)
    return ""


def _named(name: str, fields: Mapping[str, str]) -> str:
    new_keys = {
        field: key
        for field, key in fields.items()
        if format_class(name).default_fields[field] != key
    }
    return (
        f"{setting('format', name)} {setting('fields', new_keys)}"
        if new_keys
        else setting("format", name)
    )


_MOST_KEYS_AROUND_ROWS = 4
"""Maximum keys of an object that wraps rows, such as ``{"data": [ … ], "version": 1}``; other JSON
files have more.
"""


def _rows_under_a_key(row: Mapping[str, Any]) -> str:
    """Return a sentence about an object that wraps the rows; empty for other rows."""
    keys = [
        key
        for key, value in row.items()
        if isinstance(value, list) and value and suggested(value[0])
    ]
    if not keys or len(row) > _MOST_KEYS_AROUND_ROWS:
        return ""
    return f"Rows seem to be under {keys[0]!r}: write that list to a separate .json file. "

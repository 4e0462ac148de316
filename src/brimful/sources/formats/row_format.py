"""What every row format shares: its name, its fields, and how a row is checked."""

from __future__ import annotations

import abc
import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from brimful.arguments import check_type
from brimful.errors import SettingsError
from brimful.sources.sample import MalformedRowError, Message
from brimful.words import setting

__all__ = ["RowFormat", "as_message", "as_text", "as_tools"]


class RowFormat(abc.ABC):
    """Turns one row into the messages of a chat or the text of a document."""

    name: ClassVar[str]
    default_fields: ClassVar[Mapping[str, str]]
    """The fields it reads, each with the key it has unless renamed."""

    def __init__(self, fields: Mapping[str, str] | None = None) -> None:
        if fields is not None:
            check_type("fields", fields, Mapping, "a mapping such as {'messages': 'dialogue'}")
        unknown = set(fields or {}) - set(self.default_fields)
        if unknown:
            raise SettingsError(
                f"{setting('fields')} {sorted(unknown)[0]!r} is not a field of format {self.name}: "
                f"it has {', '.join(self.default_fields)}"
            )
        self.fields = {**self.default_fields, **(fields or {})}

    @abc.abstractmethod
    def matches(self, row: Any) -> bool:
        """Whether the row has the keys of this format."""

    @abc.abstractmethod
    def convert(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """``messages`` and ``tools``, or ``text``: the fields of a ``Sample``.

        Raises:
            MalformedRowError: a field is missing or has the wrong type; says which and what was found.
        """

    def has(self, row: Any, *names: str) -> bool:
        """Whether a row is an object with all these fields."""
        return isinstance(row, Mapping) and all(self.fields[name] in row for name in names)

    def get(self, row: Mapping[str, Any], name: str) -> Any:
        """A field that must be there."""
        key = self.fields[name]
        if not isinstance(row, Mapping):
            raise MalformedRowError(f"a row of format {self.name} must be an object and is {_shown(row)}")
        if key not in row:
            raise MalformedRowError(f"field {key!r} is missing (found {sorted(map(str, row))})")
        return row[key]

    def optional(self, row: Mapping[str, Any], name: str) -> Any:
        """A field that may be absent or null."""
        return row.get(self.fields[name])


def as_text(value: Any, what: str) -> str:
    """A string, or an error that shows what stands there instead."""
    if not isinstance(value, str):
        raise MalformedRowError(f"{what} must be text and is {_shown(value)}")
    return value


def as_message(value: Any, what: str) -> Message:
    """One turn in OpenAI's words, checked; parts of text are joined and JSON arguments parsed.

    Chat templates expect the arguments of a tool call as an object; OpenAI's API writes them as JSON text.
    """
    if not isinstance(value, Mapping):
        raise MalformedRowError(f"{what} must be an object and is {_shown(value)}")
    role = value.get("role")
    if not isinstance(role, str) or not role:
        raise MalformedRowError(f"{what} has no role (found {sorted(map(str, value))})")
    message = dict(value)
    content = value.get("content")
    calls = value.get("tool_calls")
    if content is None:
        if not calls:
            raise MalformedRowError(f"{what} (role {role}) has no content")
    elif isinstance(content, Sequence) and not isinstance(content, str):
        message["content"] = "".join(_part_text(part, what) for part in content)
    else:
        as_text(content, f"the content of {what}")
    if calls:
        if not isinstance(calls, Sequence) or isinstance(calls, str):
            raise MalformedRowError(f"tool_calls of {what} must be a list and is {_shown(calls)}")
        message["tool_calls"] = [_call(call, what) for call in calls]
    elif "tool_calls" in message:
        del message["tool_calls"]
    return message


def as_tools(value: Any) -> list[dict[str, Any]] | None:
    """The tools of a chat: a list of JSON schemas, or JSON text of one."""
    if value is None or value == "" or value == []:
        return None
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise MalformedRowError(f"tools is text that is no JSON: {error}") from error
    if not isinstance(value, Sequence) or not all(isinstance(tool, Mapping) for tool in value):
        raise MalformedRowError(f"tools must be a list of objects and is {_shown(value)}")
    return [dict(tool) for tool in value] or None


def _call(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise MalformedRowError(f"a tool call of {what} must be an object and is {_shown(value)}")
    call: dict[str, Any] = dict(value)
    inner: Any = call.get("function", call)
    if not isinstance(inner, Mapping) or not isinstance(inner.get("name"), str):
        raise MalformedRowError(f"a tool call of {what} names no function")
    arguments = inner.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except json.JSONDecodeError:
            arguments = inner["arguments"]
        if isinstance(arguments, Mapping):
            inner = {**inner, "arguments": arguments}
            call = {**call, "function": inner} if "function" in call else dict(inner)
    return call


def _part_text(part: Any, what: str) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, Mapping):
        kind = part.get("type", "text")
        if kind != "text":
            raise MalformedRowError(f"{what} holds a part of type {kind!r}; only text can be packed so far")
        text = part.get("text", part.get("value"))
        if isinstance(text, str):
            return text
    raise MalformedRowError(f"a part of {what} must be text and is {_shown(part)}")


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return f"{type(value).__name__} {text[:60]}{'…' if len(text) > 60 else ''}"

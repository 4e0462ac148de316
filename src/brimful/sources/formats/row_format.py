"""What every row format shares: its name, its fields, and how a row is checked."""

from __future__ import annotations

import abc
import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from brimful.errors import SettingsError
from brimful.messages import setting
from brimful.sources.sample import MalformedRowError, Message

__all__ = ["RowFormat", "as_message", "as_text", "as_tools"]

_MEDIA_PARTS = ("image", "image_url", "input_image", "video", "video_url", "audio", "audio_url", "input_audio", "file")


class RowFormat(abc.ABC):
    """Turns one row into the messages of a chat, the text of a document, or tokens."""

    name: ClassVar[str]
    default_fields: ClassVar[Mapping[str, str]]
    """The fields it reads, each with the key it has unless renamed."""

    def __init__(self, fields: Mapping[str, str] | None = None) -> None:
        unknown = set(fields or {}) - set(self.default_fields)
        if unknown:
            raise SettingsError(
                f"{setting('fields')} {sorted(unknown)[0]!r} is not a field of format {self.name}: "
                f"it has {', '.join(self.default_fields)}"
            )
        self.fields = {**self.default_fields, **(fields or {})}
        self.columns = frozenset(self.fields.values())
        """Columns that it reads."""

    @abc.abstractmethod
    def matches(self, row: Any) -> bool:
        """Whether the row has the keys of this format."""

    @abc.abstractmethod
    def convert(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """``messages`` and ``tools``, or ``text``, or ``input_ids`` and ``labels``: the fields of a ``Sample``.

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
            raise MalformedRowError(f"a row of format {self.name} must be an object and is {shown(row)}")
        if key not in row:
            raise MalformedRowError(f"field {key!r} is missing (found {sorted(map(str, row))})")
        return row[key]

    def optional(self, row: Mapping[str, Any], name: str) -> Any:
        """A field that may be absent or null."""
        return row.get(self.fields[name])

    def turns(self, row: Mapping[str, Any], name: str) -> list[Any]:
        """A field that must be a list of at least one turn."""
        turns, key = self.get(row, name), self.fields[name]
        if not isinstance(turns, list):
            raise MalformedRowError(f"{key!r} must be a list of turns and is {type(turns).__name__}")
        if not turns:
            raise MalformedRowError(f"{key!r} is empty: a conversation needs at least one turn")
        return turns

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.fields == getattr(other, "fields", None)

    def __hash__(self) -> int:
        return hash((self.name, *sorted(self.fields.items())))

    def __repr__(self) -> str:
        renamed = {name: key for name, key in self.fields.items() if self.default_fields[name] != key}
        return f"{type(self).__name__}({renamed or ''})"


def as_text(value: Any, what: str) -> str:
    """A string, or an error that shows what stands there instead."""
    if not isinstance(value, str):
        raise MalformedRowError(f"{what} must be text and is {shown(value)}")
    return value


def as_message(value: Any, what: str) -> Message:
    """One turn in OpenAI's words, checked; parts of text are joined and JSON arguments parsed.

    Chat templates expect the arguments of a tool call as an object; OpenAI's API writes them as JSON text. Parts of
    type ``reasoning`` or ``thinking`` become ``reasoning_content``, parts of type ``tool_call`` become calls.
    """
    if not isinstance(value, Mapping):
        raise MalformedRowError(f"{what} must be an object and is {shown(value)}")
    role = value.get("role")
    if not isinstance(role, str) or not role:
        raise MalformedRowError(f"{what} has no role (found {sorted(map(str, value))})")
    message = dict(value)
    for key in ("reasoning", "thinking"):
        if isinstance(message.get(key), str) and message.get("reasoning_content") is None:
            message["reasoning_content"] = message.pop(key)
    calls = value.get("tool_calls") or []
    if not isinstance(calls, Sequence) or isinstance(calls, str):
        raise MalformedRowError(f"tool_calls of {what} must be a list and is {shown(calls)}")
    calls = list(calls)
    if message.get("function_call"):
        calls.append(message.pop("function_call"))
    content = value.get("content")
    if isinstance(content, Sequence) and not isinstance(content, str):
        parts = _Parts(content, what)
        message["content"] = parts.text
        calls += parts.calls
        if parts.reasoning:
            message["reasoning_content"] = parts.reasoning
    elif content is None:
        if not calls:
            raise MalformedRowError(f"{what} (role {role}) has no content")
    else:
        as_text(content, f"the content of {what}")
    if message.get("reasoning_content") is not None:
        as_text(message["reasoning_content"], f"the reasoning_content of {what}")
    message.pop("tool_calls", None)
    if calls:
        message["tool_calls"] = [_call(call, what) for call in calls]
    for key in _MEDIA_PARTS:
        medium = message.get(key) or message.get(f"{key}s")
        if medium:
            raise MalformedRowError(f"{what} holds {key!r}; only text can be packed so far")
    return message


def as_tools(value: Any) -> list[dict[str, Any]] | None:
    """The tools of a chat: a list of JSON schemas, or JSON text of one."""
    if value is None or value == "" or value == []:
        return None
    if isinstance(value, str):
        value = from_json(value, "tools")
    if value is None or value == []:
        return None
    if isinstance(value, Mapping):
        value = [value]
    if not isinstance(value, Sequence) or not all(isinstance(tool, Mapping) for tool in value):
        raise MalformedRowError(f"tools must be a list of objects and is {shown(value)}")
    return [dict(tool) for tool in value] or None


def from_json(text: str, what: str) -> Any:
    """The value of a JSON text inside a row, or an error that says why it has none."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise MalformedRowError(f"{what} is text that is no JSON: {error}") from error
    except RecursionError as error:
        raise MalformedRowError(f"{what} is JSON that is nested too deeply") from error
    except ValueError as error:  # a number of thousands of digits
        raise MalformedRowError(f"{what} is JSON that cannot be read: {error}") from error


def _call(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise MalformedRowError(f"a tool call of {what} must be an object and is {shown(value)}")
    call: dict[str, Any] = dict(value)
    inner: Any = call.get("function", call)
    if not isinstance(inner, Mapping) or not isinstance(inner.get("name"), str):
        raise MalformedRowError(f"a tool call of {what} names no function")
    arguments = inner.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = from_json(arguments, f"the arguments of {inner['name']!r} in {what}")
        except MalformedRowError as error:
            if not isinstance(error.__cause__, json.JSONDecodeError):
                raise
            arguments = inner["arguments"]  # text that is no JSON is what the model has to write
        if isinstance(arguments, Mapping):
            inner = {**inner, "arguments": arguments}
            call = {**call, "function": inner} if "function" in call else dict(inner)
    return call


class _Parts:
    """The parts of one content, sorted: text, thoughts, and calls of tools."""

    def __init__(self, parts: Sequence[Any], what: str) -> None:
        self.text = ""
        self.reasoning = ""
        self.calls: list[Any] = []
        for part in parts:
            self._add(part, what)

    def _add(self, part: Any, what: str) -> None:
        if isinstance(part, str):
            self.text += part
            return
        if not isinstance(part, Mapping):
            raise MalformedRowError(f"a part of {what} must be text and is {shown(part)}")
        kind = part.get("type", "text")
        text = next((part[key] for key in ("text", "value", kind) if isinstance(part.get(key), str)), None)
        if kind in ("text", "input_text", "output_text") and text is not None:
            self.text += text
        elif kind in ("reasoning", "thinking") and text is not None:
            self.reasoning += text
        elif kind == "tool_call":
            call = part.get("value", part)
            calls = from_json(call, f"a tool call of {what}") if isinstance(call, str) else call
            self.calls += calls if isinstance(calls, list) else [calls]
        elif kind in ("text", "input_text", "output_text", "reasoning", "thinking"):
            raise MalformedRowError(f"a part of {what} must be text and is {shown(part)}")
        else:
            raise MalformedRowError(f"{what} holds a part of type {kind!r}; only text can be packed so far")


def shown(value: Any) -> str:
    """A value for a message: its type and how it begins."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except (RecursionError, ValueError):
        text = "that cannot be shown"
    return f"{type(value).__name__} {text[:60]}{'…' if len(text) > 60 else ''}"

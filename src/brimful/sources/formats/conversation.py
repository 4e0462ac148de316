"""Checked values of a row: texts, turns of a chat, and tools."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from brimful.base.checks import MalformedRowError
from brimful.sources.attachment_names import PARTS, is_attachment
from brimful.sources.json_rows import unreadable
from brimful.sources.sample import Message

_ATTACHMENTS = (*PARTS, "file")
_ATTACHMENT_KEYS = frozenset((*_ATTACHMENTS, *(f"{part}s" for part in _ATTACHMENTS)))
_WEIGHT_KEYS = ("weight", "loss_weight")
_CHANGED_KEYS = _ATTACHMENT_KEYS | {
    *("tool_calls", "function_call", "reasoning_content", "reasoning", "thinking"),
    *_WEIGHT_KEYS,
}
"""Keys of a turn that are checked or rewritten."""

_TEXT_PARTS = ("text", "input_text", "output_text")
_REASONING_PARTS = ("reasoning", "thinking")


def as_text(value: Any, name: str) -> str:
    """Return a string, or raise an error that shows the value; ``name`` names the value in the
    message.
    """
    if not isinstance(value, str):
        raise MalformedRowError(f"{name} must be text and is {preview(value)}")
    return value


def is_plain(turn: Any) -> bool:
    """Return true for a turn of a role and a text that needs no change, as most turns do not.

    >>> is_plain({"role": "user", "content": "hi"}), is_plain({"role": "user", "content": None})
    (True, False)
    """
    if type(turn) is not dict:
        return False
    role = turn.get("role")
    is_text = type(role) is str and role != "" and type(turn.get("content")) is str
    # A turn with two keys has exactly these two.
    return is_text and (len(turn) == 2 or _CHANGED_KEYS.isdisjoint(turn))


def as_message(value: Any, name: str) -> Message:
    """Return one checked turn in OpenAI's form; text parts are joined and JSON arguments parsed.

    A content that holds attachments stays a list of texts and of such parts as they are.

    Chat templates expect the arguments of a tool call as an object; OpenAI's API writes them as
    JSON text. Parts of type ``reasoning`` or ``thinking`` become ``reasoning_content``, parts of
    type ``tool_call`` become calls.
    """
    if type(value) is not dict and not isinstance(value, Mapping):
        raise MalformedRowError(f"{name} must be an object and is {preview(value)}")
    role = value.get("role")
    if not isinstance(role, str) or not role:
        raise MalformedRowError(f"{name} has no role (found {sorted(map(str, value))})")
    message = dict(value)
    for key in _WEIGHT_KEYS:
        if message.get(key) not in (None, 0, 1):
            raise MalformedRowError(
                f"{key} of {name} must be 0 or 1 and is {preview(message[key])}"
            )
    # Templates read the reasoning from one key; data sets write it under several.
    for key in _REASONING_PARTS:
        if isinstance(message.get(key), str) and message.get("reasoning_content") is None:
            message["reasoning_content"] = message.pop(key)
    calls = message.pop("tool_calls", None) or []
    if type(calls) is not list and (not isinstance(calls, Sequence) or isinstance(calls, str)):
        raise MalformedRowError(f"tool_calls of {name} must be a list and is {preview(calls)}")
    calls = list(calls)
    if message.get("function_call"):
        calls.append(message.pop("function_call"))
    # The content: parts, nothing next to a call, or one text.
    content = value.get("content")
    if type(content) is not str and isinstance(content, Sequence) and not isinstance(content, str):
        message["content"], reasoning, part_calls = _join_parts(content, name)
        calls += part_calls
        if reasoning:
            message["reasoning_content"] = reasoning
    elif content is not None:
        as_text(content, f"the content of {name}")
    elif not calls:
        raise MalformedRowError(f"{name} (role {role}) has no content")
    if message.get("reasoning_content") is not None:
        as_text(message["reasoning_content"], f"the reasoning_content of {name}")
    if calls:
        message["tool_calls"] = [_as_call(call, name) for call in calls]
    for key in () if _ATTACHMENT_KEYS.isdisjoint(message) else _ATTACHMENTS:
        if message.get(key) or message.get(f"{key}s"):
            raise MalformedRowError(f"{name} holds {key!r}; only text can be packed so far")
    return message


def as_tools(value: Any) -> list[dict[str, Any]] | None:
    """Return the tools of a chat: a list of JSON schemas, or JSON text of one; None for an empty
    value.
    """
    if isinstance(value, str) and value:
        value = from_json(value, "tools")
    if value is None or value == "" or value == []:
        return None
    if isinstance(value, Mapping):
        value = [value]
    if not isinstance(value, Sequence) or not all(isinstance(tool, Mapping) for tool in value):
        raise MalformedRowError(f"tools must be a list of objects and is {preview(value)}")
    return [dict(tool) for tool in value] or None


def from_json(text: str, name: str) -> Any:
    """Return the value of a JSON text inside a row, or raise an error with the reason."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MalformedRowError(f"{name} is {unreadable(error)}") from error


def preview(value: Any) -> str:
    """Return the type of a value and its first 60 characters, for a message."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except (RecursionError, ValueError):
        text = "that cannot be shown"
    return f"{type(value).__name__} {text[:60]}{'…' if len(text) > 60 else ''}"


def _as_call(value: Any, name: str) -> dict[str, Any]:
    """Return one tool call, with or without OpenAI's ``function`` around it; its arguments as an
    object.
    """
    if not isinstance(value, Mapping):
        raise MalformedRowError(f"a tool call of {name} must be an object and is {preview(value)}")
    call: dict[str, Any] = dict(value)
    function: Any = call.get("function", call)
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise MalformedRowError(f"a tool call of {name} names no function")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = from_json(arguments, f"the arguments of {function['name']!r} in {name}")
        except MalformedRowError as error:
            # Text that is not JSON stays: the model has to write it as it is.
            if not isinstance(error.__cause__, json.JSONDecodeError):
                raise
        if isinstance(arguments, Mapping):
            function = {**function, "arguments": arguments}
            call = {**call, "function": function} if "function" in call else function
    return call


def _join_parts(
    parts: Sequence[Any], name: str
) -> tuple[str | list[dict[str, Any]], str, list[Any]]:
    """Return the text (with attachments, its parts), the reasoning and the tool calls in the parts of one
    content.
    """
    content: list[dict[str, Any]] = []
    text, reasoning, calls = "", "", []
    for part in parts:
        if isinstance(part, str):
            text += part
            continue
        if is_attachment(part):
            content += [{"type": "text", "text": text}, dict(part)] if text else [dict(part)]
            text = ""
            continue
        if not isinstance(part, Mapping):
            raise MalformedRowError(f"a part of {name} must be text and is {preview(part)}")
        # A part has its text under "text", under "value", or under the name of its own type.
        kind = part.get("type", "text")
        part_text = next(
            (part[key] for key in ("text", "value", kind) if isinstance(part.get(key), str)), None
        )
        if kind == "tool_call":
            call = part.get("value", part)
            call = from_json(call, f"a tool call of {name}") if isinstance(call, str) else call
            calls += call if isinstance(call, list) else [call]
        elif kind not in (*_TEXT_PARTS, *_REASONING_PARTS):
            raise MalformedRowError(
                f"{name} holds a part of type {kind!r}; only text can be packed so far"
            )
        elif part_text is None:
            raise MalformedRowError(f"a part of {name} must be text and is {preview(part)}")
        elif kind in _REASONING_PARTS:
            reasoning += part_text
        else:
            text += part_text
    if content and text:
        content.append({"type": "text", "text": text})
    return content or text, reasoning, calls

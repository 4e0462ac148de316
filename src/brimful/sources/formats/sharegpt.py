"""ShareGPT's chat format: turns with ``from`` and ``value``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from brimful.sources.formats.row_format import RowFormat, as_text, as_tools
from brimful.sources.sample import MalformedRowError, Message

__all__ = ["ShareGPT"]

_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "bot": "assistant",
    "chatgpt": "assistant",
    "system": "system",
    "observation": "tool",
    "tool": "tool",
    "function_response": "tool",
}


class ShareGPT(RowFormat):
    """``{"conversations": [{"from": "human", "value": …}, {"from": "gpt", "value": …}], "system": …}``.

    >>> row = {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho"}]}
    >>> [turn["role"] for turn in ShareGPT().convert(row)["messages"]]
    ['user', 'assistant']
    """

    name = "sharegpt"
    default_fields = {"conversations": "conversations", "system": "system", "tools": "tools"}

    def matches(self, row: Any) -> bool:
        return self.has(row, "conversations") and not isinstance(row.get("chosen"), Mapping)

    def convert(self, row: Mapping[str, Any]) -> dict[str, Any]:
        key = self.fields["conversations"]
        turns = self.get(row, "conversations")
        if not isinstance(turns, list):
            raise MalformedRowError(f"{key!r} must be a list of turns and is {type(turns).__name__}")
        if not turns:
            raise MalformedRowError(f"{key!r} is empty: a conversation needs at least one turn")
        messages = [_message(turn, f"{key}[{number}]") for number, turn in enumerate(turns)]
        system = self.optional(row, "system")
        if system:
            messages.insert(0, {"role": "system", "content": as_text(system, self.fields["system"])})
        return {"messages": messages, "tools": as_tools(self.optional(row, "tools"))}


def _message(turn: Any, what: str) -> Message:
    if not isinstance(turn, Mapping) or "from" not in turn or "value" not in turn:
        raise MalformedRowError(f"{what} must be an object with 'from' and 'value'")
    speaker, value = turn["from"], as_text(turn["value"], f"the value of {what}")
    if speaker == "function_call":
        return {"role": "assistant", "content": "", "tool_calls": _calls(value, what)}
    if speaker not in _ROLES:
        raise MalformedRowError(f"{what} is from {speaker!r}, which is none of {', '.join(_ROLES)}, function_call")
    return {"role": _ROLES[speaker], "content": value}


def _calls(value: str, what: str) -> list[dict[str, Any]]:
    try:
        parsed = json.loads(value)
    except json.JSONDecodeError as error:
        raise MalformedRowError(f"{what} is a function_call whose value is no JSON: {error}") from error
    calls = parsed if isinstance(parsed, list) else [parsed]
    for call in calls:
        if not isinstance(call, dict) or not isinstance(call.get("name"), str):
            raise MalformedRowError(f"{what} is a function_call that names no function")
    return [{"type": "function", "function": call} for call in calls]

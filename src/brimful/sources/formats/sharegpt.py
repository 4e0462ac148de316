"""ShareGPT's chat format: turns with ``from`` and ``value``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from brimful.sources.formats.row_format import RowFormat, as_message, as_text, as_tools, from_json, shown
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

    Turns with ``role`` and ``content`` are understood too: many data sets have those under this key.

    >>> row = {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho"}]}
    >>> [turn["role"] for turn in ShareGPT().convert(row)["messages"]]
    ['user', 'assistant']
    """

    name = "sharegpt"
    default_fields = {"conversations": "conversations", "system": "system", "tools": "tools"}

    def matches(self, row: Any) -> bool:
        return self.has(row, "conversations")

    def convert(self, row: Mapping[str, Any]) -> dict[str, Any]:
        key = self.fields["conversations"]
        turns = self.turns(row, "conversations")
        messages = [_message(turn, f"{key}[{number}]") for number, turn in enumerate(turns)]
        system = self.optional(row, "system")
        if system:
            messages.insert(0, {"role": "system", "content": as_text(system, self.fields["system"])})
        return {"messages": messages, "tools": as_tools(self.optional(row, "tools"))}


def _message(turn: Any, what: str) -> Message:
    if isinstance(turn, Mapping) and "role" in turn and "from" not in turn:
        return as_message(turn, what)
    if not isinstance(turn, Mapping) or "from" not in turn or "value" not in turn:
        raise MalformedRowError(f"{what} must be an object with 'from' and 'value'")
    speaker, value = turn["from"], as_text(turn["value"], f"the value of {what}")
    if speaker == "function_call":
        message: Message = {"role": "assistant", "content": "", "tool_calls": _calls(value, what)}
    elif isinstance(speaker, str) and speaker in _ROLES:
        message = {"role": _ROLES[speaker], "content": value}
    else:
        known = f"{', '.join(_ROLES)}, function_call"
        said = repr(speaker) if isinstance(speaker, str) else shown(speaker)
        raise MalformedRowError(f"{what} is from {said}, which is none of {known}")
    return {**{key: there for key, there in turn.items() if key not in ("from", "value", *message)}, **message}


def _calls(value: str, what: str) -> list[dict[str, Any]]:
    parsed = from_json(value, f"the function_call in {what}")
    calls = parsed if isinstance(parsed, list) else [parsed]
    for call in calls:
        if not isinstance(call, dict) or not isinstance(call.get("name"), str):
            raise MalformedRowError(f"{what} is a function_call that names no function")
    return [{"type": "function", "function": call} for call in calls]

"""Chats: lists of turns in OpenAI's form, with tool calls and tool results, or in ShareGPT's."""

from collections.abc import Mapping, Sequence
from typing import Any

from brimful.base.checks import MalformedRowError
from brimful.sources.formats.conversation import (
    as_message,
    as_text,
    as_tools,
    from_json,
    preview,
)
from brimful.sources.formats.row_format import RowFormat
from brimful.sources.sample import Message, PlainMessages


class Messages(RowFormat):
    """``{"messages": [{"role": "user", "content": …}, …], "tools": [ … ]}``.

    >>> Messages().convert({"messages": [{"role": "user", "content": "hi"}]})["messages"]
    [{'role': 'user', 'content': 'hi'}]
    """

    name = "messages"
    default_fields = {"messages": "messages", "tools": "tools"}
    required_fields = ("messages",)
    turn_keys = frozenset({"role", "content"})
    has_conversations = True

    def convert(self, row: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "messages": self.messages(row, "messages"),
            "tools": as_tools(self.optional(row, "tools")),
        }

    def conversations(self, rows: Sequence[dict[str, Any]]) -> Sequence[PlainMessages | None]:
        messages, tools = self.fields["messages"], self.fields["tools"]
        conversations = [
            turns
            if type(turns := row.get(messages)) is list and turns and row.get(tools) is None
            else None
            for row in rows
        ]
        turns_of_rows = [turns for turns in conversations if turns is not None]
        if len(turns_of_rows) == len(rows):
            return PlainMessages.of_many(turns_of_rows)
        return [None if turns is None else PlainMessages.of(turns) for turns in conversations]


_ROLES = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "bot", "chatgpt"), "assistant"),
    "system": "system",
    **dict.fromkeys(("observation", "tool", "function_response"), "tool"),
}


class ShareGPT(RowFormat):
    """``{"conversations": [{"from": "human", "value": …}, {"from": "gpt", "value": …}], "system":
    …}``.

    Turns with ``role`` and ``content`` are understood too: many data sets have such turns under
    this key.

    >>> row = {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho"}]}
    >>> [turn["role"] for turn in ShareGPT().convert(row)["messages"]]
    ['user', 'assistant']
    """

    name = "sharegpt"
    default_fields = {"conversations": "conversations", "system": "system", "tools": "tools"}
    required_fields = ("conversations",)
    turn_keys = frozenset({"from", "value"})

    def convert(self, row: Mapping[str, Any]) -> dict[str, Any]:
        messages = self.messages(row, "conversations", as_sharegpt_message)
        return {
            "messages": self.system_message(row) + messages,
            "tools": as_tools(self.optional(row, "tools")),
        }


def as_sharegpt_message(turn: Any, name: str) -> Message:
    """Return one turn in OpenAI's form; keys other than ``from`` and ``value`` stay."""
    if isinstance(turn, Mapping) and "role" in turn and "from" not in turn:
        return as_message(turn, name)
    if not isinstance(turn, Mapping) or "from" not in turn or "value" not in turn:
        raise MalformedRowError(f"{name} must be an object with 'from' and 'value'")
    speaker, text = turn["from"], as_text(turn["value"], f"the value of {name}")
    if speaker == "function_call":
        message: Message = {"role": "assistant", "content": "", "tool_calls": _calls(text, name)}
    elif isinstance(speaker, str) and speaker in _ROLES:
        message = {"role": _ROLES[speaker], "content": text}
    else:
        value = repr(speaker) if isinstance(speaker, str) else preview(speaker)
        raise MalformedRowError(
            f"{name} is from {value}: use one of {', '.join(_ROLES)}, function_call"
        )
    extra = {key: value for key, value in turn.items() if key not in ("from", "value", *message)}
    return {**extra, **message}


def _calls(text: str, name: str) -> list[dict[str, Any]]:
    """Return the tool calls in the JSON text of a ``function_call`` turn: one, or a list."""
    value = from_json(text, f"the function_call in {name}")
    calls = value if isinstance(value, list) else [value]
    for call in calls:
        if not isinstance(call, dict) or not isinstance(call.get("name"), str):
            raise MalformedRowError(f"{name} is a function_call that names no function")
    return [{"type": "function", "function": call} for call in calls]

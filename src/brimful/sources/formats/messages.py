"""OpenAI's chat format: a list of turns with role and content, tool calls and tool results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from brimful.sources.formats.row_format import RowFormat, as_message, as_tools
from brimful.sources.sample import MalformedRowError

__all__ = ["Messages"]


class Messages(RowFormat):
    """``{"messages": [{"role": "user", "content": …}, …], "tools": [ … ]}``.

    >>> Messages().convert({"messages": [{"role": "user", "content": "hi"}]})["messages"]
    [{'role': 'user', 'content': 'hi'}]
    """

    name = "messages"
    default_fields = {"messages": "messages", "tools": "tools"}

    def matches(self, row: Any) -> bool:
        return self.has(row, "messages")

    def convert(self, row: Mapping[str, Any]) -> dict[str, Any]:
        turns = self.get(row, "messages")
        key = self.fields["messages"]
        if not isinstance(turns, list):
            raise MalformedRowError(f"{key!r} must be a list of turns and is {type(turns).__name__}")
        if not turns:
            raise MalformedRowError(f"{key!r} is empty: a conversation needs at least one turn")
        messages = [as_message(turn, f"{key}[{number}]") for number, turn in enumerate(turns)]
        return {"messages": messages, "tools": as_tools(self.optional(row, "tools"))}

"""OpenAI's chat format: a list of turns with role and content, tool calls and tool results."""

from collections.abc import Mapping
from typing import Any

from brimful.sources.formats.row_format import RowFormat
from brimful.sources.formats.turns import as_tools


class Messages(RowFormat):
    """``{"messages": [{"role": "user", "content": …}, …], "tools": [ … ]}``.

    >>> Messages().convert({"messages": [{"role": "user", "content": "hi"}]})["messages"]
    [{'role': 'user', 'content': 'hi'}]
    """

    name = "messages"
    default_fields = {"messages": "messages", "tools": "tools"}
    required_fields = ("messages",)

    def convert(self, row: Mapping[str, Any]) -> dict[str, Any]:
        return {"messages": self.messages(row, "messages"), "tools": as_tools(self.optional(row, "tools"))}

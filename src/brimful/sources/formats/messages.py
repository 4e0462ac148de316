"""OpenAI's chat format: a list of turns with role and content, tool calls and tool results."""

from collections.abc import Mapping, Sequence
from typing import Any

from brimful.sources.formats.conversation import as_tools, key_of_turns
from brimful.sources.formats.row_format import RowFormat
from brimful.sources.sample import PlainMessages


class Messages(RowFormat):
    """``{"messages": [{"role": "user", "content": …}, …], "tools": [ … ]}``.

    >>> Messages().convert({"messages": [{"role": "user", "content": "hi"}]})["messages"]
    [{'role': 'user', 'content': 'hi'}]
    """

    name = "messages"
    default_fields = {"messages": "messages", "tools": "tools"}
    required_fields = ("messages",)
    has_conversations = True

    @classmethod
    def likely_fields(cls, row: Mapping[str, Any]) -> Mapping[str, str] | None:
        key = key_of_turns(row, {"role", "content"})
        return None if key is None else {"messages": key}

    def convert(self, row: Mapping[str, Any]) -> dict[str, Any]:
        return {"messages": self.messages(row, "messages"), "tools": as_tools(self.optional(row, "tools"))}

    def conversations(self, rows: Sequence[dict[str, Any]]) -> Sequence[PlainMessages | None]:
        messages, tools = self.fields["messages"], self.fields["tools"]
        conversations = [
            turns if type(turns := row.get(messages)) is list and turns and row.get(tools) is None else None
            for row in rows
        ]
        turns_of_rows = [turns for turns in conversations if turns is not None]
        if len(turns_of_rows) == len(rows):
            return PlainMessages.of_many(turns_of_rows)
        return [None if turns is None else PlainMessages.of(turns) for turns in conversations]

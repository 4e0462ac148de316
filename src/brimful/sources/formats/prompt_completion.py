"""Prompt and completion, as texts or as lists of turns."""

from collections.abc import Mapping
from typing import Any

from brimful.sources.formats.conversation import as_tools
from brimful.sources.formats.row_format import RowFormat
from brimful.sources.sample import Message


class PromptCompletion(RowFormat):
    """``{"prompt": …, "completion": …}``; either may be a text or a list of turns.

    >>> [m["role"] for m in PromptCompletion().convert({"prompt": "1+1?", "completion": "2"})["messages"]]
    ['user', 'assistant']
    """

    name = "prompt_completion"
    default_fields = {"prompt": "prompt", "completion": "completion", "tools": "tools"}
    required_fields = ("prompt", "completion")

    def convert(self, row: Mapping[str, Any]) -> dict[str, Any]:
        messages = self._side(row, "prompt", "user") + self._side(row, "completion", "assistant")
        return {"messages": messages, "tools": as_tools(self.optional(row, "tools"))}

    def _side(self, row: Mapping[str, Any], name: str, role: str) -> list[Message]:
        """Return the messages of the prompt or the completion; a text is one message of that role."""
        if isinstance(self.get(row, name), list):
            return self.messages(row, name)
        return [{"role": role, "content": self.text(row, name)}]

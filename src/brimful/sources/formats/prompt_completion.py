"""Prompt and completion, as texts or as lists of turns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from brimful.sources.formats.row_format import RowFormat, as_message, as_text, as_tools
from brimful.sources.sample import Message

__all__ = ["PromptCompletion"]


class PromptCompletion(RowFormat):
    """``{"prompt": …, "completion": …}``; either may be a text or a list of turns.

    >>> [m["role"] for m in PromptCompletion().convert({"prompt": "1+1?", "completion": "2"})["messages"]]
    ['user', 'assistant']
    """

    name = "prompt_completion"
    default_fields = {"prompt": "prompt", "completion": "completion", "tools": "tools"}

    def matches(self, row: Any) -> bool:
        return self.has(row, "prompt", "completion")

    def convert(self, row: Mapping[str, Any]) -> dict[str, Any]:
        messages = self._turns(row, "prompt", "user") + self._turns(row, "completion", "assistant")
        return {"messages": messages, "tools": as_tools(self.optional(row, "tools"))}

    def _turns(self, row: Mapping[str, Any], name: str, role: str) -> list[Message]:
        value, key = self.get(row, name), self.fields[name]
        if isinstance(value, list):
            return [as_message(turn, f"{key}[{number}]") for number, turn in enumerate(self.turns(row, name))]
        return [{"role": role, "content": as_text(value, key)}]

"""One training example of a source, in the two forms that encoders take: a chat or a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from brimful.words import counted

__all__ = ["MalformedRowError", "Message", "Sample"]

Message: TypeAlias = dict[str, Any]
"""One turn in OpenAI's words: ``role``, ``content`` (text) and, where it calls tools, ``tool_calls``."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One training example, whatever format its row had.

    Attributes:
        sample_id: index in the source, from 0.
        messages: the turns of a chat, or None for a text.
        text: a document, or None for a chat.
        tools: JSON schemas of the tools that the chat may call, as the template wants them.

    >>> Sample(0, messages=[{"role": "user", "content": "hi"}]).text is None
    True
    """

    sample_id: int
    messages: Sequence[Message] | None = None
    text: str | None = None
    tools: Sequence[dict[str, Any]] | None = None

    def __repr__(self) -> str:
        if self.messages is None:
            return f"Sample({self.sample_id}, text of {counted(len(self.text or ''), 'character')})"
        tools = f", {counted(len(self.tools), 'tool')}" if self.tools else ""
        return f"Sample({self.sample_id}, {counted(len(self.messages), 'message')}{tools})"


class MalformedRowError(ValueError):
    """Raised inside formats; a source turns it into ``BadSampleError`` with file and line."""

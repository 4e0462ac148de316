"""What a chat template leaves out of the text: messages, calls and tools that a conversation has and nobody would see.

Templates write the roles they know and pass over others without a word: a turn of ``bot`` is gone, and so is its
target. Two questions find that out:

1.  *Does the template write messages of this shape at all?* The conversation is rendered once with a mark in the place
    of each content; a mark that is missing is a message that is left out. The answer depends on roles alone and is kept.
2.  *Is the text of each message there?* Each content is looked for behind the one before. A template may change it on
    purpose (take earlier thoughts out, quote it); so a content that is not found is replaced by a mark and asked again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from brimful.sources.sample import Message

__all__ = ["SwallowedText"]

Render: TypeAlias = Callable[[Sequence[Message], Any, bool], str]

_OPEN, _CLOSE = "\ue013", "\ue014"  # private-use characters that no template looks for
_KEPT_SHAPES = 4096
_THOUGHT_ENDS = "</think>"


class SwallowedText:
    """Finds what one chat template leaves out.

    Args:
        render: renders messages and tools with that template.
    """

    def __init__(self, render: Render) -> None:
        self._render = render
        self._shapes: dict[Any, int | None] = {}

    def first(self, messages: Sequence[Message], tools: Any, text: str) -> str | None:
        """The first thing of a conversation that its rendering lacks, for a message; None if all is there."""
        shape = tuple((m["role"], bool(_content(m)), len(m.get("tool_calls") or ())) for m in messages)
        key = (shape, tools is not None)
        if key not in self._shapes:
            if len(self._shapes) >= _KEPT_SHAPES:
                self._shapes.clear()
            self._shapes[key] = self._left_out(messages, tools)
        number = self._shapes[key]
        if number is None:
            number = self._not_found(messages, tools, text)
        if number is not None:
            return _named(number, messages[number])
        for tool in tools or ():
            name = tool.get("function", tool).get("name") if isinstance(tool.get("function", tool), dict) else None
            if isinstance(name, str) and name not in text:
                return f"the tool {name!r} is in none of what the chat template writes"
        return None

    def _left_out(self, messages: Sequence[Message], tools: Any) -> int | None:
        """The first message whose mark is missing when all contents are marks; None too where that cannot be asked."""
        marked = [_marked(message, number) for number, message in enumerate(messages)]
        try:
            text = self._render(marked, tools, False)
        except Exception:  # the template refuses marks: the second question is asked of every conversation
            return None
        for number, message in enumerate(messages):
            if _content(message) and _mark(number, 0) not in text:
                return number
            calls = message.get("tool_calls") or ()
            if any(_mark(number, place) not in text for place in range(1, len(calls) + 1)):
                return number
        return None

    def _not_found(self, messages: Sequence[Message], tools: Any, text: str) -> int | None:
        """The first message whose text is missing."""
        position = 0
        for number, message in enumerate(messages):
            content = _content(message)
            if not content:
                continue
            at = text.find(content, position)
            if at < 0 and _THOUGHT_ENDS in content:
                content = content.rpartition(_THOUGHT_ENDS)[2].strip()
                at = text.find(content, position)
            if at >= 0:
                position = at + len(content)
            elif not self._is_asked_for(messages, tools, number):
                return number
        return None

    def _is_asked_for(self, messages: Sequence[Message], tools: Any, number: int) -> bool:
        """Whether the template writes the content of one message, in whatever form."""
        others = list(messages)
        others[number] = {**messages[number], "content": _mark(number, 0)}
        try:
            return _mark(number, 0) in self._render(others, tools, False)
        except Exception:  # it refuses the mark, so it has looked at the content
            return True


def _content(message: Message) -> str:
    content = message.get("content")
    return content.strip() if isinstance(content, str) else ""


def _mark(number: int, place: int) -> str:
    return f"{_OPEN}{number}.{place}{_CLOSE}"


def _marked(message: Message, number: int) -> Message:
    """The message with marks for its content and for the name of each call."""
    marked = dict(message)
    if _content(message):
        marked["content"] = _mark(number, 0)
    calls = message.get("tool_calls")
    if calls:
        marked["tool_calls"] = [_marked_call(call, _mark(number, place)) for place, call in enumerate(calls, 1)]
    return marked


def _marked_call(call: dict[str, Any], mark: str) -> dict[str, Any]:
    if "function" in call:
        return {**call, "function": {**call["function"], "name": mark}}
    return {**call, "name": mark}


def _named(number: int, message: Message) -> str:
    what = "its calls of tools are" if not _content(message) else f"its text ({_short(_content(message))!r}) is"
    return (
        f"the chat template leaves out messages[{number}] of role {message['role']!r}: {what} in none of what it writes "
        f"(rename the role, or use a template that knows it)"
    )


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:40]}…"

"""Parts of a conversation that a chat template leaves out of the text: messages, calls and tools.

Templates write the roles they know and silently skip others: a turn of ``bot`` is lost, and so is its target. Two
questions detect that:

1.  *Does the template write messages of this shape at all?* The conversation is rendered once with a mark in place of
    each content; a missing mark means a missing message. The answer depends on roles alone and is kept.
2.  *Is the text of each message there?* Each content is searched for after the previous one. A template may change it
    on purpose (remove earlier reasoning, quote it), so a content that is not found is replaced by a mark and searched
    for again.
"""

from collections.abc import Hashable, Sequence
from typing import Any

from brimful.encode.placeholders import Render, examined, excerpt_of, replace_texts
from brimful.sources.sample import Message

_OPEN, _CLOSE = "\ue013", "\ue014"  # private-use characters that no template looks for
_THOUGHT_END = "</think>"


class SwallowedText:
    """Search for what one chat template leaves out.

    Args:
        render: renders messages and tools with that template.
    """

    def __init__(self, render: Render) -> None:
        self._render = render
        self._missing_by_shape: dict[Any, int | None] = {}

    def first(self, shape: Hashable, messages: Sequence[Message], tools: Any, text: str) -> str | None:
        """Describe the first part of a conversation that its rendering lacks; return None if it has all parts.

        ``shape`` comes from ``shape_of``.
        """
        index = examined(self._missing_by_shape, shape, lambda: self._missing_mark(messages, tools))
        if index is None:
            index = self._missing_text(messages, tools, text)
        return self.missing_tool(tools, text) if index is None else _refusal(index, messages[index])

    @staticmethod
    def missing_tool(tools: Any, text: str) -> str | None:
        """Describe the first tool whose name is not in the rendering; return None if all are."""
        for tool in tools or ():
            function = tool.get("function", tool)
            name = function.get("name") if isinstance(function, dict) else None
            if isinstance(name, str) and name not in text:
                return f"the tool {name!r} is missing from what the chat template writes"
        return None

    def _missing_mark(self, messages: Sequence[Message], tools: Any) -> int | None:
        """Return the index of the first message whose mark is not written when all contents are marks.

        None if all are written, or if the template refuses marks: then the second question is asked for every
        conversation.
        """
        pairs = [_with_marks(message, index) for index, message in enumerate(messages)]
        try:
            text = self._render([message for message, _ in pairs], tools, False)
        except Exception:
            return None
        return next((index for index, (_, marks) in enumerate(pairs) if any(mark not in text for mark in marks)), None)

    def _missing_text(self, messages: Sequence[Message], tools: Any, text: str) -> int | None:
        """Return the index of the first message whose text is not in the rendering."""
        end = 0
        for index, message in enumerate(messages):
            content = _content(message)
            if not content:
                continue
            # Searched after the previous message: a short answer such as "yes" is found anywhere in a long text.
            start = text.find(content, end)
            if start < 0 and _THOUGHT_END in content:
                content = content.rpartition(_THOUGHT_END)[2].strip()
                start = text.find(content, end)
            if start >= 0:
                end = start + len(content)
            elif not self._reads_content(messages, tools, index):
                return index
        return None

    def _reads_content(self, messages: Sequence[Message], tools: Any, index: int) -> bool:
        """Return true if the template writes the content of one message, changed or not."""
        marked_messages = list(messages)
        marked_messages[index] = replace_texts(messages[index], _mark(index, 0), None)
        try:
            return _mark(index, 0) in self._render(marked_messages, tools, False)
        except Exception:  # the template refuses the mark, so it reads the content
            return True


def _content(message: Message) -> str:
    content = message.get("content")
    return content.strip() if isinstance(content, str) else ""


def _mark(message_index: int, slot: int) -> str:
    return f"{_OPEN}{message_index}.{slot}{_CLOSE}"


def _with_marks(message: Message, index: int) -> tuple[Message, list[str]]:
    """Return the message with marks for its content and for the name of each call, and the marks."""
    content = _mark(index, 0) if _content(message) else None
    names = [_mark(index, slot) for slot, _ in enumerate(message.get("tool_calls") or (), 1)]
    marks = names if content is None else [content, *names]
    return replace_texts(message, content, [{"name": name} for name in names]), marks


def _refusal(index: int, message: Message) -> str:
    subject = f"its text ({excerpt_of(message)}) is" if _content(message) else "its tool calls are"
    return (
        f"the chat template leaves out messages[{index}] of role {message['role']!r}: {subject} missing from the text "
        f"(rename the role, or use a template that knows it)"
    )

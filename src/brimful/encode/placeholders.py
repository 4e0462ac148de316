"""Messages with placeholders for their texts, used to examine chat templates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

from brimful.base.typing import Int64Array
from brimful.sources.sample import Message

Render: TypeAlias = Callable[[Sequence[Message], Any, bool], str]
"""Function of (messages, tools, add_generation_prompt) that gives the text of one chat template."""


Kept = TypeVar("Kept")

_MAX_SHAPES = 4096
"""Maximum number of shapes whose examination is kept; data sets have few, so more means that shapes do not recur."""


def examined(results: dict[Any, Kept], shape: Any, examine: Callable[[], Kept]) -> Kept:
    """Return the result for a shape of conversations, from ``results`` if it is kept there."""
    if shape not in results:
        if len(results) >= _MAX_SHAPES:
            results.clear()
        results[shape] = examine()
    return results[shape]


def replace_texts(message: Message, content: str | None, call_fields: Iterable[Mapping[str, Any]] | None) -> Message:
    """Return a message with other texts.

    Args:
        message: the original, which stays as it is.
        content: the new content; None keeps the old.
        call_fields: for each tool call, the new values of fields of its function, such as ``name``; None keeps the old.
    """
    copy = dict(message)
    if content is not None:
        copy["content"] = content
    if call_fields is not None and message.get("tool_calls"):
        copy["tool_calls"] = calls = []
        for call, fields in zip(message["tool_calls"], call_fields, strict=True):
            # OpenAI nests name and arguments under ``function``; some data sets have them in the call itself.
            function = {**call.get("function", call), **fields}
            calls.append({**call, "function": function} if "function" in call else function)
    return copy


def excerpt_of(message: Message) -> str:
    """Return the beginning of a message's text, quoted, for an error."""
    content = message.get("content")
    if not isinstance(content, str) or not content.strip():
        return "tool calls only" if message.get("tool_calls") else "no text"
    content = content.strip()
    return repr(content if len(content) <= 40 else f"{content[:40]}…")


Span: TypeAlias = tuple[int, int]
"""Characters ``[start, end)`` of a text."""


class TextSpans(NamedTuple):
    """Spans in several texts, in any order.

    Attributes:
        rows: index of the text of each span, ``int64[num_spans]``.
        starts: its first character.
        ends: the character after its last.

    >>> TextSpans.of_lists({2: [(0, 3), (5, 9)]}).rows.tolist()
    [2, 2]
    """

    rows: Int64Array
    starts: Int64Array
    ends: Int64Array

    @classmethod
    def of_lists(cls, spans: Mapping[int, Sequence[Span]]) -> TextSpans:
        """Return the spans of texts, each list under the index of its text."""
        num_spans = np.fromiter(map(len, spans.values()), dtype=np.int64)
        rows = np.repeat(np.fromiter(spans, dtype=np.int64), num_spans)
        edges = np.fromiter(chain.from_iterable(chain.from_iterable(spans.values())), dtype=np.int64)
        return cls(rows, edges[::2], edges[1::2])

    @classmethod
    def joined(cls, parts: Sequence[TextSpans]) -> TextSpans:
        """Return the spans of several parts of a batch together."""
        return cls(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

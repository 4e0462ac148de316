"""Spans of the assistant's turns in the text of a chat template, and parts of a conversation that
the template leaves out.

A label covers what the model has to produce: the answer and the token that ends its turn. Some
templates mark that themselves with ``{% generation %}``; most do not. For the others, the
conversation is rendered once more with a mark wherever the template takes up a message (``trace``).
An answer is the text from its mark to the next, without the header before it. This is exact for
templates that change contents, remove the reasoning from earlier answers, or write the results of
tools into the turn of their call. A conversation that this does not explain is an error that says
so, never a guess.

Templates write the roles they know and silently skip others: a turn of ``bot`` is lost, and so is
its target. Two questions detect that:

1.  *Does the template write messages of this shape at all?* The conversation is rendered once with
    a mark in place of each content; a missing mark means a missing message. The answer depends on
    roles alone and is kept.
2.  *Is the text of each message there?* Each content is searched for after the previous one. A
    template may change it on purpose (remove earlier reasoning, quote it), so a content that is not
    found is replaced by a mark and searched for again.
"""

import contextlib
import re
from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

from brimful.base.wording import setting
from brimful.encode.jinja_templates import Render, Traced, examined, excerpt_of, replace_texts
from brimful.encode.token_places import Span
from brimful.errors import AssistantTurnsError
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

    def first(
        self, shape: Hashable, messages: Sequence[Message], tools: Any, text: str
    ) -> str | None:
        """Describe the first part of a conversation that its rendering lacks; return None if it has
        all parts.

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
        """Return the index of the first message whose mark is not written when all contents are
        marks.

        None if all are written, or if the template refuses marks: then the second question is asked
        for every conversation.
        """
        pairs = [_with_marks(message, index) for index, message in enumerate(messages)]
        try:
            text = self._render([message for message, _ in pairs], tools, False)
        except Exception:
            return None
        return next(
            (
                index
                for index, (_, marks) in enumerate(pairs)
                if any(mark not in text for mark in marks)
            ),
            None,
        )

    def _missing_text(self, messages: Sequence[Message], tools: Any, text: str) -> int | None:
        """Return the index of the first message whose text is not in the rendering."""
        end = 0
        for index, message in enumerate(messages):
            content = _content(message)
            if not content:
                continue
            # Searched after the previous message: a short answer such as "yes" is found anywhere in
            # a long text.
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
    """Return the message with marks for its content and for the name of each call, and the
    marks.
    """
    content = _mark(index, 0) if _content(message) else None
    names = [_mark(index, slot) for slot, _ in enumerate(message.get("tool_calls") or (), 1)]
    marks = names if content is None else [content, *names]
    return replace_texts(message, content, [{"name": name} for name in names]), marks


def _refusal(index: int, message: Message) -> str:
    subject = f"its text ({excerpt_of(message)}) is" if _content(message) else "its tool calls are"
    return (
        f"the chat template leaves out messages[{index}] of role {message['role']!r}: {subject} "
        "missing from the text (rename the role, or use a template that knows it)"
    )


_MARK = "\ue010\ue011"  # private-use characters that no template looks for


class TurnFinder:
    """Search for the assistant's turns of one chat template.

    Args:
        render: renders messages with that template.
        trace: renders messages and tools with that template, and tells which text belongs to which
            message.
        special_texts: texts of the tokenizer's special tokens, one of which ends a turn.
    """

    def __init__(
        self,
        render: Render,
        trace: Callable[[Sequence[Message], Any], Traced],
        special_texts: Sequence[str],
    ) -> None:
        self._render, self._trace = render, trace
        self._special_texts = tuple(filter(None, special_texts))
        self._word_ends = re.compile("|".join([r"\s", *map(re.escape, self._special_texts)]))

    def spans(self, messages: Sequence[Message], tools: Any, text: str) -> list[list[Span]]:
        """Return the spans of each assistant turn, in order; none for an answer that the text
        leaves out.

        A turn has several spans if the results of its tools are written into it.

        Raises:
            AssistantTurnsError: the template does not show one of them.
        """
        try:
            traced = self._trace(messages, tools)
        except Exception:  # a template with other tags, which only Transformers compiles
            raise _not_shown(messages) from None
        if traced.text != text:
            raise _not_shown(messages)
        spans: list[list[Span]] = []
        for index, (message, runs) in enumerate(zip(messages, traced.runs, strict=True)):
            if message["role"] != "assistant":
                continue
            if runs:
                spans.append(self._without_edges(messages, index, tools, runs, text))
            # A template that builds new messages from the given ones writes none of these.
            elif message.get("content") or message.get("tool_calls"):
                raise _not_shown(messages)
            else:
                spans.append([])
        if _hold_others(spans, messages, text):
            raise _not_shown(messages)
        return spans

    def _without_edges(
        self, messages: Sequence[Message], index: int, tools: Any, runs: list[Span], text: str
    ) -> list[Span]:
        """Return the runs of a turn without its header and without the white space that separates
        the next turn.
        """
        head = self._head_of_run(messages, index, tools, text[slice(*runs[0])])
        start, end = runs[-1]
        turn = text[start:end].rstrip()
        # White space after a special token separates; after any other text it may be part of the
        # answer.
        if not self._special_texts or turn.endswith(self._special_texts):
            end = start + len(turn)
        runs = [*runs[:-1], (start, end)]
        start, end = runs[0]
        return [(start + head, max(start + head, end)), *runs[1:]]

    def _head_of_run(self, messages: Sequence[Message], index: int, tools: Any, run: str) -> int:
        """Return how many characters of the first run of a turn are its header."""
        num_header = self._num_header(run)
        if num_header:
            return num_header
        # Otherwise it is in the template's own text before the content.
        marked = replace_texts(messages[index], _MARK, None)
        with contextlib.suppress(Exception):
            traced = self._trace([*messages[:index], marked, *messages[index + 1 :]], tools)
            literal, mark, _ = traced.text[slice(*traced.runs[index][0])].partition(_MARK)
            if mark and run.startswith(literal):
                return self._header_end(literal) if self._headers[0] else len(literal.rstrip(" "))
        return 0

    def _header_end(self, text: str) -> int:
        """Return where the last header of an answer ends in a text; 0 without one."""
        _, common = self._headers
        start = text.rfind(common) if common else -1
        return 0 if start < 0 else start + self._num_header(text[start:])

    def _num_header(self, turn: str) -> int:
        """Return how many characters of a turn are its header."""
        return max(self._num_shared_words(turn, header) for header in self._headers)

    def _num_shared_words(self, turn: str, header: str) -> int:
        """Return how many characters of a header a turn begins with, up to white space or a special
        token.
        """
        if turn.startswith(header):
            return len(header)
        # Words are not split: ``<think>`` and ``<tool_call>`` share their beginning.
        pairs = enumerate(zip(turn, header, strict=False))
        num_shared = next((index for index, (ours, theirs) in pairs if ours != theirs), len(turn))
        return max(
            (edge.end() for edge in self._word_ends.finditer(header[:num_shared])), default=0
        )

    @cached_property
    def _headers(self) -> tuple[str, str]:
        """The text that the template writes before a new answer, and the part that every answer
        has.

        They differ if the template opens reasoning only for a new answer.
        """
        prompt = [{"role": "user", "content": "x"}]
        header = common = ""
        with contextlib.suppress(Exception):
            text, prompt_text = self._render(prompt, None, False), self._render(prompt, None, True)
            header = common = prompt_text[len(text) :] if prompt_text.startswith(text) else ""
            answer_text = self._render(
                [*prompt, {"role": "assistant", "content": _MARK}, *prompt], None, False
            )
            if answer_text.startswith(text) and not answer_text.startswith(prompt_text):
                common = (
                    header[: self._num_shared_words(answer_text[len(text) :], header)] or header
                )
        return header, common


def _not_shown(messages: Sequence[Message]) -> AssistantTurnsError:
    index, message = next(
        (index, message) for index, message in enumerate(messages) if message["role"] == "assistant"
    )
    return AssistantTurnsError(
        f"the chat template does not show where messages[{index}] of role 'assistant' "
        f"({excerpt_of(message)}) begins and ends; put {{% generation %}} … {{% endgeneration %}} "
        f"around the assistant's turns in the template ({setting('chat_template')}), or train on "
        f"all tokens ({setting('train_on', 'all')})"
    )


def _hold_others(spans: Sequence[Sequence[Span]], messages: Sequence[Message], text: str) -> bool:
    """Return true if the text of a message from another role is in a turn of the assistant, and
    nowhere else.
    """
    edges = [
        0,
        *(edge for span in sorted(span for turn in spans for span in turn) for edge in span),
        len(text),
    ]
    pieces = [text[start:end] for start, end in pairwise(edges)]
    outside, inside = "\0".join(pieces[::2]), "\0".join(pieces[1::2])
    contents = [message.get("content") for message in messages if message["role"] != "assistant"]
    texts = [content.strip() for content in contents if isinstance(content, str)]
    return any(content in inside and content not in outside for content in texts if content)

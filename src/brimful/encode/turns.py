"""Spans of the assistant's turns in the text that a chat template renders.

A label covers what the model has to produce: the answer and the token that ends its turn. Some templates mark that
themselves with ``{% generation %}``; most do not. For the others, the turns are found without touching the text that is
tokenized:

1.  *Skeleton.* The conversation is rendered once more with short placeholders for its contents. The text between the
    placeholders is the template's own: headers, ends of turns. The skeleton mostly depends on the roles alone, so it
    is kept, and one rendering serves all conversations of that shape. Filled with the real contents it must give the
    real text, character for character; otherwise it is not used.
2.  *Trace.* The conversation is rendered once more with a mark wherever the template takes up a message (``traced``).
    An answer is the text from its mark to the next: exact for templates that change contents, remove the reasoning
    from earlier answers, or write the results of tools into the turn of their call.
3.  *Prefixes.* The turns before an answer are rendered without it and with it. This shows its beginning and end, if
    the whole text begins with both renderings. Slower, for templates that build new messages from the given ones.

A conversation that none of them explains is an error that says so, never a guess.
"""

import contextlib
import re
from collections.abc import Callable, Hashable, Sequence
from itertools import pairwise
from typing import Any

from brimful.encode.fast.skeleton import FilledText, Skeleton, Turn, message_texts, verbatim_texts
from brimful.encode.placeholders import Render, examined, excerpt_of, replace_texts
from brimful.encode.text_spans import Span
from brimful.encode.traced import Traced
from brimful.errors import AssistantTurnsError
from brimful.messages import setting
from brimful.sources.sample import Message

_OPEN, _TEXT, _OBJECT = "\ue010", "\ue011", "\ue012"  # private-use characters that no template looks for


class TurnFinder:
    """Search for the assistant's turns of one chat template.

    Args:
        render: renders messages with that template.
        trace: renders messages and tools with that template, and tells which text belongs to which message.
        special_texts: texts of the tokenizer's special tokens, one of which ends a turn.
    """

    def __init__(
        self, render: Render, trace: Callable[[Sequence[Message], Any], Traced], special_texts: Sequence[str]
    ) -> None:
        self._render, self._trace = render, trace
        texts = sorted({text for text in special_texts if text}, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, texts))) if texts else None
        self._skeletons: dict[Any, Skeleton | None] = {}
        self._shares: dict[tuple[str, str], tuple[int, int]] = {}
        self._headers: tuple[str, str] | None = None

    def fill(self, shape: Hashable, messages: Sequence[Message], tools: Any) -> FilledText | None:
        """Return the template's own text around the texts of the messages and the JSON of the tools.

        None if one of them has no text to fill in. ``proved_text`` must have shown for the shape (``open_shape_of``)
        that the template writes exactly this text.
        """
        skeleton = self._skeletons.get(shape)  # the closure is made only for a shape that is new, or has none
        if skeleton is None:
            skeleton = examined(self._skeletons, shape, lambda: self._open_skeleton(messages, tools))
        return None if skeleton is None else _fill(skeleton, verbatim_texts(messages, tools))

    def skeleton_of(self, shape: Hashable) -> Skeleton | None:
        """Return the template's own text around conversations of a shape that ``fill`` has met."""
        return self._skeletons.get(shape)

    def fill_exactly(self, shape: Hashable, messages: Sequence[Message], tools: Any, text: str) -> FilledText | None:
        """Return the template's own text, tools included, around the messages' texts, if the result equals ``text``.

        Then every text of the conversation is in it, unchanged. ``shape`` comes from ``shape_of``.
        """
        values = verbatim_texts(messages)
        if values is None:
            return None
        skeleton = examined(self._skeletons, shape, lambda: self._make_skeleton(messages, tools, num_open_tools=0))
        filled = None if skeleton is None else _fill(skeleton, values)
        return filled if filled is not None and filled.text == text else None

    def spans(self, shape: Hashable, messages: Sequence[Message], tools: Any, text: str) -> list[list[Span]]:
        """Return the spans of each assistant turn, in order; none for an answer that the text leaves out.

        A turn has several spans if the results of its tools are written into it.

        Raises:
            AssistantTurnsError: the template does not show one of them.
        """
        # From the fastest way to the most tolerant; each verifies its result, and none guesses.
        filled = self.fill_exactly(shape, messages, tools, text)
        if filled is not None:
            return [[span] for span in filled.spans]
        spans = self._by_trace(messages, tools, text)
        return self._by_prefixes(messages, tools, text) if spans is None else spans

    def _by_trace(self, messages: Sequence[Message], tools: Any, text: str) -> list[list[Span]] | None:
        try:
            traced = self._trace(messages, tools)
        except Exception:  # a template with other tags, which only Transformers compiles
            return None
        if traced.text != text:
            return None
        spans: list[list[Span]] = []
        for index, (message, runs) in enumerate(zip(messages, traced.runs, strict=True)):
            if message["role"] != "assistant":
                continue
            # A template that builds new messages from the given ones writes none of these.
            if not runs and (message.get("content") or message.get("tool_calls")):
                return None
            head = self._head_of_run(messages, index, tools, text[slice(*runs[0])]) if runs else 0
            spans.append(self._without_edges(runs, head, text))
        return None if _hold_others(spans, messages, text) else spans

    def _without_edges(self, runs: list[Span], head: int, text: str) -> list[Span]:
        """Return the runs of a turn without its header and without the white space that separates the next turn."""
        if not runs:
            return []
        start, _ = runs[-1]
        runs = [*runs[:-1], (start, start + self._trimmed_length(text[slice(*runs[-1])]))]
        start, end = runs[0]
        return [(start + head, max(start + head, end)), *runs[1:]]

    def _head_of_run(self, messages: Sequence[Message], index: int, tools: Any, run: str) -> int:
        """Return how many characters of the first run of a turn are its header."""
        num_header = self._num_header(run)
        if num_header:
            return num_header
        # Otherwise it is in the template's own text before the content.
        marked = replace_texts(messages[index], f"{_OPEN}{_TEXT}", None)
        with contextlib.suppress(Exception):
            traced = self._trace([*messages[:index], marked, *messages[index + 1 :]], tools)
            literal, mark, _ = traced.text[slice(*traced.runs[index][0])].partition(f"{_OPEN}{_TEXT}")
            if mark and run.startswith(literal):
                header_end = self._header_end(literal, 0, len(literal))
                return (header_end or 0) if self._generation_headers()[0] else len(literal.rstrip(" "))
        return 0

    def _open_skeleton(self, messages: Sequence[Message], tools: Any) -> Skeleton | None:
        """Return the skeleton in which each tool has a slot as well."""
        if verbatim_texts(messages, tools) is None:
            return None
        tool_marks = [f"{_OPEN}t{index}{_OBJECT}" for index in range(len(tools or ()))]
        return self._make_skeleton(messages, tool_marks, num_open_tools=len(tool_marks))

    def _make_skeleton(self, messages: Sequence[Message], tools: Any, *, num_open_tools: int) -> Skeleton | None:
        """Return the skeleton of messages; None if the template does not write each of their texts once and in order.

        Args:
            messages: of a conversation.
            tools: its tools, or marks in their place.
            num_open_tools: number of marks in place of tools.
        """
        marks: list[str] = []
        marked_messages = [_with_marks(message, marks) for message in messages]
        try:
            text = self._render(marked_messages, tools, False)
        except Exception:  # the template refuses placeholders: rendering prefixes says why, if that fails too
            return None
        spans = _spans_of_marks(marks, text)
        tool_spans = _spans_of_marks(tools[:num_open_tools], text) if num_open_tools else []
        if spans is None or tool_spans is None:
            return None
        # Templates write tools into the first turn or before it: their slots are among the messages' slots.
        given = [*spans, *tool_spans]
        order = sorted(range(len(given)), key=given.__getitem__)
        slots = [given[index] for index in order]
        # The text between two slots is a literal.
        edges = [0, *(edge for slot in slots for edge in slot), len(text)]
        literals = [text[start:end] for start, end in zip(edges[::2], edges[1::2], strict=True)]
        places = {index: place for place, index in enumerate(order)}
        # Each turn is stored by its distances from its outer slots, which stay the same for values of other lengths.
        turns: list[Turn] = []
        traced_turns: list[list[Span]] | None = None
        num_texts = 0
        for index, message in enumerate(messages):
            begin_text, num_texts = num_texts, num_texts + len(message_texts(message))
            if message["role"] == "assistant":
                first, last = places[begin_text], places[num_texts - 1]
                begin, end = slots[first][0], slots[last][1]
                # The template's own text around a turn decides how much of it belongs to the turn: equal texts, equal
                # shares. Tools between two messages are part of that text.
                text_start = spans[begin_text - 1][1] if begin_text else 0
                text_end = spans[num_texts][0] if num_texts < len(spans) else len(text)
                around = text[text_start:begin], text[end:text_end]
                if around not in self._shares:
                    traced_turns = traced_turns or self._by_trace(marked_messages, tools, text)
                    if traced_turns is None:
                        span = self._prefix_span(marked_messages, index, tools, text)
                    elif len(traced_turns[len(turns)]) == 1:
                        [span] = traced_turns[len(turns)]
                    else:  # texts of other messages are written into the turn
                        return None
                    if span is None or not span[0] <= begin <= end <= span[1]:
                        span = self._literal_span(begin, end, *around)
                    self._shares[around] = begin - span[0], span[1] - end
                head, tail = self._shares[around]
                # A turn that contains a tool has no fixed distance from its outer slots.
                if tool_spans and (head > len(literals[first]) or tail > len(literals[last + 1])):
                    return None
                turns.append(Turn(first, last, head, tail))
        return Skeleton(tuple(literals), tuple(turns), None if order == sorted(order) else tuple(order))

    def _literal_span(self, begin: int, end: int, prefix: str, suffix: str) -> Span:
        """Return the turn around a content: from the end of the header through the next special token.

        Args:
            begin: first character of the content.
            end: character after the content.
            prefix: literal before the content.
            suffix: literal after the content.
        """
        header_end = self._header_end(prefix, 0, len(prefix))
        head = 0 if header_end is None else len(prefix) - header_end
        match = self._special.search(suffix) if self._special else None
        return begin - head, end + (match.end() if match else 0)

    def _header_end(self, text: str, low: int, high: int) -> int | None:
        """Return where the last header of an answer ends in ``text[low:high]``; None without one."""
        _, common = self._generation_headers()
        start = text.rfind(common, low, high) if common else -1
        return None if start < 0 else start + self._num_header(text[start:high])

    def _num_header(self, turn: str) -> int:
        """Return how many characters of a turn are its header."""
        return max(self._num_shared_words(turn, header) for header in self._generation_headers())

    def _num_shared_words(self, turn: str, header: str) -> int:
        """Return how many characters of a header a turn begins with, up to white space or a special token."""
        if turn.startswith(header):
            return len(header)
        # Words are not split: ``<think>`` and ``<tool_call>`` share their beginning.
        shared = header[: _num_shared(turn, header)]
        edges = [*re.finditer(r"\s", shared), *(self._special.finditer(shared) if self._special else ())]
        return max((edge.end() for edge in edges), default=0)

    def _generation_headers(self) -> tuple[str, str]:
        """Return the text that the template writes before a new answer, and the part that every answer has.

        They differ if the template opens reasoning only for a new answer.
        """
        if self._headers is None:
            prompt = [{"role": "user", "content": "x"}]
            header = common = ""
            with contextlib.suppress(Exception):
                text, prompt_text = self._render(prompt, None, False), self._render(prompt, None, True)
                header = common = prompt_text[len(text) :] if prompt_text.startswith(text) else ""
                answer_text = self._render([*prompt, {"role": "assistant", "content": _OPEN}, *prompt], None, False)
                if answer_text.startswith(text) and not answer_text.startswith(prompt_text):
                    common = header[: self._num_shared_words(answer_text[len(text) :], header)] or header
            self._headers = header, common
        return self._headers

    def _by_prefixes(self, messages: Sequence[Message], tools: Any, text: str) -> list[list[Span]]:
        spans: list[list[Span]] = []
        for index, message in enumerate(messages):
            if message["role"] == "assistant":
                span = self._prefix_span(messages, index, tools, text)
                if span is None:
                    raise AssistantTurnsError(
                        f"the chat template does not show where messages[{index}] of role 'assistant' ({excerpt_of(message)}) "
                        "begins and ends; put {% generation %} … {% endgeneration %} around the assistant's turns in the "
                        f"template ({setting('chat_template')}), or train on all tokens ({setting('train_on', 'all')})"
                    )
                spans.append([span])
        return spans

    def _prefix_span(self, messages: Sequence[Message], index: int, tools: Any, text: str) -> Span | None:
        """Return one turn, if the text begins with the rendering of the turns before it, without it and with it."""
        try:
            context = self._render(messages[:index], tools, False)
            prefix = self._render(messages[: index + 1], tools, False)
        except Exception:  # a template may refuse to render a beginning
            return None
        if not (text.startswith(context) and text.startswith(prefix) and len(context) <= len(prefix)):
            return None
        turn = text[len(context) : len(prefix)]
        head = self._num_header(turn) if self._generation_headers()[0] else _answer_start(turn, messages[index])
        return len(context) + head, len(context) + max(head, self._trimmed_length(turn))

    def _trimmed_length(self, turn: str) -> int:
        """Return the length of a turn without the white space that separates it from the next.

        White space after a special token separates; after any other text it may be part of the answer.
        """
        text = turn.rstrip()
        if self._special is None:
            return len(text)
        ends = [match.end() for match in self._special.finditer(text)]
        return len(text) if ends[-1:] == [len(text)] else len(turn)


def _fill(skeleton: Skeleton, values: list[str] | None) -> FilledText | None:
    if values is None or len(skeleton.literals) != len(values) + 1:
        return None
    return skeleton.filled(values)


def _spans_of_marks(marks: Sequence[str], text: str) -> list[Span] | None:
    """Return where marks are in a text, in order; None if one is missing."""
    spans: list[Span] = []
    position = 0
    for mark in marks:
        start = text.find(mark, position)
        if start < 0:
            return None
        end = start + len(mark)
        # A mark is a text and quoted in JSON; the object that takes its slot is not.
        if mark.endswith(_OBJECT) and text[start - 1 : start] == text[end : end + 1] == '"':
            start, end = start - 1, end + 1
        spans.append((start, end))
        position = end
    return spans


def _with_marks(message: Message, marks: list[str]) -> Message:
    """Return the message with a mark in place of each verbatim text; the marks are appended to ``marks``."""

    def new_mark(end: str) -> str:
        marks.append(f"{_OPEN}{len(marks)}{end}")
        return marks[-1]

    content = new_mark(_TEXT) if message.get("content") else None
    calls = message.get("tool_calls") or ()
    ends = [_TEXT if isinstance(call.get("function", call).get("arguments"), str) else _OBJECT for call in calls]
    return replace_texts(message, content, [{"name": new_mark(_TEXT), "arguments": new_mark(end)} for end in ends])


def _num_shared(first: str, second: str) -> int:
    """Return the number of characters with which both texts begin."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((index for index, (one, other) in pairs if one != other), min(len(first), len(second)))


def _hold_others(spans: Sequence[Sequence[Span]], messages: Sequence[Message], text: str) -> bool:
    """Return true if the text of a message from another role is in a turn of the assistant, and nowhere else."""
    edges = [0, *(edge for span in sorted(span for turn in spans for span in turn) for edge in span), len(text)]
    pieces = [text[start:end] for start, end in pairwise(edges)]
    outside, inside = "\0".join(pieces[::2]), "\0".join(pieces[1::2])
    contents = [message.get("content") for message in messages if message["role"] != "assistant"]
    texts = [content.strip() for content in contents if isinstance(content, str)]
    return any(content in inside and content not in outside for content in texts if content)


def _answer_start(turn: str, message: Message) -> int:
    """Return the start of an answer in a turn, for templates whose generation prompt does not give it.

    It is the start of its text, or of the spaces before it on the same line: ``[/INST] answer`` is continued with a
    space.
    """
    start = max(0, turn.find((message.get("content") or "").strip()))
    return len(turn[:start].rstrip(" "))

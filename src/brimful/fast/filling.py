"""Conversations filled into their template's own text, if this is proved to be their whole text."""

from collections.abc import Mapping, Sequence
from typing import Any

from brimful.encode.chat import TextFiller
from brimful.encode.chat_template import EXAMPLES, HARD_CONTENT, REASONING, ChatTemplate
from brimful.encode.jinja_templates import examined, replace_texts
from brimful.encode.token_places import Span
from brimful.encode.turns import TurnFinder
from brimful.errors import AssistantTurnsError
from brimful.fast.opaque import proved_text
from brimful.fast.skeleton import (
    FilledSkeleton,
    Shape,
    Skeleton,
    Turn,
    message_texts,
    open_shape_of,
    shape_of,
    spans_of_turns,
    verbatim_texts,
)
from brimful.sources.sample import Message, PartlyPlainMessages, PlainMessages, Sample

_READ_MESSAGES = (PlainMessages, PartlyPlainMessages)
"""Types of messages that were checked when they were read."""

_HARD_SHAPES = 32
"""Number of shapes that are also filled with hard texts: enough to show a fault in the proof."""

_HARD_CALL = {"name": HARD_CONTENT, "arguments": {HARD_CONTENT: HARD_CONTENT, "": [1, None, {}]}}
_HARD_TOOL = {HARD_CONTENT: [HARD_CONTENT, 1.5, None, {"": {}}]}

_OPEN, _TEXT, _OBJECT = (
    "\ue010",
    "\ue011",
    "\ue012",
)  # private-use characters that no template looks for


class Filling(TextFiller):
    """Text of conversations, filled in shape by shape if possible.

    The conversation is rendered once with short marks for its texts. The text between the marks is
    the template's own: headers, ends of turns. This skeleton depends on the shape alone, so it is
    kept.

    A shape is filled in without rendering if ``proved_text`` proves that the template examines none
    of its texts, and if the filled text equals the one that Jinja gives for the first conversation
    of the shape. The first shapes are also tested with a text of hard characters, which would show
    a fault in the proof itself. Other conversations are rendered; if the filled skeleton equals the
    result, it shows where the turns are.

    Args:
        template: chat template.
        finder: finds the turns in a skeleton.
        trusted: fill in the shapes that are proved; if false, every conversation is rendered.
    """

    def __init__(self, template: ChatTemplate, finder: TurnFinder, trusted: bool) -> None:
        self._template, self._finder, self._trusted = template, finder, trusted
        self._proved: dict[Shape, Skeleton | None] = {}
        self._matched: dict[Shape, Skeleton | None] = {}
        self._edges: dict[tuple[str, str], tuple[int, int]] = {}

    @property
    def fills_plain_chats(self) -> bool:
        return self.proved_text(*EXAMPLES[1]) is not None

    def render(
        self, messages: Sequence[Message], tools: Any
    ) -> tuple[Shape, str, FilledSkeleton | None]:
        shape = open_shape_of(messages, tools)
        filled_text = self.fill(shape, messages, tools)
        if filled_text is not None:
            return shape, filled_text.text, filled_text
        text = self._template.render(messages, tools)
        if tools:
            shape = shape_of(messages, tools)
        if verbatim_texts(messages) is not None:
            skeleton = examined(self._matched, shape, lambda: self._make_skeleton(messages, tools))
            filled_text = _filled(skeleton, messages)
            if filled_text is not None and filled_text.text == text:
                return shape, text, filled_text
        return shape, text, None

    def fill(self, shape: Shape, messages: Sequence[Message], tools: Any) -> FilledSkeleton | None:
        """Return the text of a conversation without rendering it; None if it has to be rendered.

        Args:
            shape: from ``open_shape_of``.
            messages, tools: of the conversation, as they are given to the template.
        """
        return _filled(
            examined(self._proved, shape, lambda: self._prove(messages, tools)), messages, tools
        )

    def fill_together(self, samples: Sequence[Sample]) -> Mapping[int, FilledSkeleton]:
        texts = {}
        for index, sample in enumerate(samples):
            messages, tools = sample.messages or (), sample.tools
            if (
                type(messages) not in _READ_MESSAGES
                or sample.attachments
                or sample.completion is not None
            ):
                continue
            text = _filled(self._proved.get(open_shape_of(messages, tools)), messages, tools)
            if text is not None:
                texts[index] = text
        return texts

    spans_of_turns = staticmethod(spans_of_turns)

    def proved_text(self, messages: Sequence[Message], tools: Any) -> str | None:
        """Return the text from Jinja if the template is proved not to examine the conversation's
        texts; else None.
        """
        template = self._template
        if not self._trusted or template.needs_transformers:
            return None
        # Reasoning has several names, and whether the template writes it is checked elsewhere.
        if any(not REASONING.isdisjoint(message) for message in messages):
            return None
        return proved_text(template.source, template.variables, template.prepared(messages), tools)

    def _prove(self, messages: Sequence[Message], tools: Any) -> Skeleton | None:
        """Return the skeleton of a shape that can be filled in: proved, and confirmed on this
        conversation.
        """
        text = self.proved_text(messages, tools)
        if text is None or verbatim_texts(messages, tools) is None:
            return None
        tool_marks = [f"{_OPEN}t{index}{_OBJECT}" for index in range(len(tools or ()))]
        skeleton = self._make_skeleton(messages, tool_marks, tool_marks)
        filled_text = _filled(skeleton, messages, tools)
        if filled_text is None or filled_text.text != text:
            return None
        if len(self._proved) >= _HARD_SHAPES:
            return skeleton
        hard_messages = [
            replace_texts(
                message,
                message.get("content") and HARD_CONTENT,
                [_HARD_CALL] * len(message.get("tool_calls") or ()),
            )
            for message in messages
        ]
        for conversation in ((messages, tools), (hard_messages, [_HARD_TOOL] * len(tools or ()))):
            filled_text = _filled(skeleton, *conversation)
            if filled_text is None or filled_text.text != self._template.render(*conversation):
                return None
        return skeleton

    def _make_skeleton(
        self, messages: Sequence[Message], tools: Any, tool_marks: Sequence[str] = ()
    ) -> Skeleton | None:
        """Return the skeleton of messages; None if the template does not write each of their texts
        once and in order.

        Args:
            messages: of a conversation.
            tools: its tools, or marks in their place.
            tool_marks: marks of the tools that have slots.
        """
        marks: list[str] = []
        marked_messages = [_with_marks(message, marks) for message in messages]
        try:
            text = self._template.render(marked_messages, tools)
        except Exception:  # the template refuses marks
            return None
        spans, tool_spans = _spans_of_marks(marks, text), _spans_of_marks(tool_marks, text)
        if spans is None or tool_spans is None:
            return None
        # Templates write tools into the first turn or before it: their slots are among the
        # messages' slots.
        value_spans = [*spans, *tool_spans]
        order = sorted(range(len(value_spans)), key=value_spans.__getitem__)
        slots = [value_spans[index] for index in order]
        # The text between two slots is a literal.
        edges = [0, *(edge for slot in slots for edge in slot), len(text)]
        literals = [text[start:end] for start, end in zip(edges[::2], edges[1::2], strict=True)]
        slot_of = {index: slot for slot, index in enumerate(order)}
        # Each turn is stored by its distances from its outer slots, which stay the same for values
        # of other lengths.
        turns: list[Turn] = []
        turn_spans: list[list[Span]] = []
        num_texts = 0
        for message in messages:
            first_text, num_texts = num_texts, num_texts + len(message_texts(message))
            if message["role"] != "assistant":
                continue
            first, last = slot_of[first_text], slot_of[num_texts - 1]
            slot_start, end = slots[first][0], slots[last][1]
            # The template's own text around a turn decides how much of it belongs to the turn:
            # equal texts, equal edges. Tools between two messages are part of that text.
            text_start = spans[first_text - 1][1] if first_text else 0
            text_end = spans[num_texts][0] if num_texts < len(spans) else len(text)
            around = text[text_start:slot_start], text[end:text_end]
            if around not in self._edges:
                try:
                    turn_spans = turn_spans or self._finder.spans(marked_messages, tools, text)
                except AssistantTurnsError:
                    return None
                (start, stop), *other_spans = turn_spans[len(turns)]
                # With several spans, texts of other messages are written into the turn.
                if other_spans or not start <= slot_start <= end <= stop:
                    return None
                self._edges[around] = slot_start - start, stop - end
            head, tail = self._edges[around]
            # A turn that contains a tool has no fixed distance from its outer slots.
            if tool_spans and (head > len(literals[first]) or tail > len(literals[last + 1])):
                return None
            turns.append(Turn(2 * first, 2 * last + 1, head, tail))
        return Skeleton(
            tuple(literals), tuple(turns), None if order == sorted(order) else tuple(order)
        )


def _filled(
    skeleton: Skeleton | None, messages: Sequence[Message], tools: Any = None
) -> FilledSkeleton | None:
    """Return a skeleton with the texts of a conversation; None if they have no slots."""
    values = None if skeleton is None else verbatim_texts(messages, tools)
    if skeleton is None or values is None or len(skeleton.literals) != len(values) + 1:
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
        if mark.endswith(_OBJECT) and text[start - 1 : start] == '"':
            start, end = start - 1, end + 1
        spans.append((start, end))
        position = end
    return spans


def _with_marks(message: Message, marks: list[str]) -> Message:
    """Return the message with a mark in place of each verbatim text; the marks are appended to
    ``marks``.
    """

    def new_mark(end: str) -> str:
        marks.append(f"{_OPEN}{len(marks)}{end}")
        return marks[-1]

    content = new_mark(_TEXT) if message.get("content") else None
    calls = message.get("tool_calls") or ()
    ends = [
        _TEXT if isinstance(call.get("function", call).get("arguments"), str) else _OBJECT
        for call in calls
    ]
    return replace_texts(
        message, content, [{"name": new_mark(_TEXT), "arguments": new_mark(end)} for end in ends]
    )

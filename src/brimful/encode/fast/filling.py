"""Conversations filled into their template's own text, if this is proved to be their whole text."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from brimful.encode.chat_template import HARD_CONTENT, ChatTemplate
from brimful.encode.fast.shapes import Shape, open_shape_of
from brimful.encode.fast.skeleton import FilledText, Skeleton, verbatim_texts
from brimful.encode.placeholders import examined, replace_texts
from brimful.encode.turns import TurnFinder
from brimful.sources.sample import Message, MixedMessages, PlainMessages, Sample

_READ_MESSAGES = (PlainMessages, MixedMessages)
"""Types of messages that were checked when they were read."""

_HARD_SHAPES = 32
"""Number of shapes that are also filled with hard texts: enough to show a fault in the proof."""

_HARD_CALL = {"name": HARD_CONTENT, "arguments": {HARD_CONTENT: HARD_CONTENT, "": [1, None, {}]}}
_HARD_TOOL = {HARD_CONTENT: [HARD_CONTENT, 1.5, None, {"": {}}]}


class Filling:
    """Text of conversations by filling in, shape by shape.

    A shape is filled in if ``proved_text`` proves that the template examines none of its texts, and if the filled text
    equals the one that Jinja gives for the first conversation of the shape. The first shapes are also tested with a
    text of hard characters, which would show a fault in the proof itself.

    Args:
        template: chat template.
        finder: gives the template's own text around a conversation.
    """

    def __init__(self, template: ChatTemplate, finder: TurnFinder) -> None:
        self._template, self._finder = template, finder
        self._is_filled: dict[Hashable, bool] = {}

    def fill(self, shape: Shape, messages: Sequence[Message], tools: Any) -> FilledText | None:
        """Return the text of a conversation; None if it has to be rendered.

        Args:
            shape: from ``open_shape_of``.
            messages, tools: of the conversation, as they are given to the template.
        """
        is_filled = self._is_filled.get(shape)  # the closure is made only for a new shape
        if is_filled is None:
            is_filled = examined(self._is_filled, shape, lambda: self._may_fill(shape, messages, tools))
        return self._finder.fill(shape, messages, tools) if is_filled else None

    def fill_together(self, samples: Sequence[Sample]) -> Mapping[int, tuple[Shape, FilledText]]:
        """Return shape and text of the conversations whose shape is already known, by their index in a batch."""
        skeletons: dict[Shape, Skeleton | None] = {}
        texts = {}
        for index, sample in enumerate(samples):
            messages, tools = sample.messages or (), sample.tools
            if type(messages) not in _READ_MESSAGES or sample.media or sample.completion is not None:
                continue
            shape = open_shape_of(messages, tools)
            try:
                skeleton = skeletons[shape]
            except KeyError:
                skeleton = self._finder.skeleton_of(shape) if self._is_filled.get(shape) else None
                skeletons[shape] = skeleton
            values = None if skeleton is None else verbatim_texts(messages, tools)
            if skeleton is not None and values is not None:
                texts[index] = shape, skeleton.filled(values)
        return texts

    def _may_fill(self, shape: Shape, messages: Sequence[Message], tools: Any) -> bool:
        """Return true if conversations of a shape can be filled in: proved, and confirmed on this one."""
        text = self._template.proved_text(messages, tools)
        filled = None if text is None else self._finder.fill(shape, messages, tools)
        if filled is None or filled.text != text:
            return False
        if len(self._is_filled) >= _HARD_SHAPES:
            return True
        hard_messages = [
            replace_texts(
                message, message.get("content") and HARD_CONTENT, [_HARD_CALL] * len(message.get("tool_calls") or ())
            )
            for message in messages
        ]
        for conversation in ((messages, tools), (hard_messages, [_HARD_TOOL] * len(tools or ()))):
            filled = self._finder.fill(shape, *conversation)
            if filled is None or filled.text != self._template.render(*conversation):
                return False
        return True

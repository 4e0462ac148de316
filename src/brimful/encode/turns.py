"""Where the assistant's turns lie in the text that a chat template renders.

A label covers what the model has to produce: the answer and the token that ends its turn. Some templates
mark that themselves with ``{% generation %}``; most do not. For those the turns are found without touching
the text that is tokenised:

1.  *Skeleton.* The conversation is rendered once more with short placeholders for its contents. What stands
    between the placeholders is the template's own text: headers, ends of turns. The skeleton mostly depends on
    the roles alone, so it is kept, and one rendering serves all conversations of that shape. Filled with the
    real contents it must give the real text, character for character; else it is not used.
2.  *Prefixes.* Rendering the first ``i`` turns with the generation prompt, and the first ``i + 1`` without,
    shows where turn ``i`` begins and ends, if the whole text begins with both. Slower, for tool calls and
    templates that change contents.

A conversation that neither explains is an error that says so, never a guess.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from brimful.sources.sample import Message

__all__ = ["Span", "TurnFinder"]

Span: TypeAlias = tuple[int, int]
"""Characters ``[start, end)`` of the rendered text that one assistant turn produced."""

Render: TypeAlias = Callable[[Sequence[Message], Any, bool], str]
"""(messages, tools, add_generation_prompt) -> text."""

_OPEN, _TEXT, _OBJECT = "\ue010", "\ue011", "\ue012"  # private-use characters that no template looks for
_KEPT_SKELETONS = 4096


@dataclass(frozen=True)
class _Skeleton:
    """The template's own text around the filled places: ``literals[0] p0 literals[1] p1 … literals[n]``.

    ``turns`` lists, for each assistant turn, its first and last place, how many characters before the first the
    turn begins, and how many behind the last it ends.
    """

    literals: tuple[str, ...]
    turns: tuple[tuple[int, int, int, int], ...]


class TurnFinder:
    """Finds the assistant's turns of one chat template.

    Args:
        render: renders messages with that template.
        special_texts: texts of the tokenizer's special tokens, one of which ends a turn.
    """

    def __init__(self, render: Render, special_texts: Sequence[str]) -> None:
        self._render = render
        texts = sorted({text for text in special_texts if text}, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, texts))) if texts else None
        self._skeletons: dict[Any, _Skeleton | None] = {}
        self._header: str | None = None

    def spans(self, messages: Sequence[Message], tools: Any, text: str) -> list[Span] | None:
        """The span of each assistant turn, in order; None if the template does not show them."""
        found = self._by_skeleton(messages, tools, text)
        return found if found is not None else self._by_prefixes(messages, tools, text)

    def _by_skeleton(self, messages: Sequence[Message], tools: Any, text: str) -> list[Span] | None:
        places = [_places(message) for message in messages]
        if not all(places):
            return None
        if tools is not None:  # their text is part of the literals: a skeleton of its own
            skeleton = self._make_skeleton(messages, tools, places)
        else:
            shape = tuple((message["role"], len(there)) for message, there in zip(messages, places, strict=True))
            if shape not in self._skeletons:
                if len(self._skeletons) >= _KEPT_SKELETONS:
                    self._skeletons.clear()
                self._skeletons[shape] = self._make_skeleton(messages, None, places)
            skeleton = self._skeletons[shape]
        if skeleton is None:
            return None
        values = [value for there in places for value in there]
        pieces = [piece for pair in zip(skeleton.literals, values, strict=False) for piece in pair]
        pieces.append(skeleton.literals[-1])
        if "".join(pieces) != text:
            return None
        edges = [0]
        for piece in pieces:
            edges.append(edges[-1] + len(piece))
        return [(edges[2 * first + 1] - head, edges[2 * last + 2] + tail) for first, last, head, tail in skeleton.turns]

    def _make_skeleton(self, messages: Sequence[Message], tools: Any, places: list[list[str]]) -> _Skeleton | None:
        marks: list[str] = []
        hollow = [_hollow(message, marks) for message in messages]
        try:
            text = self._render(hollow, tools, False)
        except Exception:  # the template refuses placeholders: the slower way tells why, if it fails too
            return None
        literals: list[str] = []
        position = 0
        for mark in marks:
            at = text.find(mark, position)
            if at < 0:
                return None
            end = at + len(mark)
            if mark.endswith(_OBJECT) and text[at - 1 : at] == text[end : end + 1] == '"':
                at, end = at - 1, end + 1  # a text is quoted in JSON, the object that stands here is not
            literals.append(text[position:at])
            position = end
        literals.append(text[position:])
        header = self._generation_header(hollow)
        turns: list[tuple[int, int, int, int]] = []
        first = 0
        for message, there in zip(messages, places, strict=True):
            last = first + len(there) - 1
            if message["role"] == "assistant":
                before = literals[first]
                at = before.rfind(header) if header else -1
                head = len(before) - at - len(header) if at >= 0 else 0
                turns.append((first, last, head, self._turn_end(literals[last + 1])))
            first = last + 1
        return _Skeleton(tuple(literals), tuple(turns))

    def _generation_header(self, messages: Sequence[Message]) -> str:
        """What the template writes before an answer: the generation prompt, without what some put behind it."""
        if self._header is None:
            upto = next((i for i, message in enumerate(messages) if message["role"] == "assistant"), len(messages))
            prompt = list(messages[:upto]) or [{"role": "user", "content": "x"}]
            try:
                bare, asked = self._render(prompt, None, False), self._render(prompt, None, True)
            except Exception:
                return ""
            self._header = asked[len(bare) :] if asked.startswith(bare) else ""
        return self._header

    def _turn_end(self, after: str) -> int:
        """How far behind the content its turn goes on: through the first special token, if one follows."""
        match = self._special.search(after) if self._special else None
        return match.end() if match else 0

    def _by_prefixes(self, messages: Sequence[Message], tools: Any, text: str) -> list[Span] | None:
        spans: list[Span] = []
        for number, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            if number == 0:
                return None
            try:
                begin = self._render(messages[:number], tools, True)
                whole = self._render(messages[: number + 1], tools, False)
            except Exception:
                return None
            if not text.startswith(begin):
                bare = self._render(messages[:number], tools, False)
                begin = begin if text.startswith(begin) else bare
            if not (text.startswith(whole) and text.startswith(begin)):
                return None
            spans.append((len(begin), len(begin) + self._trimmed(text[len(begin) : len(whole)])))
        return spans

    def _trimmed(self, turn: str) -> int:
        """Length of a turn without the white space that separates it from the next."""
        bare = turn.rstrip()
        if self._special is None:
            return len(bare)
        last = None
        for last in self._special.finditer(bare):  # noqa: B007
            pass
        return len(bare) if last is not None and last.end() == len(bare) else len(turn)


def _places(message: Message) -> list[str]:
    """The texts of a message that stand in the rendering as they are: content, and calls of tools."""
    content = message.get("content")
    places = [content] if content else []
    for call in message.get("tool_calls") or ():
        function = call.get("function", call)
        arguments = function.get("arguments")
        if not isinstance(arguments, Mapping):
            return []
        places += [function["name"], json.dumps(arguments, ensure_ascii=False)]
    return places


def _hollow(message: Message, marks: list[str]) -> Message:
    """The message with a placeholder in each of its places; the placeholders are added to ``marks``."""
    hollow = dict(message)
    if message.get("content"):
        hollow["content"] = _mark(marks, _TEXT)
    if message.get("tool_calls"):
        hollow["tool_calls"] = [_hollow_call(call, marks) for call in message["tool_calls"]]
    return hollow


def _hollow_call(call: dict[str, Any], marks: list[str]) -> dict[str, Any]:
    inner = {**call.get("function", call), "name": _mark(marks, _TEXT), "arguments": _mark(marks, _OBJECT)}
    return {**call, "function": inner} if "function" in call else inner


def _mark(marks: list[str], end: str) -> str:
    marks.append(f"{_OPEN}{len(marks)}{end}")
    return marks[-1]

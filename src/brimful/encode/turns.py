"""Where the assistant's turns lie in the text that a chat template renders.

A label covers what the model has to produce: the answer and the token that ends its turn. Some templates
mark that themselves with ``{% generation %}``; most do not. For those the turns are found without touching
the text that is tokenised:

1.  *Skeleton.* The conversation is rendered once more with short placeholders for its contents. What stands
    between the placeholders is the template's own text: headers, ends of turns. The skeleton mostly depends on
    the roles alone, so it is kept, and one rendering serves all conversations of that shape. Filled with the
    real contents it must give the real text, character for character; else it is not used.
2.  *Prefixes.* Rendering the turns before an answer, and those with it, shows where it begins and ends, if the
    whole text begins with both. Slower, for templates that change contents.
3.  *Anchors.* Templates that take the thoughts out of earlier answers render no prefix of the text. Then a turn
    is what stands between the header before it and the known text behind it: the end of the turn, the next
    header, and what the other side said.

A conversation that none explains is an error that says so, never a guess.
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
        places = [_places(message) for message in messages]
        skeleton = self._skeleton(messages, tools, places) if all(places) else None
        values = [value for there in places for value in there]
        found = self._by_skeleton(skeleton, values, text) if skeleton is not None else None
        if found is None:
            found = self._by_prefixes(messages, tools, text)
        if found is None and skeleton is not None:
            found = self._by_anchors(skeleton, values, text)
        return found

    def _skeleton(self, messages: Sequence[Message], tools: Any, places: list[list[str]]) -> _Skeleton | None:
        if tools is not None:  # their text is part of the literals: a skeleton of its own
            return self._make_skeleton(messages, tools, places)
        shape = tuple((message["role"], len(there)) for message, there in zip(messages, places, strict=True))
        if shape not in self._skeletons:
            if len(self._skeletons) >= _KEPT_SKELETONS:
                self._skeletons.clear()
            self._skeletons[shape] = self._make_skeleton(messages, None, places)
        return self._skeletons[shape]

    @staticmethod
    def _by_skeleton(skeleton: _Skeleton, values: list[str], text: str) -> list[Span] | None:
        pieces = [piece for pair in zip(skeleton.literals, values, strict=False) for piece in pair]
        pieces.append(skeleton.literals[-1])
        if "".join(pieces) != text:
            return None
        edges = [0]
        for piece in pieces:
            edges.append(edges[-1] + len(piece))
        return [(edges[2 * first + 1] - head, edges[2 * last + 2] + tail) for first, last, head, tail in skeleton.turns]

    @staticmethod
    def _by_anchors(skeleton: _Skeleton, values: list[str], text: str) -> list[Span] | None:
        """Turns between texts that are known: headers, ends of turns, and what the others said."""
        known: list[str] = []
        behind = 0
        for first, last, head, _ in skeleton.turns:
            known.append(_filled(skeleton, values, behind, first, cut=head))
            behind = last + 1
        known.append(_filled(skeleton, values, behind, len(values), cut=0))
        if not text.startswith(known[0]) or not text.endswith(known[-1]):
            return None
        spans: list[Span] = []
        position = len(known[0])
        for (_, _, _, tail), anchor in zip(skeleton.turns, known[1:], strict=True):
            is_last = len(spans) + 1 == len(skeleton.turns)
            at = len(text) - len(anchor) if is_last else text.find(anchor, position)
            if at < position or not (anchor.strip() or is_last):
                return None
            spans.append((position, at + tail))
            position = at + len(anchor)
        return spans

    def _make_skeleton(self, messages: Sequence[Message], tools: Any, places: list[list[str]]) -> _Skeleton | None:
        marks: list[str] = []
        hollow = [_hollow(message, marks) for message in messages]
        try:
            text = self._render(hollow, tools, False)
        except Exception:  # the template refuses placeholders: the slower way tells why, if it fails too
            return None
        literals: list[str] = []
        edges: list[Span] = []
        position = 0
        for mark in marks:
            at = text.find(mark, position)
            if at < 0:
                return None
            end = at + len(mark)
            if mark.endswith(_OBJECT) and text[at - 1 : at] == text[end : end + 1] == '"':
                at, end = at - 1, end + 1  # a text is quoted in JSON, the object that stands here is not
            literals.append(text[position:at])
            edges.append((at, end))
            position = end
        literals.append(text[position:])
        turns: list[tuple[int, int, int, int]] = []
        first = 0
        for number, (message, there) in enumerate(zip(messages, places, strict=True)):
            last = first + len(there) - 1
            if message["role"] == "assistant":
                begin, end = edges[first][0], edges[last][1]
                span = self._prefix_span(hollow, number, tools, text)
                if span is None or not span[0] <= begin <= end <= span[1]:
                    span = self._literal_span(begin, end, literals[first], literals[last + 1])
                turns.append((first, last, begin - span[0], span[1] - end))
            first = last + 1
        return _Skeleton(tuple(literals), tuple(turns))

    def _literal_span(self, begin: int, end: int, before: str, after: str) -> Span:
        """The turn around a content, from the texts beside it: behind the header, through the first special token."""
        header = self._generation_header()
        at = before.rfind(header) if header else -1
        head = len(before) - at - len(header) if at >= 0 else 0
        match = self._special.search(after) if self._special else None
        return begin - head, end + (match.end() if match else 0)

    def _generation_header(self) -> str:
        """What the template writes before an answer."""
        if self._header is None:
            prompt = [{"role": "user", "content": "x"}]
            try:
                bare, asked = self._render(prompt, None, False), self._render(prompt, None, True)
            except Exception:
                bare = asked = ""
            self._header = asked[len(bare) :] if asked.startswith(bare) else ""
        return self._header

    def _by_prefixes(self, messages: Sequence[Message], tools: Any, text: str) -> list[Span] | None:
        spans: list[Span] = []
        for number, message in enumerate(messages):
            if message["role"] == "assistant":
                span = self._prefix_span(messages, number, tools, text)
                if span is None:
                    return None
                spans.append(span)
        return spans

    def _prefix_span(self, messages: Sequence[Message], number: int, tools: Any, text: str) -> Span | None:
        """One turn, if the text begins with the renderings of the turns before it, without it and with it."""
        try:
            before = self._render(messages[:number], tools, False)
            whole = self._render(messages[: number + 1], tools, False)
        except Exception:  # a template may refuse to render a beginning
            return None
        if not (text.startswith(before) and text.startswith(whole) and len(before) <= len(whole)):
            return None
        turn = text[len(before) : len(whole)]
        header = self._generation_header()
        head = _shared(turn, header) if header else _answer_begins(turn, messages[number])
        return len(before) + head, len(before) + max(head, self._trimmed(turn))

    def _trimmed(self, turn: str) -> int:
        """Length of a turn without the white space that separates it from the next."""
        bare = turn.rstrip()
        if self._special is None:
            return len(bare)
        last = None
        for last in self._special.finditer(bare):  # noqa: B007
            pass
        return len(bare) if last is not None and last.end() == len(bare) else len(turn)


def _filled(skeleton: _Skeleton, values: list[str], begin: int, end: int, cut: int) -> str:
    """The text from behind place ``begin - 1`` to place ``end``, less ``cut`` characters."""
    pieces = [skeleton.literals[begin]]
    for place in range(begin, end):
        pieces += [values[place], skeleton.literals[place + 1]]
    text = "".join(pieces)
    return text[: len(text) - cut]


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


def _answer_begins(turn: str, message: Message) -> int:
    """Where an answer begins if the template has no generation prompt that says where its header ends.

    At its text, and at the blanks before it on the same line: ``[/INST] answer`` is continued with a blank.
    """
    at = max(0, turn.find((message.get("content") or "").strip()))
    while at and turn[at - 1] == " ":
        at -= 1
    return at


def _shared(left: str, right: str) -> int:
    """Characters at the beginning that both texts have."""
    count = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        count += 1
    return count

"""Shapes of conversations, and the text of a template around the texts of a shape: its skeleton,
and its turns.
"""

import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, repeat
from json.encoder import encode_basestring
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from brimful.base.fingerprint import fingerprint_bytes
from brimful.base.ragged import offsets_of
from brimful.base.typing import Int64Array
from brimful.encode.token_places import Span, TextSpans
from brimful.sources.sample import Message, PartlyPlainMessages, PlainMessages

Shape: TypeAlias = tuple[tuple[Hashable, ...], str | int | None]
"""Turns, each a role alone or with its keys and the kinds of their values, and the fingerprint or
number of tools.
"""


def shape_of(messages: Sequence[Message], tools: Any) -> Shape:
    """Return roles, keys with the kinds of their values, tool calls, and tools.

    >>> shape_of([{"role": "user", "content": "a"}, {"role": "assistant", "content": "", "name": "b"}], None)
    (('user', ('assistant', ('content', ''), 'name')), None)
    """
    return _turns(messages), fingerprint_bytes(
        json.dumps(tools, default=repr).encode()
    ) if tools else None


def open_shape_of(messages: Sequence[Message], tools: Any) -> Shape:
    """Return the shape for a template that writes each tool as JSON unexamined: only the number of
    tools matters.

    >>> open_shape_of([{"role": "user", "content": "a"}], [{"name": "f"}, {"name": "g"}])
    (('user',), 2)
    """
    return _turns(messages), len(tools) if tools else None


def _turns(messages: Sequence[Message]) -> tuple[Hashable, ...]:
    # For a role and a text, the role alone is the shape.
    if type(messages) is PlainMessages:
        return messages.roles
    if type(messages) is PartlyPlainMessages:
        turns: list[Hashable] = [*messages.roles]
        for index in messages.others:
            turns[index] = _turn(messages[index])
        return tuple(turns)
    return tuple(map(_turn, messages))


def _turn(message: Message) -> Hashable:
    role: str = message["role"]
    if len(message) == 2 and type(content := message.get("content")) is str and content:
        return role
    return (role, *[_kind(key, value) for key, value in message.items() if key != "role"])


def _kind(key: str, value: Any) -> Hashable:
    """Return the kind of a value: only the key for a text, only the type for most others."""
    if type(value) is str:
        return key if value else (key, "")
    if key == "tool_calls" and type(value) is list:
        return (
            key,
            *[_kinds(call) if type(call) is dict else type(call).__name__ for call in value],
        )
    if key == "function" and type(value) is dict:
        return (key, _kinds(value))
    return (key, type(value).__name__, bool(value))


def _kinds(values: Mapping[str, Any]) -> tuple[Hashable, ...]:
    return tuple([_kind(key, value) for key, value in values.items()])


_encode_json = json.JSONEncoder(ensure_ascii=False).encode
"""One encoder for all calls: ``json.dumps`` makes one for each."""


class Turn(NamedTuple):
    """One assistant turn of a skeleton: pieces of the text, which are literals and values by turns,
    and the characters around its values that belong to it.

    Attributes:
        start: the piece before its first value.
        last: the piece of its last value.
        head: number of characters before the first value that belong to the turn.
        tail: number of characters after the last value that belong to the turn.
    """

    start: int
    last: int
    head: int
    tail: int


@dataclass(frozen=True)
class Skeleton:
    """The template's own text around slots for values:
    ``literals[0] v0 literals[1] v1 … literals[n]``.

    Attributes:
        literals: texts around the slots, one more than slots.
        turns: turns of the assistant.
        order: index of each slot's value among the values of messages and tools; None if they are
            in that order.
    """

    literals: tuple[str, ...]
    turns: tuple[Turn, ...]
    order: tuple[int, ...] | None = None

    @cached_property
    def table(self) -> Int64Array:
        """``int64[num_turns, 4]``: the fields of each turn."""
        return np.array(self.turns, dtype=np.int64).reshape(-1, 4)

    @cached_property
    def _blank(self) -> list[str]:
        """The literals, and an empty text in place of each value."""
        return [*chain.from_iterable(zip(self.literals, repeat(""), strict=False))][:-1]

    def filled(self, values: Sequence[str]) -> "FilledSkeleton":
        """Return the text with a value in every slot; ``values`` has the messages' values, then the
        tools'.
        """
        pieces = self._blank.copy()
        pieces[1::2] = values if self.order is None else [values[index] for index in self.order]
        return FilledSkeleton("".join(pieces), pieces, self)


class FilledSkeleton(NamedTuple):
    """The text of a conversation, and where its turns are (``encode.chat.FilledText``).

    Attributes:
        text: of the whole conversation.
        pieces: its parts: piece 2 i is literal i of the template, piece 2 i + 1 is value i.
        skeleton: what was filled.
    """

    text: str
    pieces: Sequence[str]
    skeleton: Skeleton

    @property
    def turns(self) -> list[Span]:
        """The span of each turn of the assistant."""
        _, starts, ends = spans_of_turns([0], [self])
        return list(zip(starts.tolist(), ends.tolist(), strict=True))


def spans_of_turns(
    rows: Sequence[int], texts: Sequence[FilledSkeleton], *, last_only: bool = False
) -> TextSpans:
    """Return the spans of the assistant's turns in several filled skeletons.

    Args:
        rows: index in the batch of each text.
        texts: the filled texts.
        last_only: return only the last turn of each text.
    """
    pieces = [one.pieces for one in texts]
    first_pieces = offsets_of(np.fromiter(map(len, pieces), dtype=np.int64))[:-1]
    sizes = np.fromiter(map(len, chain.from_iterable(pieces)), dtype=np.int64)
    # All texts are concatenated: piece i has the characters edges[i] … edges[i + 1].
    edges = offsets_of(sizes)
    tables = [one.skeleton.table[-1:] if last_only else one.skeleton.table for one in texts]
    owners = np.repeat(np.arange(len(texts)), np.fromiter(map(len, tables), dtype=np.int64))
    start_pieces, end_pieces, heads, tails = np.concatenate(
        [np.empty((0, 4), dtype=np.int64), *tables]
    ).T
    bases, text_starts = first_pieces[owners] + 1, edges[first_pieces[owners]]
    starts = edges[bases + start_pieces] - heads - text_starts
    ends = edges[bases + end_pieces] + tails - text_starts
    return TextSpans(np.asarray(rows, dtype=np.int64)[owners], starts, ends)


def verbatim_texts(
    messages: Sequence[Message], tools: Sequence[Any] | None = None
) -> list[str] | None:
    """Return the texts of all messages, and each tool as JSON; None if one of them has no text that
    stays unchanged.
    """
    if tools:
        texts = verbatim_texts(messages)
        if texts is None or any(type(tool) is not dict for tool in tools):
            return None
        return [*texts, *map(json_text, tools)]
    if type(messages) is PlainMessages:
        return messages.texts
    indices: Sequence[int] = (
        messages.others if type(messages) is PartlyPlainMessages else range(len(messages))
    )
    values: list[Any] = [message.get("content") for message in messages]
    # From the last one, so that earlier places stay valid.
    for index in reversed(indices):
        texts = message_texts(messages[index])
        if not texts:
            return None
        values[index : index + 1] = texts
    return values


def message_texts(message: Message) -> list[str]:
    """Return the texts of a message that its rendering holds unchanged: content, and tool calls."""
    content = message.get("content")
    texts = [content] if content else []
    for call in message.get("tool_calls") or ():
        function = call.get("function", call)
        arguments = function.get("arguments")
        if not arguments and not isinstance(arguments, Mapping):
            return []
        # Templates write text arguments as they are, or quote them: then the filled text differs.
        texts += [
            function["name"],
            arguments if isinstance(arguments, str) else json_text(arguments),
        ]
    return texts


def json_text(value: Any) -> str:
    """Return ``json.dumps(value, ensure_ascii=False)``, in a third of its time for an object of
    texts, as most are.

    >>> json_text({"city": "Köln", "note": "a \\"b\\""})
    '{"city": "Köln", "note": "a \\\\"b\\\\""}'
    >>> json_text({"day": 3})
    '{"day": 3}'
    """
    if type(value) is dict and value and {*map(type, value), *map(type, value.values())} == {str}:
        return f"{{{', '.join([f'{encode_basestring(key)}: {encode_basestring(text)}' for key, text in value.items()])}}}"
    return _encode_json(value)

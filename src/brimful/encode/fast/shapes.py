"""Shapes of conversations: what a chat template examines, other than the texts that it writes."""

import json
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, TypeAlias

from brimful.base.fingerprint import fingerprint_bytes
from brimful.sources.sample import Message, MixedMessages, PlainMessages

Shape: TypeAlias = tuple[tuple[Hashable, ...], str | int | None]
"""Turns, each a role alone or with its keys and the kinds of their values, and the fingerprint or number of tools."""


def shape_of(messages: Sequence[Message], tools: Any) -> Shape:
    """Return roles, keys with the kinds of their values, tool calls, and tools.

    >>> shape_of([{"role": "user", "content": "a"}, {"role": "assistant", "content": "", "name": "b"}], None)
    (('user', ('assistant', ('content', ''), 'name')), None)
    """
    return _turns(messages), fingerprint_bytes(json.dumps(tools, default=repr).encode()) if tools else None


def open_shape_of(messages: Sequence[Message], tools: Any) -> Shape:
    """Return the shape for a template that writes each tool as JSON unexamined: only the number of tools matters.

    >>> open_shape_of([{"role": "user", "content": "a"}], [{"name": "f"}, {"name": "g"}])
    (('user',), 2)
    """
    return _turns(messages), len(tools) if tools else None


def _turns(messages: Sequence[Message]) -> tuple[Hashable, ...]:
    # For a role and a text, the role alone is the shape.
    if type(messages) is PlainMessages:
        return messages.roles
    if type(messages) is MixedMessages:
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
        return (key, *[_kinds(call) if type(call) is dict else type(call).__name__ for call in value])
    if key == "function" and type(value) is dict:
        return (key, _kinds(value))
    return (key, type(value).__name__, bool(value))


def _kinds(values: Mapping[str, Any]) -> tuple[Hashable, ...]:
    return tuple([_kind(key, value) for key, value in values.items()])

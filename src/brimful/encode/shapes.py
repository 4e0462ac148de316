"""Shapes of conversations: what a chat template looks at beside the texts that it writes."""

import json
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, TypeAlias

from brimful.fingerprint import fingerprint_bytes
from brimful.sources.sample import Message, MixedMessages, PlainMessages

Shape: TypeAlias = tuple[tuple[Hashable, ...], str | None]
"""Turns, each a role alone or with its keys and the kinds of their values, and the fingerprint of the tools."""


def shape_of(messages: Sequence[Message], tools: Any) -> Shape:
    """Return roles, the keys with the kinds of their values, the calls of tools, and the tools.

    >>> shape_of([{"role": "user", "content": "a"}, {"role": "assistant", "content": "", "name": "b"}], None)
    (('user', ('assistant', ('content', ''), 'name')), None)
    """
    # Of a role and a text the role alone is told.
    turns: tuple[Hashable, ...]
    if type(messages) is PlainMessages:
        turns = messages.roles
    elif type(messages) is MixedMessages:
        kinds: list[Hashable] = [*messages.roles]
        for index in messages.others:
            kinds[index] = _turn(messages[index])
        turns = tuple(kinds)
    else:
        turns = tuple(map(_turn, messages))
    return turns, fingerprint_bytes(json.dumps(tools, default=repr).encode()) if tools else None


def _turn(message: Message) -> Hashable:
    role: str = message["role"]
    if len(message) == 2 and type(content := message.get("content")) is str and content:
        return role
    return (role, *[_kind(key, value) for key, value in message.items() if key != "role"])


def _kind(key: str, value: Any) -> Hashable:
    """Return what is told of a value: its key alone for a text, nothing of it but its type for most others."""
    if type(value) is str:
        return key if value else (key, "")
    if key == "tool_calls" and type(value) is list:
        return (key, *[_kinds(call) if type(call) is dict else type(call).__name__ for call in value])
    if key == "function" and type(value) is dict:
        return (key, _kinds(value))
    return (key, type(value).__name__, bool(value))


def _kinds(values: Mapping[str, Any]) -> tuple[Hashable, ...]:
    return tuple([_kind(key, value) for key, value in values.items()])

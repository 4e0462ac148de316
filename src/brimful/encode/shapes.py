"""Shapes of conversations: what a chat template looks at beside the texts that it writes."""

import json
from collections.abc import Hashable, Sequence
from typing import Any, TypeAlias

from brimful.fingerprint import fingerprint_bytes
from brimful.sources.sample import Message, MixedMessages, PlainMessages

Shape: TypeAlias = tuple[tuple[Hashable, ...], str | None]
"""Turns, each a role alone or with its keys, and the fingerprint of the tools."""


def shape_of(messages: Sequence[Message], tools: Any) -> Shape:
    """Return roles, the keys that hold something, the number of calls of tools, and the tools.

    >>> shape_of([{"role": "user", "content": "a"}, {"role": "assistant", "content": "", "name": "b"}], None)
    (('user', ('assistant', 'role', 'name')), None)
    """
    # Of a role and a text the role alone is told.
    turns: tuple[Hashable, ...]
    if type(messages) is PlainMessages:
        turns = messages.roles
    elif type(messages) is MixedMessages:
        details: list[Hashable] = [*messages.roles]
        for index in messages.others:
            details[index] = _turn(messages[index])
        turns = tuple(details)
    else:
        turns = tuple(map(_turn, messages))
    return turns, fingerprint_bytes(json.dumps(tools, default=repr).encode()) if tools else None


def _turn(message: Message) -> Hashable:
    role: str = message["role"]
    if len(message) == 2 and message.get("content"):
        return role
    calls = message.get("tool_calls")
    keys = [key for key, value in message.items() if value]
    return (role, *keys, len(calls)) if calls else (role, *keys)


def is_of_texts(shape: Shape) -> bool:
    """Return true for conversations without tools whose every message is a role and a text.

    >>> is_of_texts(shape_of([{"role": "user", "content": "a"}], None))
    True
    """
    turns, tools = shape
    return tools is None and all(type(turn) is str for turn in turns)

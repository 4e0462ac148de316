"""Shapes of conversations: what a chat template looks at beside the texts that it writes."""

import json
from collections.abc import Hashable, Sequence
from typing import Any, TypeAlias

from brimful.fingerprint import fingerprint_bytes
from brimful.sources.sample import Message, PlainMessages

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
    else:
        turns = tuple([m["role"] if len(m) == 2 and m.get("content") else _details(m) for m in messages])
    return turns, fingerprint_bytes(json.dumps(tools, default=repr).encode()) if tools else None


def _details(message: Message) -> Hashable:
    calls = message.get("tool_calls")
    keys = [key for key, value in message.items() if value]
    return (message["role"], *keys, len(calls)) if calls else (message["role"], *keys)


def is_of_texts(shape: Shape) -> bool:
    """Return true for conversations without tools whose every message is a role and a text.

    >>> is_of_texts(shape_of([{"role": "user", "content": "a"}], None))
    True
    """
    turns, tools = shape
    return tools is None and all(type(turn) is str for turn in turns)

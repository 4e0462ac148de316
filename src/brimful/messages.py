"""Numbers and settings as people read them.

A message that mentions a setting does not know who reads it: in Python the setting is an argument
(``overflow="drop"``), on the command line a flag (``--overflow drop``). So messages mention settings by
``setting(…)``, which puts marks around them, and whoever shows the message says in which language:
``str(error)`` speaks Python, the command line puts in its flags (``brimful.cli.flags``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any, TypeAlias

__all__ = ["Language", "as_argument", "counted", "differences", "first_few", "in_python", "setting", "translate"]

Language: TypeAlias = Callable[[str, Any], str]
"""How one setting is said: from its name, as Python calls it, and its value (``NO_VALUE`` if none) to text."""

NO_VALUE = object()
"""Stands for the value of a setting that is mentioned by its name alone."""

# Private-use characters: no message holds them but for these marks.
_OPEN, _EQUALS, _INSTEAD, _CLOSE = "\ue020", "\ue021", "\ue022", "\ue023"
_MARKS = f"{_OPEN}{_EQUALS}{_INSTEAD}{_CLOSE}"
_MENTION = re.compile(f"{_OPEN}([^{_MARKS}]+)(?:{_EQUALS}([^{_MARKS}]*))?(?:{_INSTEAD}([^{_MARKS}]*))?{_CLOSE}")
_MARK = re.compile(f"[{_MARKS}]")


def counted(number: int, noun: str) -> str:
    """A number with its noun, in the plural where it asks for it.

    >>> counted(1, "shard"), counted(1200, "pack"), counted(0, "sample")
    ('1 shard', '1,200 packs', '0 samples')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


EXAMPLES_SHOWN = 10
"""Examples that one message names; the rest are counted."""


def first_few(examples: Iterable[object], total: int) -> str:
    """List the first examples of something wrong and count the rest.

    Args:
        examples: in order; only the first ``EXAMPLES_SHOWN`` are read.
        total: number of all examples.

    >>> first_few(["7 (9,000)", "12 (4,100)"], total=2)
    '7 (9,000), 12 (4,100)'
    >>> first_few(range(5_000), total=5_000)
    '0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 4,990 more'
    """
    shown = ", ".join(str(example) for example in islice(examples, EXAMPLES_SHOWN))
    return f"{shown} and {total - EXAMPLES_SHOWN:,} more" if total > EXAMPLES_SHOWN else shown


def differences(
    state: Mapping[str, Any], own: Mapping[str, Any], keys: Iterable[str], *, show: Callable[[Any], str] = repr
) -> str:
    """Describe the values in which a saved state differs from the object that loads it; empty if in none.

    Args:
        state: the saved values; an absent one counts as None.
        own: the values of the object.
        keys: to compare, in the order of the text.
        show: the text of a value.

    >>> differences({"seed": 1, "dp_world_size": 8}, {"seed": 0, "dp_world_size": 8}, ["seed", "dp_world_size"])
    'seed (1 in the state, 0 here)'
    """
    return ", ".join(
        f"{key} ({show(state.get(key))} in the state, {show(own[key])} here)"
        for key in keys
        if state.get(key) != own[key]
    )


def setting(name: str, value: Any = NO_VALUE, *, python: str | None = None) -> str:
    """Mention a setting in a message, alone or with a value.

    Args:
        name: as Python calls it: ``capacity``, ``overflow``.
        value: a text, number, boolean or flat mapping; what JSON does not know is shown as its repr.
        python: what Python says where this is no argument of one call, such as another class.

    >>> in_python(f"choose {setting('overflow', 'drop')} or a larger {setting('capacity')}")
    'choose overflow="drop" or a larger capacity'
    >>> in_python(f"use {setting('mode', 'text', python='TextEncoder')}")
    'use TextEncoder'
    """
    valued = "" if value is NO_VALUE else _EQUALS + _escaped(json.dumps(value, ensure_ascii=False, default=_plain))
    instead = "" if python is None else _INSTEAD + _MARK.sub("", python)
    return f"{_OPEN}{name}{valued}{instead}{_CLOSE}"


def translate(message: str, language: Language) -> str:
    """A message with its settings in the language of whoever reads it.

    >>> translate(f"{setting('seed', 3)} is taken", lambda name, value: f"--{name} {value}")
    '--seed 3 is taken'
    """
    return _MENTION.sub(lambda match: language(match.group(1), _value(match)), message)


def in_python(message: str) -> str:
    """A message with its settings as arguments of a call.

    >>> in_python(f"{setting('mix', True)} and {setting('budgets', {'patches': 64})}")
    'mix=True and budgets={"patches": 64}'
    """
    return _MENTION.sub(lambda match: match.group(3) or as_argument(match.group(1), _value(match)), message)


def _value(match: re.Match[str]) -> Any:
    return NO_VALUE if match.group(2) is None else json.loads(match.group(2))


def as_argument(name: str, value: Any) -> str:
    """One setting as Python says it."""
    if value is NO_VALUE:
        return name
    shown = json.dumps(value, ensure_ascii=False) if isinstance(value, (str, dict, list)) else repr(value)
    return f"{name}={shown}"


def _plain(value: Any) -> Any:
    """What JSON does not know: a NumPy number as the number it is, anything else as its repr."""
    return value.item() if hasattr(value, "item") else repr(value)


def _escaped(text: str) -> str:
    """JSON in which marks that somebody's value holds are no marks."""
    return _MARK.sub(lambda match: f"\\u{ord(match.group()):04x}", text)

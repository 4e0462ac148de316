"""Numbers and settings in messages.

A setting has two spellings: in Python it is an argument (``overflow="drop"``), on the command line
a flag (``--overflow drop``). Messages therefore mention settings by ``setting(…)``, which puts
marks around them, and the code
that shows the message chooses the spelling: ``str(error)`` shows Python arguments, the command line
its flags (``brimful.cli.program``).
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any, TypeAlias

Language: TypeAlias = Callable[[str, Any], str]
"""Function from a setting's Python name and its value (``NO_VALUE`` if none) to a text."""

NO_VALUE = object()
"""Value of a setting that is mentioned by its name alone."""

# Private-use characters: messages use them only for these marks.
_OPEN, _EQUALS, _INSTEAD, _CLOSE = "\ue020", "\ue021", "\ue022", "\ue023"
_MENTION = re.compile(f"{_OPEN}(.+?)(?:{_EQUALS}(.*?))?(?:{_INSTEAD}(.*?))?{_CLOSE}", re.DOTALL)


def counted(count: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless the number is 1.

    >>> counted(1, "shard"), counted(1200, "pack"), counted(0, "sample")
    ('1 shard', '1,200 packs', '0 samples')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def percent(ratio: float, digits: int = 1) -> str:
    """Return a ratio as a percentage, never rounded up to 100 % or down to 0 %.

    >>> percent(0.5), percent(0.99999), percent(0.00001), percent(1.0), percent(0.0)
    ('50.0 %', '> 99.9 %', '< 0.1 %', '100.0 %', '0.0 %')
    """
    # A share that would round to 0 % or 100 % is given as a bound: one sample in a million is not
    # zero samples.
    unit = 10.0**-digits
    value = 100 * ratio
    if 0 < value < unit / 2:
        return f"< {unit:.{digits}f} %"
    if 100 - unit / 2 <= value < 100:
        return f"> {100 - unit:.{digits}f} %"
    return f"{value:,.{digits}f} %"


def whole(value: float) -> str:
    """Format a count with thousands separators.

    >>> whole(1234567.4)
    '1,234,567'
    """
    return f"{value:,.0f}"


EXAMPLES_SHOWN = 10
"""Examples that one message names; the rest are counted."""


def size_of(num_bytes: int) -> str:
    """Return a number of bytes in readable form: three digits, in the largest unit below, by powers
    of 1,000.

    >>> size_of(999), size_of(1_234), size_of(25_600_000), size_of(1_234_000_000_000)
    ('999 bytes', '1.23 kB', '25.6 MB', '1.23 TB')
    """
    if num_bytes < 1000:
        return counted(num_bytes, "byte")
    size, unit = num_bytes / 1000, "kB"
    for larger_unit in ("MB", "GB", "TB"):
        if size >= 999.5:
            size, unit = size / 1000, larger_unit
    return f"{size:.{max(0, 3 - len(str(int(size))))}f} {unit}"


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
    text = ", ".join(str(example) for example in islice(examples, EXAMPLES_SHOWN))
    return f"{text} and {total - EXAMPLES_SHOWN:,} more" if total > EXAMPLES_SHOWN else text


def differences(
    state: Mapping[str, Any],
    own_state: Mapping[str, Any],
    keys: Iterable[str],
    *,
    show: Callable[[Any], str] = repr,
) -> str:
    """Describe the values in which a saved state differs from the object that loads it; empty
    without differences.

    Args:
        state: the saved values; an absent one counts as None.
        own_state: the values of the object.
        keys: the keys to compare, in the order of the text.
        show: the text of a value.

    >>> differences({"seed": 1, "dp_world_size": 8}, {"seed": 0, "dp_world_size": 8}, ["seed", "dp_world_size"])
    'seed (1 in the state, 0 here)'
    """
    differing_keys = [key for key in keys if state.get(key) != own_state[key]]
    return ", ".join(
        f"{key} ({show(state.get(key))} in the state, {show(own_state[key])} here)"
        for key in differing_keys
    )


def setting(name: str, value: Any = NO_VALUE, *, python: str | None = None) -> str:
    """Return a marked mention of a setting for a message, with or without a value.

    Args:
        name: its Python name: ``capacity``, ``overflow``.
        value: a text, number, boolean or flat mapping; a value that JSON cannot hold is shown as
            its repr.
        python: the Python text, if the setting is not an argument there but, for example, another
            class.

    >>> in_python(f"choose {setting('overflow', 'drop')} or a larger {setting('capacity')}")
    'choose overflow="drop" or a larger capacity'
    >>> in_python(f"use {setting('mode', 'text', python='TextEncoder')}")
    'use TextEncoder'
    """
    # JSON is ASCII: such a character in the value of a user is not read as a mark.
    value_text = "" if value is NO_VALUE else _EQUALS + json.dumps(value, default=_plain)
    python_text = "" if python is None else _INSTEAD + python
    return f"{_OPEN}{name}{value_text}{python_text}{_CLOSE}"


def translate(message: str, language: Language) -> str:
    """Return a message with its settings spelled by ``language``.

    >>> translate(f"{setting('seed', 3)} is taken", lambda name, value: f"--{name} {value}")
    '--seed 3 is taken'
    """
    return _MENTION.sub(lambda match: language(match.group(1), _value(match)), message)


def in_python(message: str) -> str:
    """Return a message with its settings as Python arguments.

    >>> in_python(f"{setting('seed', 3)} and {setting('budgets', {'patches': 64})}")
    'seed=3 and budgets={"patches": 64}'
    """
    return _MENTION.sub(
        lambda match: match.group(3) or as_argument(match.group(1), _value(match)), message
    )


def _value(match: re.Match[str]) -> Any:
    return NO_VALUE if match.group(2) is None else json.loads(match.group(2))


def as_argument(name: str, value: Any) -> str:
    """Return one setting as a Python argument."""
    if value is NO_VALUE:
        return name
    text = (
        json.dumps(value, ensure_ascii=False)
        if isinstance(value, (str, dict, list))
        else repr(value)
    )
    return f"{name}={text}"


def _plain(value: Any) -> Any:
    """Return a NumPy number as a Python number, and any other value that JSON cannot hold as its
    repr.
    """
    return value.item() if hasattr(value, "item") else repr(value)

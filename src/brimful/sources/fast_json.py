"""JSON by ``orjson`` where it is installed and gives the values of the standard library."""

import json
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

_DIGITS = bytes.maketrans(b"123456789", b"0" * 9)
_LONG_NUMBER = b"0" * 19
"""Digits from which on a whole number may not fit 64 bits: ``orjson`` would make a float of it, without a word."""

_ROW_TYPES = {dict, str}


def parser_for(data: bytes) -> Callable[[bytes], Any]:
    """Return the fastest function that parses the lines of a text as ``json.loads`` does.

    >>> parser_for(b'{"a": 18446744073709551616}')(b'{"a": 18446744073709551616}')
    {'a': 18446744073709551616}
    """
    fast_loads = _fast_loads_of(data)
    return json.loads if fast_loads is None else partial(_loads, fast_loads)


def rows_at_once(lines: Sequence[bytes], data: bytes) -> list[Any] | None:
    """Return the objects and texts of lines; None if the fast parser is not there, or a line is anything else.

    >>> rows_at_once([b'{"a": 1}', b"[]"], b'{"a": 1}[]') is None
    True
    """
    fast_loads = _fast_loads_of(data)
    if fast_loads is None:
        return None
    try:
        rows = [*map(fast_loads, map(bytes.rstrip, lines))]  # blank lines behind one would be copied
    except ValueError:
        return None
    return rows if set(map(type, rows)) <= _ROW_TYPES else None


def _fast_loads_of(data: bytes) -> Callable[[bytes], Any] | None:
    """Return the function of ``orjson`` if it gives the values of the standard library for lines of these bytes."""
    return None if _LONG_NUMBER in data.translate(_DIGITS) else _fast_loads()


@cache
def _fast_loads() -> Callable[[bytes], Any] | None:
    """Return the function of ``orjson``; None if it is not installed."""
    try:
        import orjson
    except ImportError:
        return None
    return orjson.loads


def _loads(fast_loads: Callable[[bytes], Any], line: bytes) -> Any:
    try:
        return fast_loads(line.rstrip())  # blank lines behind it would be copied
    except ValueError:
        # What orjson refuses, the standard library may take (NaN, half of a surrogate pair), or refuse in known words.
        return json.loads(line)

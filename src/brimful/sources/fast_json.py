"""JSON by ``orjson`` where it is installed and gives the values of the standard library."""

import json
from collections.abc import Callable
from functools import cache, partial
from typing import Any

_DIGITS = bytes.maketrans(b"123456789", b"0" * 9)
_LONG_NUMBER = b"0" * 19
"""Digits from which on a whole number may not fit 64 bits: ``orjson`` would make a float of it, without a word."""


def parser_for(data: bytes) -> Callable[[bytes], Any]:
    """Return the fastest function that parses the lines of a text as ``json.loads`` does.

    >>> parser_for(b'{"a": 18446744073709551616}')(b'{"a": 18446744073709551616}')
    {'a': 18446744073709551616}
    """
    fast_loads = _fast_loads()
    if fast_loads is None or _LONG_NUMBER in data.translate(_DIGITS):
        return json.loads
    return partial(_loads, fast_loads)


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

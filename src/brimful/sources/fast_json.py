"""JSON parsing with ``orjson``, if it is installed and gives the same values as the standard library."""

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from brimful.optional import fast_json_library

_DIGITS = bytes.maketrans(b"123456789", b"0" * 9)
_LONG_NUMBER = b"0" * 19
"""Number of digits from which a whole number may not fit 64 bits: ``orjson`` would silently make a float of it."""

_ROW_TYPES = {dict, str}

_COLUMNS = {
    name: f'"{name}"'.encode()
    for name in ("messages", "conversations", "prompt", "completion", "chosen", "rejected", "text", "input_ids")
}
"""Columns that hold samples, as written in a line. Inside a text, quotes are escaped, so each counts once a row."""


def parser_for(data: bytes) -> Callable[[bytes], Any]:
    """Return the fastest function that parses the lines of a text as ``json.loads`` does.

    >>> parser_for(b'{"a": 18446744073709551616}')(b'{"a": 18446744073709551616}')
    {'a': 18446744073709551616}
    """
    fast_loads = _fast_loads_of(data)
    return json.loads if fast_loads is None else partial(_loads, fast_loads)


def rows_at_once(lines: Sequence[bytes], data: bytes) -> list[Any] | None:
    """Return the objects and texts of lines; None without the fast parser, or if a line is anything else.

    >>> rows_at_once([b'{"a": 1}', b"[]"], b'{"a": 1}[]') is None
    True
    """
    fast_loads = _fast_loads_of(data)
    if fast_loads is None:
        return None
    try:
        rows = [*map(fast_loads, map(bytes.rstrip, lines))]  # blank lines after one would be copied
    except ValueError:
        return None
    if not set(map(type, rows)) <= _ROW_TYPES:
        return None
    # A parser keeps the last of two equal keys: counting finds them here, and the rows are then checked line by line.
    objects = [row for row in rows if type(row) is dict]
    names = [name for name in _COLUMNS if objects and name in objects[0]]
    is_repeated = any(data.count(_COLUMNS[name]) > sum(name in row for row in objects) for name in names)
    return None if is_repeated else rows


def repeated_column(row: dict[str, Any], line: bytes) -> str | None:
    """Return the column that a row's line has twice, so that one of its samples would be lost; None without one.

    >>> line = b'{"text": "a", "text": "b"}'
    >>> repeated_column(json.loads(line), line)
    'text'
    """
    names = [name for name, mark in _COLUMNS.items() if name in row and line.count(mark) > 1]
    keys = [key for key, _ in json.loads(line, object_pairs_hook=list)] if names else []
    return next((name for name in names if keys.count(name) > 1), None)


def _fast_loads_of(data: bytes) -> Callable[[bytes], Any] | None:
    """Return the function of ``orjson`` if it gives the values of the standard library for lines of these bytes."""
    return None if _LONG_NUMBER in data.translate(_DIGITS) else _fast_loads()


def _fast_loads() -> Callable[[bytes], Any] | None:
    """Return the function of ``orjson``; None if it is not installed."""
    library = fast_json_library()
    return None if library is None else library.loads


def _loads(fast_loads: Callable[[bytes], Any], line: bytes) -> Any:
    try:
        return fast_loads(line.rstrip())  # blank lines after it would be copied
    except ValueError:
        # What orjson refuses, the standard library may take (NaN, half of a surrogate pair), or refuse with a known
        # message.
        return json.loads(line)

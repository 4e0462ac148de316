"""Lines of JSON to rows, with ``orjson`` if it is installed and gives the same values as the standard library."""

import json
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from brimful.base.optional import fast_json_library
from brimful.sources.rows import MAX_ROW_BYTES, oversized
from brimful.sources.sample import MalformedRowError

_DIGITS = bytes.maketrans(b"123456789", b"0" * 9)
_LONG_NUMBER = b"0" * 19
"""Number of digits from which a whole number may not fit 64 bits: ``orjson`` would silently make a float of it."""

_ROW_TYPES = {dict, str}

_COLUMNS = {
    name: f'"{name}"'.encode()
    for name in ("messages", "conversations", "prompt", "completion", "chosen", "rejected", "text", "input_ids")
}
"""Columns that hold samples, as written in a line. Inside a text, quotes are escaped, so each counts once a row."""


def rows_of_lines(lines: Sequence[bytes], data: bytes) -> Iterable[Any]:
    """Return the object or text of each line, or the error that says why it cannot be read.

    Args:
        lines: may end in blank lines, which do not count toward their length.
        data: bytes that hold all of them.

    >>> [*rows_of_lines([b'{"a": 1}', b'"b"', b"3"], b'{"a": 1} "b" 3')]
    [{'a': 1}, 'b', MalformedRowError('a row must be an object and is int')]
    """
    # All at once if every line is a row, as in most files; else one by one, with the reason for each that is not.
    rows = None if max(map(len, lines), default=0) > MAX_ROW_BYTES else rows_at_once(lines, data)
    if rows is not None:
        return rows
    parse = parser_for(data)
    return (row_of_line(line, parse) for line in lines)


def row_of_line(line: bytes, parse: Callable[[bytes], Any]) -> Any:
    """Return the object or text of a line, or the error that says why it cannot be read."""
    if len(line) > MAX_ROW_BYTES:
        line = line[: line.find(b"\n") + 1]
        if not line:
            return oversized()
    try:
        value = parse(line)
    except UnicodeDecodeError as error:
        return MalformedRowError(f"invalid UTF-8 at byte {error.start} of the line ({error.reason})")
    except json.JSONDecodeError as error:
        return MalformedRowError(f"not JSON: {error.msg} at column {error.colno}{_kind_of_whole(line)}")
    except RecursionError:
        return MalformedRowError("not readable as JSON: nested too deeply")
    except ValueError as error:  # a number of thousands of digits
        return MalformedRowError(f"not readable as JSON: {error}")
    if not isinstance(value, (dict, str)):
        return MalformedRowError(f"a row must be an object and is {type(value).__name__}{_kind_of_whole(line)}")
    name = repeated_column(value, line) if isinstance(value, dict) else None
    return value if name is None else MalformedRowError(f"it has {name!r} twice: one of them would be lost")


def object_of(data: bytes) -> dict[str, Any]:
    """Return the object that a whole file of JSON holds.

    Raises:
        MalformedRowError: it holds none, or is longer than a row may be.
    """
    if len(data) > MAX_ROW_BYTES:
        raise oversized()
    try:
        value = json.loads(data)
    except json.JSONDecodeError as error:
        raise MalformedRowError(f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from error
    except UnicodeDecodeError as error:
        raise MalformedRowError(f"invalid UTF-8 at byte {error.start} ({error.reason})") from error
    except (RecursionError, ValueError) as error:
        raise MalformedRowError(f"not readable as JSON: {error}") from error
    if not isinstance(value, dict):
        raise MalformedRowError(f"a row must be an object and is {type(value).__name__}")
    return value


def text_of(data: bytes) -> str:
    """Return the text of a whole file.

    Raises:
        MalformedRowError: it is not UTF-8, or longer than a row may be.
    """
    if len(data) > MAX_ROW_BYTES:
        raise oversized()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise MalformedRowError(f"invalid UTF-8 at byte {error.start} ({error.reason})") from error


def _kind_of_whole(line: bytes) -> str:
    """Say what other JSON the file seems to be, judged by a line that is not a row; empty if unknown."""
    text = line.strip()
    if text.startswith(b"[") and text[1:].lstrip()[:1] in (b"", b"{"):
        return ": it looks like a JSON array: give the file a name that ends in .json"
    return ": it looks like one JSON object on several lines: each row must be one line" if text == b"{" else ""


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
    library = fast_json_library()
    return None if library is None or _LONG_NUMBER in data.translate(_DIGITS) else library.loads


def _loads(fast_loads: Callable[[bytes], Any], line: bytes) -> Any:
    try:
        return fast_loads(line.rstrip())  # blank lines after it would be copied
    except ValueError:
        # What orjson refuses, the standard library may take (NaN, half of a surrogate pair), or refuse with a known
        # message.
        return json.loads(line)

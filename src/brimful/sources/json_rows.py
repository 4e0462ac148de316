"""Rows of JSON: of lines, of one array, and of whole files.

Lines are parsed by ``orjson`` if it is installed and gives the same values as the standard library.
The elements of an array are decoded one by one, with only one of them in memory.
"""

import codecs
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any

from brimful.base.checks import MalformedRowError
from brimful.base.optional import fast_json_library
from brimful.errors import BadSampleError, SourceError
from brimful.sources.rows import MAX_ROW_BYTES, oversized

_DIGITS = bytes.maketrans(b"123456789", b"0" * 9)
_LONG_NUMBER = b"0" * 19
"""Number of digits from which a whole number may not fit 64 bits: ``orjson`` would silently make a
float of it.
"""

_ROW_TYPES = {dict, str}

_COLUMNS = {
    name: f'"{name}"'.encode()
    for name in (
        "messages",
        "conversations",
        "prompt",
        "completion",
        "chosen",
        "rejected",
        "text",
        "input_ids",
    )
}
"""Columns that hold samples, as written in a line. Inside a text, quotes are escaped, so each
counts once a row.
"""


def rows_of_lines(lines: Sequence[bytes], data: bytes) -> Iterable[Any]:
    """Return the object or text of each line, or the error that says why it cannot be read.

    Args:
        lines: may end in blank lines, which do not count toward their length.
        data: bytes that hold all of them.

    >>> [*rows_of_lines([b'{"a": 1}', b'"b"', b"3"], b'{"a": 1} "b" 3')]
    [{'a': 1}, 'b', MalformedRowError('a row must be an object and is int')]
    """
    # All at once if every line is a row, as in most files; else one by one, with the reason for
    # each that is not.
    rows = None if max(map(len, lines), default=0) > MAX_ROW_BYTES else rows_at_once(lines, data)
    return map(row_of_line, lines) if rows is None else rows


def _loads(line: bytes) -> Any:
    # With its line end, what is missing at the end of a line would be missing in the next one.
    return json.loads(line.rstrip())


def row_of_line(line: bytes, parse: Callable[[bytes], Any] = _loads) -> Any:
    """Return the object or text of a line, or the error that says why it cannot be read."""
    if len(line) > MAX_ROW_BYTES:
        line = line[: line.find(b"\n") + 1]
        if not line:
            return oversized()
    try:
        value = parse(line)
    except (ValueError, RecursionError) as error:
        return MalformedRowError(f"{unreadable(error)}{_hint_of_whole(line)}")
    if not isinstance(value, (dict, str)):
        return MalformedRowError(
            f"a row must be an object and is {type(value).__name__}{_hint_of_whole(line)}"
        )
    if isinstance(value, dict):
        # A parser keeps the last of two equal keys.
        names = [name for name, mark in _COLUMNS.items() if name in value and line.count(mark) > 1]
        keys = [key for key, _ in json.loads(line, object_pairs_hook=list)] if names else []
        for name in names:
            if keys.count(name) > 1:
                return MalformedRowError(f"it has {name!r} twice: one of them would be lost")
    return value


def unreadable(error: Exception) -> MalformedRowError:
    """Return the error of text that a parser of JSON refused: what is wrong, and where in it."""
    if isinstance(error, UnicodeDecodeError):
        return MalformedRowError(f"invalid UTF-8 at byte {error.start} ({error.reason})")
    if isinstance(error, json.JSONDecodeError):
        line = f"line {error.lineno}, " if error.lineno > 1 else ""
        return MalformedRowError(f"not JSON: {error.msg} at {line}column {error.colno}")
    # A number of thousands of digits is a ``ValueError``.
    reason = "nested too deeply" if isinstance(error, RecursionError) else error
    return MalformedRowError(f"not readable as JSON: {reason}")


def _hint_of_whole(line: bytes) -> str:
    """Say what other JSON the file seems to be, judged by a line that is not a row; empty if
    unknown.
    """
    text = line.strip()
    if text.startswith(b"[") and text[1:].lstrip()[:1] in (b"", b"{"):
        return ": it looks like a JSON array: give the file a name that ends in .json"
    return (
        ": it looks like one JSON object on several lines: each row must be one line"
        if text == b"{"
        else ""
    )


def object_of(data: bytes) -> dict[str, Any]:
    """Return the object that a whole file of JSON holds.

    Raises:
        MalformedRowError: it holds none, or is longer than a row may be.
    """
    if len(data) > MAX_ROW_BYTES:
        raise oversized()
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise unreadable(error) from error
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
        raise unreadable(error) from error


def rows_at_once(lines: Sequence[bytes], data: bytes) -> list[Any] | None:
    """Return the objects and texts of lines; None without the fast parser, or if a line is anything
    else.

    >>> rows_at_once([b'{"a": 1}', b"[]"], b'{"a": 1}[]') is None
    True
    """
    library = fast_json_library()
    if library is None or _LONG_NUMBER in data.translate(_DIGITS):
        return None
    try:
        rows = [
            *map(library.loads, map(bytes.rstrip, lines))
        ]  # blank lines after one would be copied
    except ValueError:
        return None
    if not set(map(type, rows)) <= _ROW_TYPES:
        return None
    # A parser keeps the last of two equal keys: counting finds them here, and the rows are then
    # checked line by line.
    objects = [row for row in rows if type(row) is dict]
    names = [name for name in _COLUMNS if objects and name in objects[0]]
    is_repeated = any(
        data.count(_COLUMNS[name]) > sum(name in row for row in objects) for name in names
    )
    return None if is_repeated else rows


_CHUNK = 1 << 20
_SPACE = " \t\n\r"

_LONGEST_LITERAL = 16
"""Number of characters: an error this close to the end of the window may only mean that more has to
be read.
"""


def array_elements(source: IO[bytes], title: str) -> Iterator[Any]:
    """Decode a file that holds one JSON array.

    Args:
        source: open for reading; UTF-8, or UTF-16 or UTF-32 as JSON allows.
        title: of the file, for messages.

    Raises:
        SourceError: it is not an array.
        BadSampleError: it is not JSON, or an element exceeds ``MAX_ROW_BYTES``; names the row.

    >>> import io
    >>> list(array_elements(io.BytesIO(b'[{"text": "a"}, 2]'), "a.json"))
    [{'text': 'a'}, 2]
    """
    decode = json.JSONDecoder().raw_decode
    data = source.read(_CHUNK)
    decoder = codecs.getincrementaldecoder(json.detect_encoding(data))("surrogatepass")
    text, position, row = "", 0, 0  # a window of the decoded file, from a position on
    line, line_start = 1, 0  # of the window's first character; its start, relative to the window

    def start_of_line(at: int) -> int:
        return text.rfind("\n", 0, at) + 1 or line_start

    def fault(reason: object, at: int | None = None) -> BadSampleError:
        """Return the error of the row; with line and column if a character of the window is
        known.
        """
        where = f"{title}: row {row}"
        if at is not None:
            reason = f"not JSON: {reason} at column {at - start_of_line(at) + 1}"
            at_line = line + text.count("\n", 0, at)
            where = f"{title}:{at_line}"
        return BadSampleError(str(reason), sample_id=row, where=where)

    def read_more() -> bool:
        """Advance the window: drop the text before the position, double the rest; false at the
        end.
        """
        nonlocal text, position, data, line, line_start
        line += text.count("\n", 0, position)
        line_start = start_of_line(position) - position
        try:
            text, position = text[position:] + decoder.decode(data, final=not data), 0
        except UnicodeDecodeError as error:
            num_valid = len(data) - len(error.object) + error.start
            if num_valid <= 0:
                raise fault(f"invalid UTF-8 ({error.reason})") from error
            # Rows before the invalid bytes come first; the next window begins with these.
            text, position = text[position:] + decoder.decode(data[:num_valid]), 0
            data = data[num_valid:]
            return True
        has_read = bool(data)
        data = source.read(max(_CHUNK, len(text)))
        return has_read

    def next_character() -> str:
        """Skip white space and return the next character; empty at the end of the file."""
        nonlocal position
        while True:
            while position < len(text) and text[position] in _SPACE:
                position += 1
            if position < len(text) or not read_more():
                return text[position : position + 1]

    if next_character() != "[":
        raise SourceError(f"{title} must hold a JSON array of rows")
    position += 1
    mark = next_character()
    # The window is at the first character of an element, or at the bracket after the last.
    while mark != "]":
        is_end = is_whole = False
        while not is_whole:
            try:
                value, end = decode(text, position)
                # A number may continue after the window: "1" of "1.5" is a number too.
                is_whole = is_end or not isinstance(value, (int, float)) or len(text) - end > 4
            except json.JSONDecodeError as error:
                # Truncated text and wrong text give the same errors: only an error well before the
                # window's end is certain.
                is_certain = not error.msg.startswith("Unterminated string") and (
                    len(text[error.pos :].strip()) > _LONGEST_LITERAL
                )
                if is_certain or is_end:
                    raise fault(error.msg, error.pos) from error
                if len(text) - position > MAX_ROW_BYTES:
                    raise fault(oversized()) from error
            except (RecursionError, ValueError) as error:
                raise fault(unreadable(error)) from error
            is_end = not is_whole and not read_more()
        position = end
        yield value
        row += 1
        mark = next_character()
        if mark not in ("]", ","):
            raise fault("Expecting ',' delimiter", position)
        if mark == ",":
            position += 1
            next_character()
    position += 1
    if next_character():
        raise fault("Extra data", position)

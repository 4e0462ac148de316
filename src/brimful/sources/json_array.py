"""The elements of a JSON array one by one, in the memory of one of them."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import IO, Any

from brimful.errors import BadSampleError, SourceError
from brimful.sources.rows import MAX_ROW_BYTES, oversized

__all__ = ["array_elements"]

_CHUNK = 1 << 20
_SPACE = re.compile(r"[ \t\n\r]*")
_BEHIND_VALUES = frozenset(",] \t\n\r")
_LONGEST_LITERAL = 16
"""An error so near the end of what was read, or nearer, may only say that there is more to read."""


def array_elements(source: IO[bytes], title: str) -> Iterator[Any]:
    """Decode a file that holds one JSON array.

    Args:
        source: open for reading; UTF-8, or UTF-16 or UTF-32 as JSON allows.
        title: of the file, for messages.

    Raises:
        SourceError: it is no array.
        BadSampleError: no JSON, or an element above ``MAX_ROW_BYTES``; names the line.

    >>> import io
    >>> list(array_elements(io.BytesIO(b'[{"text": "a"}, 2]'), "a.json"))
    [{'text': 'a'}, 2]
    """
    text = _Text(source, title)
    if text.next() != "[":
        raise SourceError(f"{title} must hold a JSON array of rows")
    text.at += 1
    number = 0
    if text.next() == "]":
        text.at += 1
    else:
        while True:
            yield text.value(number)
            number += 1
            mark = text.next()
            text.at += 1
            if mark == "]":
                break
            if mark != ",":
                text.at -= 1
                raise text.wrong("Expecting ',' delimiter", text.at, number)
    if text.next():
        raise text.wrong("Extra data", text.at, number)


class _Text:
    """A window on the decoded file: from the place ``at``, which moves on, to where reading has come."""

    def __init__(self, source: IO[bytes], title: str) -> None:
        self._source, self._title = source, title
        self._decode = json.JSONDecoder().raw_decode
        first = source.read(_CHUNK)
        self._fed = 0
        self._decoder = codecs.getincrementaldecoder(json.detect_encoding(first))("surrogatepass")
        self._text, self.at = self._decoded(first), 0
        self._lines = self._columns = 0  # passed before the window

    def _decoded(self, data: bytes) -> str:
        self._fed += len(data)
        try:
            return self._decoder.decode(data, final=not data)
        except UnicodeDecodeError as error:
            at = self._fed - len(error.object) + error.start
            raise BadSampleError(f"invalid UTF-8 at byte {at}", sample_id=0, where=self._title) from error

    def _more(self) -> bool:
        """Move the window on: drop what was passed, and read as much again as is held; false at the end."""
        data = self._source.read(max(_CHUNK, len(self._text) - self.at))
        passed, self._text, self.at = self._text[: self.at], self._text[self.at :] + self._decoded(data), 0
        newlines = passed.count("\n")
        self._lines += newlines
        self._columns = len(passed) - passed.rfind("\n") - 1 if newlines else self._columns + len(passed)
        return bool(data)

    def next(self) -> str:
        """The character behind white space; empty at the end of the file."""
        while True:
            found = _SPACE.match(self._text, self.at)
            assert found is not None
            self.at = found.end()
            if self.at < len(self._text):
                return self._text[self.at]
            if not self._more():
                return ""

    def value(self, number: int) -> Any:
        """The value that begins here; ``number``: of the element."""
        self.next()
        while True:
            try:
                value, end = self._decode(self._text, self.at)
            except json.JSONDecodeError as error:
                certain = not error.msg.startswith("Unterminated string") and (
                    len(self._text[error.pos :].strip()) > _LONGEST_LITERAL
                )
                held = len(self._text) - self.at
                if not certain and held > MAX_ROW_BYTES:
                    row = f"{self._title}: row {number}"
                    raise BadSampleError(str(oversized()), sample_id=number, where=row) from error
                if certain or not self._more():
                    raise self.wrong(error.msg, error.pos, number) from error
            except (RecursionError, ValueError) as error:  # a number of thousands of digits
                reason = f"no JSON that can be read: {error}"
                raise BadSampleError(reason, sample_id=number, where=f"{self._title}: row {number}") from error
            else:
                # A number may go on behind what was read, and end early before that: of "1.5", "1" is one too.
                rest = self._text[end : end + _LONGEST_LITERAL]
                if rest[:1] in _BEHIND_VALUES or len(rest) == _LONGEST_LITERAL or not self._more():
                    self.at = end
                    return value

    def wrong(self, message: str, at: int, number: int) -> BadSampleError:
        """No JSON at a place of the window."""
        newlines = self._text.count("\n", 0, at)
        column = at - self._text.rfind("\n", 0, at) if newlines else self._columns + at + 1
        where = f"{self._title}:{self._lines + newlines + 1}"
        return BadSampleError(f"no JSON: {message} at column {column}", sample_id=number, where=where)

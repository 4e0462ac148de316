"""The elements of a JSON array one by one, with only one of them in memory."""

import codecs
import json
import re
from collections.abc import Iterator
from typing import IO, Any

from brimful.errors import BadSampleError, SourceError
from brimful.sources.rows import MAX_ROW_BYTES, oversized

_CHUNK = 1 << 20
_SPACE = re.compile(r"[ \t\n\r]*")
_BEHIND_VALUES = frozenset(",] \t\n\r")
_LONGEST_LITERAL = 16
"""Number of characters: an error this close to the end of the window may only mean that more has to be read."""


def array_elements(source: IO[bytes], title: str) -> Iterator[Any]:
    """Decode a file that holds one JSON array.

    Args:
        source: open for reading; UTF-8, or UTF-16 or UTF-32 as JSON allows.
        title: of the file, for messages.

    Raises:
        SourceError: it is not an array.
        BadSampleError: it is not JSON, or an element exceeds ``MAX_ROW_BYTES``; names the line.

    >>> import io
    >>> list(array_elements(io.BytesIO(b'[{"text": "a"}, 2]'), "a.json"))
    [{'text': 'a'}, 2]
    """
    window = _Window(source, title)
    if window.next_character() != "[":
        raise SourceError(f"{title} must hold a JSON array of rows")
    window.position += 1
    element = 0
    mark = window.next_character()
    # The window is at the first character of an element, or at the bracket after the last.
    while mark != "]":
        yield window.value(element)
        element += 1
        mark = window.next_character()
        if mark not in ("]", ","):
            raise window.error("Expecting ',' delimiter", window.position, element)
        if mark == ",":
            window.position += 1
    window.position += 1
    if window.next_character():
        raise window.error("Extra data", window.position, element)


class _Window:
    """A part of the decoded file: from ``position``, which advances, to the last byte that was read."""

    def __init__(self, source: IO[bytes], title: str) -> None:
        self._source, self._title = source, title
        self._decode_json = json.JSONDecoder().raw_decode
        head = source.read(_CHUNK)
        self._num_bytes = 0  # read so far
        self._decoder = codecs.getincrementaldecoder(json.detect_encoding(head))("surrogatepass")
        self._text, self.position = self._decode_bytes(head), 0
        self._lines = self._columns = 0  # before the window

    def _decode_bytes(self, data: bytes) -> str:
        self._num_bytes += len(data)
        try:
            return self._decoder.decode(data, final=not data)
        except UnicodeDecodeError as error:
            # The decoder also holds the last bytes of the chunk before, if a character was cut in two.
            byte = self._num_bytes - len(error.object) + error.start
            raise BadSampleError(f"invalid UTF-8 at byte {byte}", sample_id=0, where=self._title) from error

    def _read_more(self) -> bool:
        """Advance the window: drop the text before the position, double the rest; false at the end."""
        tail = self._text[self.position :]
        data = self._source.read(max(_CHUNK, len(tail)))
        text = tail + self._decode_bytes(data)
        # Line and column of the window's first character, for messages.
        newlines = self._text.count("\n", 0, self.position)
        if newlines:
            self._columns = self.position - self._text.rfind("\n", 0, self.position) - 1
        else:
            self._columns += self.position
        self._lines += newlines
        self._text, self.position = text, 0
        return bool(data)

    def next_character(self) -> str:
        """Skip white space and return the next character; empty at the end of the file."""
        while True:
            match = _SPACE.match(self._text, self.position)
            assert match is not None
            self.position = match.end()
            if self.position < len(self._text):
                return self._text[self.position]
            if not self._read_more():
                return ""

    def value(self, element: int) -> Any:
        """Decode the value that begins here and move past it; ``element``: its index in the array."""
        self.next_character()
        row = f"{self._title}: row {element}"
        while True:
            try:
                value, end = self._decode_json(self._text, self.position)
            except json.JSONDecodeError as error:
                # Truncated text and wrong text give the same errors: only an error well before the window's end is
                # certain.
                is_certain = not error.msg.startswith("Unterminated string") and (
                    len(self._text[error.pos :].strip()) > _LONGEST_LITERAL
                )
                if not is_certain and len(self._text) - self.position > MAX_ROW_BYTES:
                    raise BadSampleError(str(oversized()), sample_id=element, where=row) from error
                # Located before the window moves, since error positions are relative to it.
                wrong_text = self.error(error.msg, error.pos, element)
                if is_certain or not self._read_more():
                    raise wrong_text from error
            except (RecursionError, ValueError) as error:  # a number of thousands of digits
                reason = f"not readable as JSON: {error}"
                raise BadSampleError(reason, sample_id=element, where=row) from error
            else:
                # A number may continue after the window and seem complete within it: "1" of "1.5" is a number too.
                lookahead = self._text[end : end + _LONGEST_LITERAL]
                if lookahead[:1] in _BEHIND_VALUES or len(lookahead) == _LONGEST_LITERAL or not self._read_more():
                    self.position = end
                    return value

    def error(self, message: str, position: int, element: int) -> BadSampleError:
        """Return the error of text that is not JSON at a position of the window."""
        newlines = self._text.count("\n", 0, position)
        column = position - self._text.rfind("\n", 0, position) if newlines else self._columns + position + 1
        place = f"{self._title}:{self._lines + newlines + 1}"
        return BadSampleError(f"not JSON: {message} at column {column}", sample_id=element, where=place)

"""Other files of lines: texts, and copies of JSON arrays with a line for each element."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from brimful.sources.json_rows import row_of_line
from brimful.sources.lines import JsonLines, Lines
from brimful.sources.rows import Rows


class JsonArray(JsonLines):
    """The elements of a JSON array, from a copy with one line for each."""

    def where(self, index: int) -> str:
        return Rows.where(self, index)


class TextLines(Lines):
    """One text a line; blank lines are skipped."""

    unit = "one document a line"

    def _rows_of(self, lines: Sequence[bytes], data: bytes) -> Iterable[Any]:
        return (row_of_line(line, _text_of) for line in lines)


def _text_of(line: bytes) -> str:
    return line.rstrip(b"\r\n").decode("utf-8")

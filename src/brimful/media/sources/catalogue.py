"""Catalogues of rows whose texts are in many small files or between media: pairs of files, tars.

A *catalogue* is a copy with one line for each row in a fixed order, an object with the ``name`` of
the row in its storage, and ``row``, or ``error`` if it cannot be read. Media stay where they are.
The line also holds their names and sizes, so that they belong to the fingerprint of the rows. The
bytes of media do not: opening a data set does not read them.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from brimful.base.checks import MalformedRowError
from brimful.sources.lines import JsonLines


def line_of(entry: Mapping[str, Any]) -> bytes:
    """Return the line of an entry of a catalogue."""
    return json.dumps(entry, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"


def shown(name: str) -> str:
    """Return a name as messages show it: names are data and may contain line breaks.

    >>> shown("a: b.jpg"), shown("a" + chr(10) + "b.jpg")
    ('a: b.jpg', "'a\\\\nb.jpg'")
    """
    return name if name.isprintable() else repr(name)


class CatalogueRows(JsonLines):
    """Rows of a catalogue."""

    separator = "/"
    """Text between the title and the name of a row, in messages."""

    def _rows_of(self, lines: Sequence[bytes], data: bytes) -> Iterable[Any]:
        for entry in super()._rows_of(lines, data):
            if isinstance(entry, MalformedRowError):
                yield entry
            else:
                yield MalformedRowError(entry["error"]) if "error" in entry else self.row_of(entry)

    def row_of(self, entry: Mapping[str, Any]) -> Any:
        """Return the row of an entry that has one."""
        return entry["row"]

    def where(self, index: int) -> str:
        start, *ends = self._index.starts[index : index + 2].tolist()
        entry = json.loads(
            self._bytes(start, (ends[0] if ends else self._index.stamp.size) - start)
        )
        return f"{self.title}{self.separator}{shown(entry['name'])}"

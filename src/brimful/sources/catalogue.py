"""Rows whose texts are in many small files or between media, as in pairs of files and in tars.

Their texts are copied into the cache once, one line for each row in a fixed order. Index, blocks, appended rows,
pickling and constant memory then work as for JSON lines. Media stay where they are. A line is an object: ``name`` of
the row in its storage, and ``row``, or ``error`` if it cannot be read. The line also holds the names and sizes of its
media, so that they belong to the fingerprint of the rows. The bytes of media do not: opening a data set does not read
them.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from brimful.sources.lines import JsonLines
from brimful.sources.media_places import MEDIA_COLUMNS, is_media_part, media_keys
from brimful.sources.sample import MalformedRowError

_TURNS = ("messages", "conversations", "prompt", "completion")
"""Columns of turns, whose contents may hold parts that are media."""


def line_of(entry: Mapping[str, Any]) -> bytes:
    """Return the line of an entry of a catalogue."""
    return json.dumps(entry, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"


def shown(name: str) -> str:
    """Return a name as messages show it: names are data and may contain line breaks.

    >>> shown("a: b.jpg"), shown("a" + chr(10) + "b.jpg")
    ('a: b.jpg', "'a\\\\nb.jpg'")
    """
    return name if name.isprintable() else repr(name)


def media_values(row: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the values of a row that name or hold media, from columns and from parts of its messages."""
    values: list[Any] = []
    map_media(row, values.append)
    yield from values


def has_media_of_its_own(row: Mapping[str, Any]) -> bool:
    """Return true if a row itself says which media it has, even if it says that it has none.

    >>> has_media_of_its_own({"messages": [], "images": []}), has_media_of_its_own({"messages": [], "image": None})
    (True, False)
    """
    columns = (value for name, value in row.items() if name in MEDIA_COLUMNS)
    return any(value is not None and value != "" for value in columns) or any(True for _ in media_values(row))


def map_media(row: Mapping[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """Return a row with every value that names or holds a medium changed, in columns and in parts of messages."""
    result = dict(row)
    for name, value in row.items():
        if name in MEDIA_COLUMNS and value not in (None, "", []):
            result[name] = [change(item) for item in value] if isinstance(value, list) else change(value)
        elif name in _TURNS and isinstance(value, list):
            result[name] = [_with_parts(turn, change) for turn in value]
    return result


def _with_parts(turn: Any, change: Callable[[Any], Any]) -> Any:
    """Return a turn with the media of its parts changed."""
    if not isinstance(turn, Mapping) or not isinstance(turn.get("content"), list):
        return turn
    parts = []
    for part in turn["content"]:
        if is_media_part(part):
            part = {**part, **{key: change(part[key]) for key in media_keys(part) if part[key] is not None}}
        parts.append(part)
    return {**turn, "content": parts}


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
        entry = json.loads(self._bytes(start, (ends[0] if ends else self._index.size) - start))
        return f"{self.title}{self.separator}{shown(entry['name'])}"

"""An audio clip and the words spoken in it."""

from collections.abc import Mapping
from typing import Any

from brimful.media import MediaKind
from brimful.sources.formats.row_format import RowFormat
from brimful.sources.media_places import MEDIA_COLUMNS
from brimful.sources.sample import MalformedRowError, exchange

_NAMES = ("transcript", "transcription", "sentence", "text")


class Transcript(RowFormat):
    """``{"audio": …, "transcript": …}``; the words may also be under ``transcription``, ``sentence`` or ``text``.

    The user asks for the words, the transcript is the answer.

    >>> Transcript().convert({"audio": "a.flac", "text": "Hello."})["messages"][1]["content"]
    'Hello.'
    """

    name = "transcript"
    default_fields = {name: name for name in _NAMES}
    required_fields = ("transcript",)
    default_prompt = "Write down what is said."
    puts_media_first = True

    def matches(self, row: Any) -> bool:
        if not isinstance(row, Mapping) or not any(self.fields[name] in row for name in _NAMES):
            return False
        return any(MEDIA_COLUMNS.get(column) is MediaKind.AUDIO and value for column, value in row.items())

    def convert(self, row: Mapping[str, Any]) -> dict[str, Any]:
        names = [name for name in _NAMES if self.optional(row, name)]
        if not names:
            key = next((self.fields[name] for name in _NAMES if self.fields[name] in row), self.fields["transcript"])
            raise MalformedRowError(f"{key!r} is empty" if key in row else f"field {key!r} is missing")
        if len(names) > 1:
            keys = ", ".join(repr(self.fields[name]) for name in names)
            raise MalformedRowError(f"it has several transcripts ({keys}): keep one of them")
        answer = self.text(row, names[0])
        return {"messages": exchange(self.prompt or self.default_prompt, answer)}

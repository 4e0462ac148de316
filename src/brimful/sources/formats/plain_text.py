"""A document as one text."""

from collections.abc import Mapping
from typing import Any

from brimful.sources.formats.row_format import RowFormat
from brimful.sources.sample import MalformedRowError


class Text(RowFormat):
    """``{"text": …}`` or a bare string.

    >>> Text().convert({"text": "Once upon a time"})
    {'text': 'Once upon a time'}
    """

    name = "text"
    default_fields = {"text": "text"}
    required_fields = ("text",)
    synonyms = {"text": ("text", "content", "document", "body", "article")}

    def matches(self, row: Any) -> bool:
        return isinstance(row, str) or super().matches(row)

    def convert(self, row: Mapping[str, Any] | str) -> dict[str, Any]:
        text = row if isinstance(row, str) else self.text(row, "text")
        if not text:
            raise MalformedRowError(f"{self.fields['text']!r} is empty: a document needs at least one character")
        return {"text": text}

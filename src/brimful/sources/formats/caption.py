"""A medium and its captions."""

from collections.abc import Mapping
from typing import Any

from brimful.sources.formats.conversation import preview
from brimful.sources.formats.row_format import RowFormat
from brimful.sources.media_places import MARK, MEDIA_COLUMNS
from brimful.sources.sample import MalformedRowError, Message, exchange

_FIRST = "Describe this {kind}."
_FURTHER = "Describe it in other words."
_DEFAULT_KIND = "image"


class Caption(RowFormat):
    """``{"image": …, "caption": …}``, or ``"captions": [ … ]`` with several of them.

    One row is one sample. The user asks for a description, the caption is the answer; further captions of a medium
    become further turns of the same chat, so that the medium costs its tokens only once. A caption is a text or
    ``{"content": text}``.

    >>> row = {"image": "a.jpg", "captions": ["A cat.", {"content": "A cat on a mat."}]}
    >>> [message["content"] for message in Caption().convert(row)["messages"]]
    ['Describe this image.', 'A cat.', 'Describe it in other words.', 'A cat on a mat.']
    """

    name = "caption"
    default_fields = {"caption": "caption", "captions": "captions", "prompt": "prompt"}
    required_fields = ("caption",)
    default_prompt = _FIRST
    puts_media_first = True

    def matches(self, row: Any) -> bool:
        if not isinstance(row, Mapping) or isinstance(row.get(self.fields["prompt"]), list) or "prompts" in row:
            return False  # a pack of several samples also has a list of prompts
        return any(self.fields[name] in row for name in ("caption", "captions"))

    def convert(self, row: Mapping[str, Any]) -> dict[str, Any]:
        captions = self._captions(row)
        asked = self.optional(row, "prompt")
        prompt = self.text(row, "prompt") if asked else self.prompt
        kind = next((MEDIA_COLUMNS[column].value for column in row if column in MEDIA_COLUMNS and row[column]), None)
        first, further = prompt or _FIRST.format(kind=kind or _DEFAULT_KIND), _FURTHER
        if prompt:
            # The medium belongs to the first turn only, wherever the prompt marks it.
            further = MARK.sub("", prompt).strip()
        messages: list[Message] = []
        for text, caption in zip([first, *[further] * (len(captions) - 1)], captions, strict=True):
            messages += exchange(text, caption)
        return {"messages": messages}

    def _captions(self, row: Mapping[str, Any]) -> list[str]:
        """Return the captions of a row, at least one."""
        single, several = self.optional(row, "caption"), self.optional(row, "captions")
        if single and several:
            raise MalformedRowError(
                f"it has {self.fields['caption']!r} and {self.fields['captions']!r}: keep one of them"
            )
        name = self.fields["captions" if several else "caption"]
        values = several if isinstance(several, list) and several else [several or single]
        captions = [value.get("content") if isinstance(value, Mapping) else value for value in values]
        for value, caption in zip(values, captions, strict=True):
            if not isinstance(caption, str) or not caption.strip():
                raise MalformedRowError(f"{name!r} must hold texts and holds {preview(value)}")
        return captions  # type: ignore[return-value]

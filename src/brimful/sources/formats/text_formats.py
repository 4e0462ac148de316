"""Formats of rows that are no chats: texts, tokens, captions of images."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from brimful.base.tokenized import TARGET_MASKS, read_tokenized
from brimful.base.typing import IGNORE_INDEX
from brimful.errors import CollateError
from brimful.sources.formats.conversation import preview
from brimful.sources.formats.row_format import RowFormat
from brimful.sources.media_places import MARK, MEDIA_COLUMNS
from brimful.sources.sample import MalformedRowError, Message, exchange


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


_NAMES = ("input_ids", "labels", "attention_mask", *TARGET_MASKS, "position_ids", "seq_lengths")


class Tokens(RowFormat):
    """``{"input_ids": [ … ], "labels": [ … ]}``, as tokenizing scripts write them (``brimful.base.tokenized``).

    Targets are the labels other than -100, or the tokens that a mask marks, or else all tokens. Padding that an
    ``attention_mask`` marks is cut off. A row that holds several samples is refused: packs are made of samples.

    >>> Tokens().convert({"input_ids": [5, 6, 7, 0], "labels": [-100, 6, 7, -100], "attention_mask": [1, 1, 1, 0]})
    {'input_ids': [5, 6, 7], 'labels': [-100, 6, 7]}
    """

    name = "tokens"
    default_fields = {name: name for name in _NAMES}
    required_fields = ("input_ids",)

    def convert(self, row: Mapping[str, Any]) -> dict[str, Any]:
        self.get(row, "input_ids")
        columns = {name: value for name in self.fields if (value := self.optional(row, name)) is not None}
        try:
            tokens = read_tokenized(columns, "the row")
        except CollateError as error:
            raise MalformedRowError(error.message) from error
        num_samples = len(tokens.cu_seqlens) - 1
        if num_samples > 1:
            raise MalformedRowError(f"the row is already a pack of {num_samples} samples: give one sample a row")
        ids = tokens.input_ids.tolist()
        if min(ids) < 0:
            raise MalformedRowError(f"the row has {min(ids)} in {self.fields['input_ids']!r}, which is not a token id")
        labels = np.where(tokens.loss_mask, tokens.input_ids, IGNORE_INDEX)
        return {"input_ids": ids, "labels": labels.tolist()}


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

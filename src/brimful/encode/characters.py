"""From characters of a text to the tokens that hold them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["AlignedText", "PrefixAlignedText"]


@dataclass(frozen=True, slots=True)
class PrefixAlignedText:
    """A text and its tokens, aligned by tokenising prefixes: for tokenizers written in Python, which give no offsets.

    Attributes:
        text: the characters.
        ids: token ids of the text.
        count_tokens: number of tokens of any text.
    """

    text: str
    ids: Sequence[int]
    count_tokens: Callable[[str], int]

    def first_token(self, position: int) -> int:
        """Return the index of the first token that holds the character at ``position`` or one behind it."""
        return min(self.count_tokens(self.text[:position]), len(self.ids))

    def token_run(self, start: int, end: int) -> tuple[int, int]:
        """Return the run of tokens ``[first, last)`` that hold the characters ``[start, end)``."""
        return self.first_token(start), self.first_token(end)


@dataclass(frozen=True, slots=True)
class AlignedText:
    """A text and its tokens, aligned by the character offsets of a ``tokenizers.Encoding``.

    Attributes:
        text: the characters.
        ids: token ids of the text.
        encoding: of ``tokenizers``, with its offsets.
    """

    text: str
    ids: Sequence[int]
    encoding: Any

    def first_token(self, position: int) -> int:
        """Return the index of the first token that holds the character at ``position`` or one behind it."""
        for character in range(position, len(self.text)):
            token = self.encoding.char_to_token(character)
            if token is not None:
                return int(token)
        return len(self.ids)

    def token_run(self, start: int, end: int) -> tuple[int, int]:
        """Return the run of tokens ``[first, last)`` that hold the characters ``[start, end)``.

        A token that also holds characters behind the end belongs to the run, as in Transformers; so do all tokens of a
        last character that takes several.
        """
        first, last = self.first_token(start), self.first_token(end)
        for position in range(end - 1, start - 1, -1):
            token = self.encoding.char_to_token(position)
            if token is not None:
                return first, max(last, int(token) + 1)
        return first, last

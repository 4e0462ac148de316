"""From characters of a text to the tokens that hold them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class AlignedText:
    """A text and its tokens, of which each character can be looked up.

    Attributes:
        text: the characters.
        ids: token ids of the text.
        encoding: of ``tokenizers``, with its offsets; None for a tokenizer written in Python, which has none. Then the
            tokens of a prefix are counted.
        count_tokens: number of tokens of any text.
    """

    text: str
    ids: Sequence[int]
    encoding: Any | None
    count_tokens: Callable[[str], int]

    def first_token(self, position: int) -> int:
        """Return the index of the first token that holds the character at ``position`` or one behind it."""
        if self.encoding is None:
            return min(self.count_tokens(self.text[:position]), len(self.ids))
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
        if self.encoding is not None:
            # Backwards, because characters such as normalised blanks have no token of their own.
            for position in range(end - 1, start - 1, -1):
                token = self.encoding.char_to_token(position)
                if token is not None:
                    return first, max(last, int(token) + 1)
        return first, last

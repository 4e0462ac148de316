"""From characters of a text to the tokens that hold them."""

from __future__ import annotations

from typing import Any

__all__ = ["tokens_of"]


def tokens_of(encoding: Any, start: int, end: int, text: str, length: int) -> tuple[int, int]:
    """The run of tokens that hold the characters ``[start, end)``.

    A token that also holds characters behind the end belongs to the run, as in Transformers; so do all tokens of a
    last character that takes several.

    Args:
        encoding: of ``tokenizers``, with its offsets.
        length: tokens of the encoding.
    """
    first = _token_at(encoding, start, text, length)
    last = _token_at(encoding, end, text, length)
    for position in range(end - 1, start - 1, -1):
        token = encoding.char_to_token(position)
        if token is not None:
            return first, max(last, int(token) + 1)
    return first, last


def _token_at(encoding: Any, position: int, text: str, length: int) -> int:
    """The first token that holds the character at ``position`` or one behind it."""
    while position < len(text):
        token = encoding.char_to_token(position)
        if token is not None:
            return int(token)
        position += 1
    return length

"""Tokens of several texts, spans of their characters, and the run of tokens that holds such a
span.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from brimful.base.ragged import offsets_of
from brimful.base.tables import Ragged
from brimful.base.typing import BoolArray, Int64Array

Span: TypeAlias = tuple[int, int]
"""Characters ``[start, end)`` of a text."""


class TextSpans(NamedTuple):
    """Spans in several texts, in any order.

    Attributes:
        rows: index of the text of each span, ``int64[num_spans]``.
        starts: its first character.
        ends: the character after its last.

    >>> TextSpans.of_lists({2: [(0, 3), (5, 9)]}).rows.tolist()
    [2, 2]
    """

    rows: Int64Array
    starts: Int64Array
    ends: Int64Array

    @classmethod
    def of_lists(cls, spans: Mapping[int, Sequence[Span]]) -> TextSpans:
        """Return the spans of texts, each list under the index of its text."""
        num_spans = np.fromiter(map(len, spans.values()), dtype=np.int64)
        rows = np.repeat(np.fromiter(spans, dtype=np.int64), num_spans)
        edges = np.fromiter(
            chain.from_iterable(chain.from_iterable(spans.values())), dtype=np.int64
        )
        return cls(rows, edges[::2], edges[1::2])

    @classmethod
    def joined(cls, pieces: Sequence[TextSpans]) -> TextSpans:
        """Return the spans of several parts of a batch together."""
        return cls(*(np.concatenate(columns) for columns in zip(*pieces, strict=True)))


_PRINTABLE = [
    *range(ord("!"), ord("~") + 1),
    *range(ord("¡"), ord("¬") + 1),
    *range(ord("®"), ord("ÿ") + 1),
]
_ALPHABET = frozenset(map(chr, _PRINTABLE)) | frozenset(
    chr(256 + rank) for rank in range(256 - len(_PRINTABLE))
)
"""Characters that represent the 256 bytes: printable bytes as themselves, the others from 256
on.
"""


@dataclass(frozen=True)
class TokenBytes:
    """Sizes of tokens.

    Attributes:
        num_bytes: ``int64[vocab_size]``, bytes of each token.
        form: Unicode form to which texts are normalized first (``NFC``), or None.
    """

    num_bytes: Int64Array
    form: str | None

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> TokenBytes | None:
        """Return the sizes for the state of a tokenizer (its ``tokenizer.json``); None if it is not
        byte-level.
        """
        normalizer = state.get("normalizer")
        form = None if normalizer is None else normalizer.get("type")
        vocabulary = state["model"].get("vocab")
        if form not in (None, "NFC") or not isinstance(vocabulary, dict):
            return None
        if not any(
            step["type"] == "ByteLevel" and not step.get("add_prefix_space")
            for step in _steps(state, "pre_tokenizer")
        ):
            return None
        # Tokens whose ranges leave out the spaces around them would not be contiguous.
        if any(
            step["type"] == "ByteLevel" and step.get("trim_offsets", True)
            for step in _steps(state, "post_processor")
        ):
            return None
        if not all(_ALPHABET.issuperset(token) for token in vocabulary):
            return None
        added_tokens = {token["id"]: token["content"] for token in state.get("added_tokens", ())}
        size = 1 + max([*vocabulary.values(), *added_tokens], default=0)
        num_bytes = np.zeros(size, dtype=np.int64)
        num_bytes[list(vocabulary.values())] = [len(token) for token in vocabulary]
        # An added token represents its own text, which is split off before bytes are considered.
        for token_id, content in added_tokens.items():
            num_bytes[token_id] = len(content.encode())
        return cls(num_bytes, form)

    def keeps(self, texts: Sequence[str], is_ascii: BoolArray) -> BoolArray:
        """Return true for each text that already has the Unicode form, as ASCII texts do."""
        form: Any = self.form
        if form is None:
            return np.ones(len(texts), dtype=bool)
        is_kept = is_ascii.copy()
        for row in np.flatnonzero(~is_ascii).tolist():
            is_kept[row] = unicodedata.is_normalized(form, texts[row])
        return is_kept


def _steps(state: Mapping[str, Any], section: str) -> Sequence[Mapping[str, Any]]:
    """Return the steps of a part of the tokenizer, which is one step or a sequence of steps."""
    steps = state.get(section)
    if steps is None:
        return []
    inner: Sequence[Mapping[str, Any]] = (
        steps.get("pretokenizers") or steps.get("processors") or [steps]
    )
    return inner


def runs_by_offsets(
    texts: Sequence[str], ids: Ragged, spans: TextSpans, encodings: Sequence[Any]
) -> tuple[Int64Array, Int64Array]:
    """Return the first token of each span and the token after its last, by the offsets of
    ``encodings`` of the ``tokenizers`` library.
    """

    def first_token(row: int, positions: Iterable[int], default: int) -> int:
        # Some characters, such as normalized spaces, have no token of their own: the next one that
        # has any counts.
        tokens = map(encodings[row].char_to_token, positions)
        return next((int(token) for token in tokens if token is not None), default)

    runs = np.zeros((2, len(spans.rows)), dtype=np.int64)
    for index, (row, start, end) in enumerate(zip(*map(np.ndarray.tolist, spans), strict=True)):
        num_characters, num_tokens = len(texts[row]), len(ids.row(row))
        first, last = (
            first_token(row, range(edge, num_characters), num_tokens) for edge in (start, end)
        )
        runs[:, index] = first, max(last, first_token(row, range(end - 1, start - 1, -1), -1) + 1)
    return runs[0], runs[1]


def runs_by_counts(
    texts: Sequence[str], ids: Ragged, spans: TextSpans, count_tokens: Callable[[str], int]
) -> tuple[Int64Array, Int64Array]:
    """Return the same for a tokenizer without offsets, by the number of tokens of the text before a
    character.
    """
    runs = np.zeros((2, len(spans.rows)), dtype=np.int64)
    for index, (row, *edges) in enumerate(zip(*map(np.ndarray.tolist, spans), strict=True)):
        num_tokens = len(ids.row(row))
        runs[:, index] = [min(count_tokens(texts[row][:edge]), num_tokens) for edge in edges]
    return runs[0], runs[1]


def runs_by_bytes(
    texts: Sequence[str], ids: Ragged, sizes: TokenBytes, spans: TextSpans
) -> tuple[Int64Array, Int64Array, BoolArray]:
    """Return the same for a byte-level vocabulary, by the number of bytes of each token; and false
    for each span that has to be found in another way.

    Tokens of byte-level BPE spell their text byte for byte, so the running sum of their sizes is
    the place of each in the text. A text that the tokenizer changes first (a decomposed accent, for
    example) has other bytes than its tokens.
    """
    rows, starts, ends = spans
    # Ids come from the vocabulary, so their range needs no check. The texts are concatenated.
    offsets = offsets_of(sizes.num_bytes.take(ids.values, mode="clip"))
    text_starts, num_tokens = offsets[ids.offsets[:-1]], np.diff(ids.offsets)
    is_ascii = np.fromiter(map(str.isascii, texts), dtype=bool, count=len(texts))
    num_bytes = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
    # In a text of pure ASCII each character is one byte.
    first_bytes = {row: _first_bytes(texts[row]) for row in np.flatnonzero(~is_ascii).tolist()}
    for row, byte_offsets in first_bytes.items():
        num_bytes[row] = byte_offsets[-1]
    has_all_bytes = offsets[ids.offsets[1:]] - text_starts == num_bytes

    def holders(positions: Int64Array) -> Int64Array:
        """Return the first token that holds each character; after the last one, the number of
        tokens.
        """
        byte_offsets = positions.copy()
        for row, bytes_of_row in first_bytes.items():
            is_own = rows == row
            byte_offsets[is_own] = bytes_of_row[positions[is_own]]
        byte_offsets += text_starts[rows]
        tokens = np.searchsorted(offsets[1:], byte_offsets, side="right") - ids.offsets[rows]
        # After the end of a text the next text begins.
        tokens_of_text: Int64Array = np.minimum(tokens, num_tokens[rows])
        return tokens_of_text

    lasts = holders(ends)
    # A token that holds the last character may hold the next one too.
    last_holders = holders(np.maximum(ends - 1, 0)) + 1
    lasts = np.where(ends > starts, np.maximum(lasts, last_holders), lasts)
    return holders(starts), lasts, (sizes.keeps(texts, is_ascii) & has_all_bytes)[rows]


def _first_bytes(text: str) -> Int64Array:
    """Return the place of each character, and of the end, in the UTF-8 bytes of a text.

    >>> _first_bytes("aé漢!").tolist()
    [0, 1, 3, 6, 7]
    """
    # Lone surrogates were refused earlier, so every character has a UTF-8 encoding.
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    return offsets_of(
        1
        + (codes > 0x7F).view(np.int8)
        + (codes > 0x7FF).view(np.int8)
        + (codes > 0xFFFF).view(np.int8)
    )

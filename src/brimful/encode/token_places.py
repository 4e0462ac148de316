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
from brimful.base.typing import AnyIntArray, BoolArray, Int64Array

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
    def joined(cls, parts: Sequence[TextSpans]) -> TextSpans:
        """Return the spans of several parts of a batch together."""
        return cls(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


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


def _steps(state: Mapping[str, Any], part: str) -> Sequence[Mapping[str, Any]]:
    """Return the steps of a part of the tokenizer, which is one step or a sequence of steps."""
    steps = state.get(part)
    if steps is None:
        return []
    inner: Sequence[Mapping[str, Any]] = (
        steps.get("pretokenizers") or steps.get("processors") or [steps]
    )
    return inner


class AlignedTexts:
    """Token ids of several texts, and the run of tokens that holds a range of their characters.

    Args:
        ids: ``int32``; row ``i`` holds the tokens of text ``i``.
        find: returns one run for a text and its characters, as ``runs`` does.
    """

    def __init__(self, ids: Ragged, find: Callable[[int, int, int], tuple[int, int]]) -> None:
        self.ids, self._find = ids, find

    def runs(
        self, rows: AnyIntArray, starts: AnyIntArray, ends: AnyIntArray
    ) -> tuple[Int64Array, Int64Array]:
        """Return the runs of tokens ``[first, last)`` that hold the characters ``[start, end)`` of
        texts.

        A token that also holds characters after the end belongs to the run, as in Transformers; so
        do all tokens of a last character that takes several.

        Args:
            rows: index of each text, ``int[num_runs]``.
            starts: first character.
            ends: character after the last.

        Returns:
            First tokens, and tokens after the last, counted from the first token of the text:
                ``int64[num_runs]`` each.
        """
        pairs = [
            self._find(*run)
            for run in zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True)
        ]
        array = np.array(pairs, dtype=np.int64).reshape(-1, 2)
        return array[:, 0], array[:, 1]


def aligned_by_offsets(ids: Ragged, texts: Sequence[str], encodings: Sequence[Any]) -> AlignedTexts:
    """Align tokens by the offsets of ``encodings`` of the ``tokenizers`` library."""

    def first_token(row: int, positions: Iterable[int], default: int) -> int:
        # Some characters, such as normalized spaces, have no token of their own: the next one that
        # has any counts.
        tokens = map(encodings[row].char_to_token, positions)
        return next((int(token) for token in tokens if token is not None), default)

    def find(row: int, start: int, end: int) -> tuple[int, int]:
        num_characters, num_tokens = len(texts[row]), len(ids.row(row))
        first, last = (
            first_token(row, range(edge, num_characters), num_tokens) for edge in (start, end)
        )
        return first, max(last, first_token(row, range(end - 1, start - 1, -1), -1) + 1)

    return AlignedTexts(ids, find)


def aligned_by_counts(
    ids: Ragged, texts: Sequence[str], count_tokens: Callable[[str], int]
) -> AlignedTexts:
    """Align tokens of a tokenizer without offsets by the number of tokens of the text before a
    character.
    """

    def find(row: int, start: int, end: int) -> tuple[int, int]:
        first, last = (
            min(count_tokens(texts[row][:edge]), len(ids.row(row))) for edge in (start, end)
        )
        return first, last

    return AlignedTexts(ids, find)


class ByteAlignedTexts(AlignedTexts):
    """Tokens of a byte-level vocabulary, aligned by the number of bytes of each.

    Tokens of byte-level BPE spell their text byte for byte, so the running sum of their sizes is
    the place of each in the text. A text that the tokenizer changes first (a decomposed accent, for
    example) has other bytes than its tokens: the reference aligns it.

    Args:
        texts: the texts.
        ids: their tokens.
        sizes: bytes of each token of the vocabulary.
        reference: aligns a few texts with the ``tokenizers`` library.
    """

    def __init__(
        self,
        texts: Sequence[str],
        ids: Ragged,
        sizes: TokenBytes,
        reference: Callable[[Sequence[str]], AlignedTexts],
    ) -> None:
        self.ids, self._texts, self._reference = ids, texts, reference
        values = ids.values
        # Ids come from the vocabulary, so their range needs no check.
        offsets = offsets_of(sizes.num_bytes.take(values, mode="clip"))
        # End of each token in bytes; the texts are concatenated.
        self._ends = offsets[1:]
        self._text_starts = offsets[ids.offsets[:-1]]
        is_ascii = np.fromiter(map(str.isascii, texts), dtype=bool, count=len(texts))
        # In a text of pure ASCII each character is one byte.
        self._first_bytes = {
            row: _first_bytes(texts[row]) for row in np.flatnonzero(~is_ascii).tolist()
        }
        num_bytes = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
        for row, first_bytes in self._first_bytes.items():
            num_bytes[row] = first_bytes[-1]
        has_all_bytes = offsets[ids.offsets[1:]] - self._text_starts == num_bytes
        self._is_aligned: BoolArray = sizes.keeps(texts, is_ascii) & has_all_bytes

    def runs(
        self, rows: AnyIntArray, starts: AnyIntArray, ends: AnyIntArray
    ) -> tuple[Int64Array, Int64Array]:
        rows, starts, ends = (np.asarray(column, dtype=np.int64) for column in (rows, starts, ends))
        firsts, lasts = self._holders(rows, starts), self._holders(rows, ends)
        # A token that holds the last character may hold the next one too.
        is_run = ends > starts
        lasts[is_run] = np.maximum(lasts[is_run], self._holders(rows[is_run], ends[is_run] - 1) + 1)
        unaligned = np.flatnonzero(~self._is_aligned[rows])
        if len(unaligned):
            texts, own_rows = np.unique(rows[unaligned], return_inverse=True)
            reference = self._reference([self._texts[row] for row in texts.tolist()])
            firsts[unaligned], lasts[unaligned] = reference.runs(
                own_rows, starts[unaligned], ends[unaligned]
            )
        return firsts, lasts

    def _holders(self, rows: Int64Array, positions: Int64Array) -> Int64Array:
        """Return the first token that holds each character; after the last character, the number of
        tokens.
        """
        places = positions.copy()
        for row, first_bytes in self._first_bytes.items():
            is_own = rows == row
            places[is_own] = first_bytes[positions[is_own]]
        places += self._text_starts[rows]
        tokens = np.searchsorted(self._ends, places, side="right") - self.ids.offsets[rows]
        # After the end of a text the next text begins.
        holders: Int64Array = np.minimum(tokens, np.diff(self.ids.offsets)[rows])
        return holders


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

"""Bytes of each token of a byte-level vocabulary.

Byte-level BPE (Radford et al., 2019) writes each byte of a text as one character of an alphabet of 256, so that the
number of a token's characters is the number of its bytes.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from brimful.typing import BoolArray, Int64Array

_PRINTABLE = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
_ALPHABET = frozenset(map(chr, _PRINTABLE)) | frozenset(chr(256 + rank) for rank in range(256 - len(_PRINTABLE)))
"""Characters that stand for the 256 bytes: those that can be printed for themselves, the others from 256 on."""

_SPACE = "Ġ"
"""Character of the alphabet that stands for a blank."""


@dataclass(frozen=True)
class TokenBytes:
    """Sizes of tokens.

    Attributes:
        num_bytes: ``int64[vocab_size]``, bytes of each token.
        num_leading: blanks in front that its range leaves out.
        num_trailing: blanks behind.
        form: Unicode form that texts are brought into before (``NFC``), or None.
    """

    num_bytes: Int64Array
    num_leading: Int64Array
    num_trailing: Int64Array
    form: str | None

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> TokenBytes | None:
        """Return the sizes for the state of a tokenizer (its ``tokenizer.json``); None if it is not byte-level."""
        normalizer = state.get("normalizer")
        form = None if normalizer is None else normalizer.get("type")
        vocabulary = state["model"].get("vocab")
        if form not in (None, "NFC") or not isinstance(vocabulary, dict) or not _is_byte_level(state):
            return None
        if not all(_ALPHABET.issuperset(token) for token in vocabulary):
            return None
        added_tokens = {token["id"]: token["content"] for token in state.get("added_tokens", ())}
        size = 1 + max([*vocabulary.values(), *added_tokens], default=0)
        num_bytes, num_leading, num_trailing = (np.zeros(size, dtype=np.int64) for _ in range(3))
        ids = list(vocabulary.values())
        num_bytes[ids] = [len(token) for token in vocabulary]
        if _trims_offsets(state.get("post_processor")):
            num_leading[ids] = [len(token) - len(token.lstrip(_SPACE)) for token in vocabulary]
            num_trailing[ids] = [len(token) - len(token.rstrip(_SPACE)) for token in vocabulary]
        # An added token stands for its own text, which is cut out before bytes are looked at.
        for token_id, content in added_tokens.items():
            num_bytes[token_id] = len(content.encode())
            num_leading[token_id] = num_trailing[token_id] = 0
        return cls(num_bytes, num_leading, num_trailing, form)

    def keeps(self, texts: Sequence[str]) -> BoolArray:
        """Return true for each text that has the Unicode form already."""
        form: Any = self.form
        if form is None:
            return np.ones(len(texts), dtype=bool)
        return np.fromiter(
            (text.isascii() or unicodedata.is_normalized(form, text) for text in texts), dtype=bool, count=len(texts)
        )


def _is_byte_level(state: Mapping[str, Any]) -> bool:
    steps = _steps(state.get("pre_tokenizer"), "pretokenizers")
    return any(step["type"] == "ByteLevel" and not step.get("add_prefix_space") for step in steps)


def _trims_offsets(post_processor: Any) -> bool:
    steps = _steps(post_processor, "processors")
    return any(step["type"] == "ByteLevel" and step.get("trim_offsets", True) for step in steps)


def _steps(part: Any, key: str) -> Sequence[Mapping[str, Any]]:
    """Return the steps of a part of the tokenizer, which is one step or a sequence of them."""
    if part is None:
        return []
    return part[key] if part["type"] == "Sequence" else [part]

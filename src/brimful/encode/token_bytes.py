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

from brimful.base.typing import BoolArray, Int64Array

_PRINTABLE = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
_ALPHABET = frozenset(map(chr, _PRINTABLE)) | frozenset(chr(256 + rank) for rank in range(256 - len(_PRINTABLE)))
"""Characters that represent the 256 bytes: printable bytes as themselves, the others from 256 on."""


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
        """Return the sizes for the state of a tokenizer (its ``tokenizer.json``); None if it is not byte-level."""
        normalizer = state.get("normalizer")
        form = None if normalizer is None else normalizer.get("type")
        vocabulary = state["model"].get("vocab")
        if form not in (None, "NFC") or not isinstance(vocabulary, dict):
            return None
        if not any(
            step["type"] == "ByteLevel" and not step.get("add_prefix_space") for step in _steps(state, "pre_tokenizer")
        ):
            return None
        # Tokens whose ranges leave out the spaces around them would not be contiguous.
        if any(
            step["type"] == "ByteLevel" and step.get("trim_offsets", True) for step in _steps(state, "post_processor")
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
    inner: Sequence[Mapping[str, Any]] = steps.get("pretokenizers") or steps.get("processors") or [steps]
    return inner

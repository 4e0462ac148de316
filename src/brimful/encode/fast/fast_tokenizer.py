"""Tokenizing with ``fastokens``: byte-level BPE, tens of times faster than ``tokenizers``, with the same ids.

``docs/adr/0005-fast-libraries-are-checked-against-the-reference.md`` says why this library.
"""

import importlib.metadata
from collections.abc import Sequence

import numpy as np

from brimful.base.optional import version_of
from brimful.base.preloading import fast_tokenizer
from brimful.base.tables import Ragged


class UnsupportedTokenizerError(Exception):
    """The fast library refuses a tokenizer; says why."""


class FastTokenizer:
    """A tokenizer of ``fastokens``.

    Args:
        state: the tokenizer as ``tokenizers`` writes it, JSON.
        split_special_tokens: encode special tokens in a text like any other text.

    Raises:
        ImportError: the library is not installed.
        UnsupportedTokenizerError: it does not know this kind of tokenizer.
    """

    def __init__(self, state: str, *, split_special_tokens: bool = False) -> None:
        try:
            self._tokenizer = fast_tokenizer(state)
        except ValueError as error:
            raise UnsupportedTokenizerError(str(error).splitlines()[0]) from error
        self._split_special_tokens = split_special_tokens

    @staticmethod
    def version() -> str | None:
        """Return name and version of the library; None if it is not installed."""
        try:
            return f"fastokens {version_of('fastokens')}"
        except importlib.metadata.PackageNotFoundError:
            return None

    def ids(self, texts: Sequence[str]) -> Ragged:
        """Return the tokens of each text, ``int32``, with no special tokens added."""
        ids, offsets = self._tokenizer.encode_batch_flat(
            list(texts), add_special_tokens=False, split_special_tokens=self._split_special_tokens
        )
        return Ragged(np.frombuffer(ids, dtype=np.int32), np.frombuffer(offsets, dtype=np.int64))

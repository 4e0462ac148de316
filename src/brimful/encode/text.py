"""Documents for pretraining: the text, with its beginning and end marked."""

import os
from functools import cached_property
from typing import Any

from brimful.encode.rendering import RenderingEncoder
from brimful.encode.tokenizer import Tokenizer
from brimful.encode.tokens import wrong_kind
from brimful.errors import SettingsError
from brimful.messages import setting
from brimful.sources.sample import Sample


class TextEncoder(RenderingEncoder):
    """``[BOS] text [EOS]``; every token but the first of a segment is a target.

    Args:
        tokenizer: a directory, a hub id, or a ``transformers`` tokenizer.
        bos: put the tokenizer's BOS in front; None: if the tokenizer itself would.
        eos: put its EOS behind. The end of a document is worth learning, so this is on.

    Raises:
        SettingsError: a mark is asked for that the tokenizer does not have.
        TokenizerNotFoundError: nothing at that path or id.
    """

    def __init__(self, tokenizer: str | os.PathLike[str] | Any, *, bos: bool | None = None, eos: bool = True) -> None:
        self.tokenizer = Tokenizer.of(tokenizer)
        self._bos, self._eos = bos, eos

    @cached_property
    def marks(self) -> tuple[list[int], list[int]]:
        """Token ids in front of every document and behind it."""
        hf = self.tokenizer.hf
        bos = self._bos
        # Some tokenizers put BOS in front on their own; the default follows them.
        if bos is None:
            bos = hf.bos_token_id is not None and hf("a")["input_ids"][:1] == [hf.bos_token_id]
        if bos and hf.bos_token_id is None:
            raise SettingsError(f"{self.tokenizer} has no beginning-of-sequence token; use {setting('bos', False)}")
        if self._eos and hf.eos_token_id is None:
            raise SettingsError(f"{self.tokenizer} has no end-of-sequence token; use {setting('eos', False)}")
        return ([hf.bos_token_id] if bos else []), ([hf.eos_token_id] if self._eos else [])

    @property
    def length_settings(self) -> dict[str, Any]:
        prefix, suffix = self.marks
        return {"encoder": "text", "tokenizer": self.tokenizer.fingerprint, "bos": prefix, "eos": suffix}

    @property
    def label_settings(self) -> dict[str, Any]:
        return {"train_on": "all"}

    @property
    def all_are_targets(self) -> bool:
        return True

    def _render_sample(self, sample: Sample) -> tuple[None, str]:
        if sample.text is None:
            raise wrong_kind(sample, "texts")
        self.tokenizer.check(sample, sample.text)
        return None, sample.text

"""Documents for pretraining: the text, with its beginning and end marked."""

import os
from functools import cached_property
from typing import Any

from brimful.base.wording import setting
from brimful.encode.rendering import RenderingEncoder
from brimful.encode.tokenizer import Tokenizer
from brimful.encode.tokens import wrong_kind
from brimful.errors import SettingsError
from brimful.sources.sample import Sample


class TextEncoder(RenderingEncoder):
    """``[BOS] text [EOS]``; every token but the first of a segment is a target.

    Args:
        tokenizer: a directory, a hub id, or a ``transformers`` tokenizer.
        bos: begin with the tokenizer's BOS; None: if the tokenizer itself does.
        eos: end with its EOS. On by default, since the model should learn where a document ends.

    Raises:
        SettingsError: a requested mark that the tokenizer does not have.
        TokenizerNotFoundError: nothing at that path or id.
    """

    def __init__(self, tokenizer: str | os.PathLike[str] | Any, *, bos: bool | None = None, eos: bool = True) -> None:
        self.tokenizer = Tokenizer.of(tokenizer)
        self._bos, self._eos = bos, eos

    @cached_property
    def marks(self) -> tuple[list[int], list[int]]:
        """Token ids before and after every document."""
        facts = self.tokenizer.facts
        # Some tokenizers add BOS automatically; the default follows them.
        bos = facts.begins_with_bos if self._bos is None else self._bos
        if bos and facts.bos_id is None:
            raise SettingsError(f"{self.tokenizer} has no beginning-of-sequence token; use {setting('bos', False)}")
        if self._eos and facts.eos_id is None:
            raise SettingsError(f"{self.tokenizer} has no end-of-sequence token; use {setting('eos', False)}")
        prefix = [facts.bos_id] if bos and facts.bos_id is not None else []
        return prefix, [facts.eos_id] if self._eos and facts.eos_id is not None else []

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

"""Documents for pretraining: the text, with its beginning and end marked."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from brimful.encode.encoded import EncodedSample
from brimful.encode.encoder import Encoder, lengths_of
from brimful.encode.routing import begin_lengths_by_kind, encode_by_kind, encode_given, given_lengths
from brimful.encode.tokenizer import Tokenizer
from brimful.errors import BadSampleError, SettingsError
from brimful.messages import setting
from brimful.sources.sample import Sample
from brimful.typing import Lengths

__all__ = ["TextEncoder"]


class TextEncoder(Encoder):
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

    @property
    def bos_and_eos(self) -> tuple[bool | None, bool]:
        """What was asked for."""
        return self._bos, self._eos

    @cached_property
    def marks(self) -> tuple[list[int], list[int]]:
        """Tokens in front of every document and behind it."""
        hf = self.tokenizer.hf
        bos = self._bos
        if bos is None:
            bos = hf.bos_token_id is not None and hf("a")["input_ids"][:1] == [hf.bos_token_id]
        if bos and hf.bos_token_id is None:
            raise SettingsError(f"{self.tokenizer} has no beginning-of-sequence token; use {setting('bos', False)}")
        if self._eos and hf.eos_token_id is None:
            raise SettingsError(f"{self.tokenizer} has no end-of-sequence token; use {setting('eos', False)}")
        return ([hf.bos_token_id] if bos else []), ([hf.eos_token_id] if self._eos else [])

    @property
    def length_settings(self) -> dict[str, Any]:
        before, after = self.marks
        return {"encoder": "text", "tokenizer": self.tokenizer.fingerprint, "bos": before, "eos": after}

    @property
    def label_settings(self) -> dict[str, Any]:
        return {"train_on": "all"}

    @property
    def all_are_targets(self) -> bool:
        return True

    def encode_batch(self, samples: Sequence[Sample]) -> list[EncodedSample | BadSampleError]:
        return encode_by_kind(samples, {"chat": _refused, "text": self._encode, "tokens": encode_given})

    def _encode(self, samples: Sequence[Sample]) -> list[EncodedSample | BadSampleError]:
        texts, errors = _texts(samples)
        before, after = self.marks
        results: list[EncodedSample | BadSampleError] = []
        for place, ids in enumerate(self.tokenizer.ids(texts)):
            tokens = np.array([*before, *ids, *after], dtype=np.int32)
            results.append(errors.get(place) or EncodedSample(tokens, np.ones(len(tokens), dtype=bool)))
        return results

    def lengths(self, samples: Sequence[Sample]) -> tuple[Lengths, list[BadSampleError]]:
        return self.begin_lengths(samples)()

    def begin_lengths(self, samples: Sequence[Sample]) -> Callable[[], tuple[Lengths, list[BadSampleError]]]:
        kinds = {"chat": _refused_lengths, "text": self._begin_lengths, "tokens": given_lengths}
        return begin_lengths_by_kind(samples, kinds)

    def _begin_lengths(self, samples: Sequence[Sample]) -> Callable[[], tuple[Lengths, list[BadSampleError]]]:
        texts, errors = _texts(samples)
        extra = sum(map(len, self.marks))
        return lambda: lengths_of([count + extra for count in self.tokenizer.counts(texts)], errors)

    def decode(self, input_ids: Sequence[int]) -> str:
        return str(self.tokenizer.hf.decode(list(input_ids), skip_special_tokens=False))


def _refused(samples: Sequence[Sample]) -> list[EncodedSample | BadSampleError]:
    reason = f"is a chat, and the encoder is for texts: use {setting('mode', 'chat', python='ChatEncoder')}, which takes both"
    return [BadSampleError(reason, sample_id=sample.sample_id) for sample in samples]


def _refused_lengths(samples: Sequence[Sample]) -> Callable[[], tuple[Lengths, list[BadSampleError]]]:
    errors = [error for error in _refused(samples) if isinstance(error, BadSampleError)]
    return lambda: (np.full(len(samples), -1, dtype=np.int32), errors)


def _texts(samples: Sequence[Sample]) -> tuple[list[str], dict[int, BadSampleError]]:
    texts: list[str] = []
    errors: dict[int, BadSampleError] = {}
    for place, sample in enumerate(samples):
        refusal = Tokenizer.refusal(sample.text or "")
        if refusal is not None:
            errors[place] = BadSampleError(refusal, sample_id=sample.sample_id)
        texts.append("" if place in errors else sample.text or "")
    return texts, errors

"""Rows that were tokenised before: their tokens and labels as they are."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from brimful.encode.encoded import EncodedSample
from brimful.encode.encoder import Encoder
from brimful.encode.routing import encode_given, given_lengths
from brimful.encode.tokenizer import Tokenizer
from brimful.errors import BadSampleError
from brimful.messages import setting
from brimful.sources.sample import Sample
from brimful.typing import Lengths

__all__ = ["TokenEncoder"]


class TokenEncoder(Encoder):
    """Takes ``input_ids`` and ``labels`` of rows of format ``tokens``.

    Args:
        tokenizer: only to show texts to people (``decode``); nothing is encoded with it.

    >>> TokenEncoder().encode(Sample(0, input_ids=[5, 6, 7], labels=[-100, 6, 7])).labels.tolist()
    [-100, 6, 7]
    """

    def __init__(self, tokenizer: str | os.PathLike[str] | Any | None = None) -> None:
        self.tokenizer = None if tokenizer is None else Tokenizer.of(tokenizer)

    @property
    def length_settings(self) -> dict[str, Any]:
        return {"encoder": "tokens"}

    @property
    def label_settings(self) -> dict[str, Any]:
        return {"train_on": "labels"}

    def encode_batch(self, samples: Sequence[Sample]) -> list[EncodedSample | BadSampleError]:
        errors = {place: _refused(sample) for place, sample in enumerate(samples) if sample.input_ids is None}
        encoded = encode_given(samples)
        return [errors.get(place) or result for place, result in enumerate(encoded)]

    def lengths(self, samples: Sequence[Sample]) -> tuple[Lengths, list[BadSampleError]]:
        return self.begin_lengths(samples)()

    def begin_lengths(self, samples: Sequence[Sample]) -> Callable[[], tuple[Lengths, list[BadSampleError]]]:
        lengths, _ = given_lengths(samples)()
        errors = []
        for place, sample in enumerate(samples):
            if sample.input_ids is None:
                errors.append(_refused(sample))
                lengths[place] = -1
        return lambda: (lengths, errors)

    def decode(self, input_ids: Sequence[int]) -> str:
        if self.tokenizer is None:
            return " ".join(map(str, input_ids))
        return str(self.tokenizer.hf.decode(list(input_ids), skip_special_tokens=False))


def _refused(sample: Sample) -> BadSampleError:
    reason = f"is a {sample.kind}, and the encoder is for rows of tokens: use {setting('mode', 'chat', python='ChatEncoder')}, which takes both"
    return BadSampleError(reason, sample_id=sample.sample_id)

"""Rows that were tokenised before: their tokens and labels as they are."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from brimful.encode.encoded import EncodedSample
from brimful.encode.encoder import Encoder, MeasuredLengths
from brimful.encode.routing import TOKENISED, wrong_kind
from brimful.encode.tokenizer import Tokenizer
from brimful.errors import BadSampleError
from brimful.sources.sample import Sample


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
        results = zip(samples, TOKENISED.encode(samples).samples(), strict=True)
        return [
            wrong_kind(sample, "rows of tokens") if sample.input_ids is None else result for sample, result in results
        ]

    def lengths(self, samples: Sequence[Sample]) -> MeasuredLengths:
        lengths = [-1 if sample.input_ids is None else len(sample.input_ids) for sample in samples]
        errors = [wrong_kind(sample, "rows of tokens") for sample in samples if sample.input_ids is None]
        return np.array(lengths, dtype=np.int32), errors

    def decode(self, input_ids: Sequence[int]) -> str:
        if self.tokenizer is None:
            return " ".join(map(str, input_ids))
        return self.tokenizer.decode(input_ids)

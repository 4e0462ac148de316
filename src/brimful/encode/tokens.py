"""Rows that are already tokenized: their tokens and labels as they are."""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from brimful.base.typing import IGNORE_INDEX
from brimful.base.wording import setting
from brimful.encode.encoded import EncodedSample
from brimful.encode.encoder import Encoder, MeasuredLengths
from brimful.encode.tokenizer import Tokenizer
from brimful.errors import BadSampleError
from brimful.sources.sample import Sample


class TokenEncoder(Encoder):
    """Encoder that takes ``input_ids`` and ``labels`` of rows of format ``tokens``.

    Args:
        tokenizer: only to display texts (``decode``); nothing is encoded with it.

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
        results: list[EncodedSample | BadSampleError] = []
        for sample in samples:
            if sample.input_ids is None:
                results.append(wrong_kind(sample, "rows of tokens"))
                continue
            ids = np.array(sample.input_ids, dtype=np.int32)
            mask = np.ones(len(ids), dtype=bool)
            if sample.labels is not None:
                mask = np.array(sample.labels, dtype=np.int64) != IGNORE_INDEX
            results.append(EncodedSample(ids, mask))
        return results

    def lengths(self, samples: Sequence[Sample]) -> MeasuredLengths:
        lengths = [-1 if sample.input_ids is None else len(sample.input_ids) for sample in samples]
        errors = [wrong_kind(sample, "rows of tokens") for sample in samples if sample.input_ids is None]
        return np.array(lengths, dtype=np.int32), errors

    def decode(self, input_ids: Sequence[int]) -> str:
        if self.tokenizer is None:
            return " ".join(map(str, input_ids))
        return self.tokenizer.decode(input_ids)


def wrong_kind(sample: Sample, kinds: str) -> BadSampleError:
    """Return the error for a sample of a kind that an encoder does not take; ``kinds`` are the kinds it takes."""
    chat_encoder = setting("mode", "chat", python="ChatEncoder")
    reason = f"is a {sample.kind}, and the encoder is for {kinds}: use {chat_encoder}, which takes both"
    return BadSampleError(reason, sample_id=sample.sample_id)

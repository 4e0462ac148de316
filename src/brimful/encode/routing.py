"""Samples of several kinds in one batch: each kind to whoever encodes it, the results in the order of the samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from brimful.encode.encoded import EncodedSample
from brimful.errors import BadSampleError
from brimful.sources.sample import Sample
from brimful.typing import IGNORE_INDEX, Lengths

__all__ = ["BeginLengths", "EncodeBatch", "begin_lengths_by_kind", "encode_by_kind", "encode_given", "given_lengths"]

EncodeBatch: TypeAlias = Callable[[Sequence[Sample]], "list[EncodedSample | BadSampleError]"]
BeginLengths: TypeAlias = Callable[[Sequence[Sample]], Callable[[], tuple[Lengths, list[BadSampleError]]]]


def encode_by_kind(
    samples: Sequence[Sample], encoders: Mapping[str, EncodeBatch]
) -> list[EncodedSample | BadSampleError]:
    """Tokens of samples, each from the encoder of its kind (``Sample.kind``)."""
    kinds = {sample.kind for sample in samples}
    if len(kinds) == 1:
        return encoders[kinds.pop()](samples)
    results: list[EncodedSample | BadSampleError | None] = [None] * len(samples)
    for kind in kinds:
        places = [place for place, sample in enumerate(samples) if sample.kind == kind]
        for place, result in zip(places, encoders[kind]([samples[place] for place in places]), strict=True):
            results[place] = result
    return [result for result in results if result is not None]


def begin_lengths_by_kind(
    samples: Sequence[Sample], encoders: Mapping[str, BeginLengths]
) -> Callable[[], tuple[Lengths, list[BadSampleError]]]:
    """Lengths of samples in two halves, as of ``Encoder.begin_lengths``."""
    kinds = {sample.kind for sample in samples}
    if len(kinds) == 1:
        return encoders[kinds.pop()](samples)
    begun = []
    for kind in kinds:
        places = [place for place, sample in enumerate(samples) if sample.kind == kind]
        begun.append((places, encoders[kind]([samples[place] for place in places])))

    def finish() -> tuple[Lengths, list[BadSampleError]]:
        lengths = np.empty(len(samples), dtype=np.int32)
        errors: list[BadSampleError] = []
        for places, half in begun:
            lengths[places], found = half()
            errors += found
        return lengths, sorted(errors, key=lambda error: error.sample_id)

    return finish


def encode_given(samples: Sequence[Sample]) -> list[EncodedSample | BadSampleError]:
    """Samples that were tokenised before, as they are."""
    results: list[EncodedSample | BadSampleError] = []
    for sample in samples:
        ids = np.array(sample.input_ids or (), dtype=np.int32)
        if sample.labels is None:
            results.append(EncodedSample(ids, np.ones(len(ids), dtype=bool)))
        else:
            results.append(EncodedSample(ids, np.array(sample.labels, dtype=np.int64) != IGNORE_INDEX))
    return results


def given_lengths(samples: Sequence[Sample]) -> Callable[[], tuple[Lengths, list[BadSampleError]]]:
    """Their lengths."""
    lengths = np.array([len(sample.input_ids or ()) for sample in samples], dtype=np.int32)
    return lambda: (lengths, [])

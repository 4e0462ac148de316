"""Batches of several kinds of samples: each kind takes its own route, the results keep the order of the samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from brimful.encode.batch import EncodedBatch
from brimful.encode.encoded import EncodedSample
from brimful.encode.encoder import MeasuredLengths, PendingLengths
from brimful.errors import BadSampleError
from brimful.messages import setting
from brimful.sources.sample import Sample
from brimful.typing import IGNORE_INDEX


class Route(NamedTuple):
    """The two calls that encode and measure samples of one kind."""

    encode: Callable[[Sequence[Sample]], EncodedBatch]
    begin_lengths: Callable[[Sequence[Sample]], PendingLengths]


def encode_by_kind(samples: Sequence[Sample], routes: Mapping[str, Route]) -> EncodedBatch:
    """Encode samples, each by the route of its kind (``Sample.kind``)."""
    groups = _indices_by_kind(samples)
    if len(groups) == 1:
        return routes[next(iter(groups))].encode(samples)
    results: dict[int, EncodedSample | BadSampleError] = {}
    for kind, indices in groups.items():
        batch = routes[kind].encode([samples[index] for index in indices])
        results.update(zip(indices, batch.samples(), strict=True))
    return EncodedBatch.of([results[index] for index in range(len(samples))])


def begin_lengths_by_kind(samples: Sequence[Sample], routes: Mapping[str, Route]) -> PendingLengths:
    """Begin to measure samples, each by the route of its kind; two halves as in ``Encoder.begin_lengths``."""
    groups = _indices_by_kind(samples)
    halves = [routes[kind].begin_lengths([samples[index] for index in groups[kind]]) for kind in groups]
    if len(halves) == 1:
        return halves[0]

    def finish() -> MeasuredLengths:
        # The errors of all kinds are merged, so their order has to be made again.
        lengths = np.empty(len(samples), dtype=np.int32)
        errors: list[BadSampleError] = []
        for indices, finish_kind in zip(groups.values(), halves, strict=True):
            lengths[indices], kind_errors = finish_kind()
            errors += kind_errors
        return lengths, sorted(errors, key=lambda error: error.sample_id)

    return finish


def _indices_by_kind(samples: Sequence[Sample]) -> dict[str, list[int]]:
    indices: dict[str, list[int]] = {}
    for index, sample in enumerate(samples):
        indices.setdefault(sample.kind, []).append(index)
    return indices


def _take_tokens(samples: Sequence[Sample]) -> EncodedBatch:
    """Return the tokens and labels of rows that were tokenised before, unchanged."""
    results: list[EncodedSample | BadSampleError] = []
    for sample in samples:
        ids = np.array(sample.input_ids or (), dtype=np.int32)
        if sample.labels is None:
            results.append(EncodedSample(ids, np.ones(len(ids), dtype=bool)))
        else:
            results.append(EncodedSample(ids, np.array(sample.labels, dtype=np.int64) != IGNORE_INDEX))
    return EncodedBatch.of(results)


def _begin_token_lengths(samples: Sequence[Sample]) -> PendingLengths:
    lengths = np.array([len(sample.input_ids or ()) for sample in samples], dtype=np.int32)
    return lambda: (lengths, [])


TOKENISED = Route(_take_tokens, _begin_token_lengths)
"""The route of rows that were tokenised before."""


def wrong_kind(sample: Sample, kinds: str) -> BadSampleError:
    """Return the error for a sample of a kind that an encoder does not take; ``kinds`` are those it takes."""
    chat_encoder = setting("mode", "chat", python="ChatEncoder")
    reason = f"is a {sample.kind}, and the encoder is for {kinds}: use {chat_encoder}, which takes both"
    return BadSampleError(reason, sample_id=sample.sample_id)


def refusal_route(kinds: str) -> Route:
    """Return the route of a kind that an encoder does not take: every sample becomes an error."""

    def begin_lengths(samples: Sequence[Sample]) -> PendingLengths:
        errors = [wrong_kind(sample, kinds) for sample in samples]
        return lambda: (np.full(len(samples), -1, dtype=np.int32), errors)

    return Route(lambda samples: EncodedBatch.of([wrong_kind(sample, kinds) for sample in samples]), begin_lengths)

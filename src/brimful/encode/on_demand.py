"""Samples of a source, encoded together when they are asked for."""

from collections.abc import Iterator, Sequence

from brimful.encode.encoded import EncodedSample
from brimful.encode.encoder import Encoder
from brimful.errors import BadSampleError
from brimful.sources.source import Source

_BATCH_SAMPLES = 256
"""Samples in one call of the encoder: more are no faster, and need more memory."""


def encode_samples(source: Source, encoder: Encoder, sample_ids: Sequence[int]) -> Iterator[EncodedSample]:
    """Yield the encoded samples in the order of their ids, some hundred read ahead.

    Raises:
        BadSampleError: a sample cannot be read or encoded; names file and line.
    """
    for begin in range(0, len(sample_ids), _BATCH_SAMPLES):
        samples = [source[sample_id] for sample_id in sample_ids[begin : begin + _BATCH_SAMPLES]]
        for sample, result in zip(samples, encoder.encode_batch(samples), strict=True):
            if isinstance(result, BadSampleError):
                raise result.located(source.where(sample.sample_id))
            yield result

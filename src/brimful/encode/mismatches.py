"""Mismatched samples of KTO: the prompt of one conversation with the completion of another, joined as tokens."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from brimful.encode.batch import EncodedBatch
from brimful.encode.encoded import EncodedSample
from brimful.errors import BadSampleError
from brimful.sources.sample import Sample

MISMATCH_REASON = "it is a mismatch, for the KL term of KTO"
"""Reason why a sample without a target is as it should be."""


def has_mismatch(sample: Sample) -> bool:
    """Return true for a sample whose completion is that of another one."""
    return sample.completion is not None and sample.completion.mismatched is not None


def encode_mismatched(samples: Sequence[Sample], encode: Callable[[Sequence[Sample]], EncodedBatch]) -> EncodedBatch:
    """Encode samples of which some have the completion of another one.

    Such a sample has the tokens of its own prompt, then those of the other completion, and no target: its log probability
    is estimated from, and never trained. This is what TRL's ``KTOTrainer`` joins for the KL term::

        own        Q  :  4        prompt Q :
        other      W  h  y  ?  5  completion 5
        joined     Q  :  5
    """
    parts: list[Sample] = []
    for sample in samples:
        completion = sample.completion
        if completion is None or completion.mismatched is None:
            parts.append(sample)
        else:
            parts += [replace(sample, completion=replace(completion, mismatched=None)), completion.mismatched]
    encoded = iter(encode(parts).samples())
    return EncodedBatch.of(
        [_joined(next(encoded), next(encoded)) if has_mismatch(sample) else next(encoded) for sample in samples]
    )


def _joined(
    own: EncodedSample | BadSampleError, other: EncodedSample | BadSampleError
) -> EncodedSample | BadSampleError:
    if isinstance(own, BadSampleError):
        return own
    if isinstance(other, BadSampleError):
        return BadSampleError(f"has a mismatch that cannot be encoded: {other.reason}", sample_id=other.sample_id)
    ids = np.concatenate([own.input_ids[: _completion_start(own)], other.input_ids[_completion_start(other) :]])
    return EncodedSample(ids, np.zeros(len(ids), dtype=bool))


def _completion_start(sample: EncodedSample) -> int:
    return int(sample.loss_mask.argmax()) if sample.loss_mask.any() else len(sample)

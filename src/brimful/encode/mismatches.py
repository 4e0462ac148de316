"""Mismatched samples of KTO: the prompt of one conversation with the completion of another, joined as tokens."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from brimful.encode.batch import EncodedBatch
from brimful.encode.encoded import EncodedSample
from brimful.errors import BadSampleError
from brimful.sources.sample import Sample

MISMATCH_REASON = "it is a mismatch, for the KL term of KTO"
"""Reason why a sample rightly has no target."""


def has_mismatch(sample: Sample) -> bool:
    """Return true for a sample with the completion of another one."""
    return sample.completion is not None and sample.completion.mismatched is not None


def encode_mismatched(samples: Sequence[Sample], encode: Callable[[Sequence[Sample]], EncodedBatch]) -> EncodedBatch:
    """Encode samples, some of which have the completion of another one.

    Such a sample has the tokens of its own prompt, then the tokens of the other completion, and no target: the KL term
    is estimated from its log probability, which is never trained. TRL's ``KTOTrainer`` joins the same tokens::

        own        Q  :  4        prompt Q :
        other      W  h  y  ?  5  completion 5
        joined     Q  :  5

    A conversation is encoded once, even if it is a sample, gives its prompt and lends its completion.
    """
    parts: dict[str, Sample] = {}
    keys: list[list[str]] = []
    for sample in samples:
        completion = sample.completion
        conversations = [sample]
        if completion is not None and completion.mismatched is not None:
            conversations = [replace(sample, completion=replace(completion, mismatched=None)), completion.mismatched]
        keys.append([_content(conversation) for conversation in conversations])
        for key, conversation in zip(keys[-1], conversations, strict=True):
            parts.setdefault(key, conversation)
    encoded = dict(zip(parts, encode(list(parts.values())).samples(), strict=True))
    return EncodedBatch.of(
        [
            _joined(encoded[some[0]], encoded[some[1]], sample.sample_id)
            if has_mismatch(sample)
            else _of_sample(encoded[some[0]], sample.sample_id)
            for sample, some in zip(samples, keys, strict=True)
        ]
    )


def _content(sample: Sample) -> str:
    """Return all that decides the tokens and targets of a sample without media, as text."""
    messages = None if sample.messages is None else list(sample.messages)
    tools = None if sample.tools is None else list(sample.tools)
    completion = sample.completion
    prompt = None if completion is None else (completion.num_prompt, completion.rival, completion.needs_no_template)
    return repr((messages, sample.text, tools, sample.input_ids, sample.labels, prompt))


def _of_sample(result: EncodedSample | BadSampleError, sample_id: int) -> EncodedSample | BadSampleError:
    """Return the result of an equal conversation; its error names this sample."""
    return result.of_sample(sample_id) if isinstance(result, BadSampleError) else result


def _joined(
    own: EncodedSample | BadSampleError, other: EncodedSample | BadSampleError, sample_id: int
) -> EncodedSample | BadSampleError:
    if isinstance(own, BadSampleError):
        return _of_sample(own, sample_id)
    if isinstance(other, BadSampleError):
        return BadSampleError(f"has a mismatch that cannot be encoded: {other.reason}", sample_id=sample_id)
    ids = np.concatenate([own.input_ids[: _completion_start(own)], other.input_ids[_completion_start(other) :]])
    return EncodedSample(ids, np.zeros(len(ids), dtype=bool))


def _completion_start(sample: EncodedSample) -> int:
    return int(sample.loss_mask.argmax()) if sample.loss_mask.any() else len(sample)

"""Targets of samples with a completion: the tokens after its prompt, or none if it is from another
row.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from brimful.base.tables import Ragged
from brimful.base.typing import LossMask, TokenIds
from brimful.encode.encoded import EncodedBatch, EncodedSample
from brimful.encode.tokenizer import Tokenizer
from brimful.errors import BadSampleError
from brimful.sources.sample import Sample

PromptAndOther: TypeAlias = tuple[str, str]
"""Text of a sample's prompt alone, and of the other conversation of its completion; the second is
empty without one.
"""

BORROWED_REASON = "it is a mismatch, for the KL term of KTO"
"""Reason why a sample rightly has no target."""


def has_borrowed(sample: Sample) -> bool:
    """Return true for a sample with the completion of another one."""
    return sample.completion is not None and sample.completion.borrowed is not None


def encode_borrowed(
    samples: Sequence[Sample], encode: Callable[[Sequence[Sample]], EncodedBatch]
) -> EncodedBatch:
    """Encode samples, some of which have the completion of another one.

    Such a sample has the tokens of its own prompt, then the tokens of the other completion, and no
    target: the KL term is estimated from its log probability, which is never trained. TRL's
    ``KTOTrainer`` joins the same tokens::

        own        Q  :  4        prompt Q :
        other      W  h  y  ?  5  completion 5
        joined     Q  :  5

    A conversation is encoded once, even if it is a sample, gives its prompt and lends its
    completion.
    """
    conversations: dict[str, Sample] = {}

    def key_of(sample: Sample) -> str:
        key = _content(sample)
        conversations.setdefault(key, sample)
        return key

    keys: list[tuple[str, str | None]] = []
    for sample in samples:
        completion = sample.completion
        if completion is None or completion.borrowed is None:
            keys.append((key_of(sample), None))
        else:
            own = replace(sample, completion=replace(completion, borrowed=None))
            keys.append((key_of(own), key_of(completion.borrowed)))
    encoded = dict(zip(conversations, encode([*conversations.values()]).samples(), strict=True))
    return EncodedBatch.of(
        [
            _joined(
                encoded[own_key],
                None if other_key is None else encoded[other_key],
                sample.sample_id,
            )
            for sample, (own_key, other_key) in zip(samples, keys, strict=True)
        ]
    )


def _content(sample: Sample) -> str:
    """Return all that decides the tokens and targets of a sample without media, as text."""
    messages = None if sample.messages is None else list(sample.messages)
    tools = None if sample.tools is None else list(sample.tools)
    completion = sample.completion
    prompt = (
        None
        if completion is None
        else (completion.num_prompt, completion.other, completion.needs_no_template)
    )
    return repr((messages, sample.text, tools, sample.input_ids, sample.labels, prompt))


def _joined(
    own: EncodedSample | BadSampleError,
    other: EncodedSample | BadSampleError | None,
    sample_id: int,
) -> EncodedSample | BadSampleError:
    """Return a conversation with the completion of another one, if there is one; an error names
    this sample.
    """
    if isinstance(own, BadSampleError):
        return own.of_sample(sample_id)
    if other is None:
        return own
    if isinstance(other, BadSampleError):
        return BadSampleError(
            f"has a mismatch that cannot be encoded: {other.reason}", sample_id=sample_id
        )
    ids = np.concatenate(
        [own.input_ids[: _completion_start(own)], other.input_ids[_completion_start(other) :]]
    )
    return EncodedSample(ids, np.zeros(len(ids), dtype=bool))


def _completion_start(sample: EncodedSample) -> int:
    return int(sample.loss_mask.argmax()) if sample.loss_mask.any() else len(sample)


def mark_completions(
    mask: LossMask,
    ids: Ragged,
    texts: Sequence[str],
    prompts: Mapping[int, PromptAndOther],
    tokenizer: Tokenizer,
) -> None:
    """Set the targets of samples with a completion of their own, in place.

    The completion begins at the first token in which the prompt, the conversation and the other one
    differ, as in TRL's ``DPOTrainer``::

        prompt      Q : _        the space merges with one of the answers
        chosen      Q : _4       targets _4
        rejected    Q : _ 5      targets _ 5: both completions begin after the colon

    Args:
        mask: ``bool[num_tokens]`` of all samples.
        ids: tokens of all texts, without marks.
        texts: of all samples.
        prompts: prompt and other text, by the index of each such sample.
        tokenizer: of the texts.
    """
    # The three texts are tokenized once if both conversations are in the batch.
    known_rows = {text: index for index, text in enumerate(texts)}
    further = list(
        dict.fromkeys(
            text for pair in prompts.values() for text in pair if text and text not in known_rows
        )
    )
    further_ids = tokenizer.tokenize(further)
    further_rows = {text: index for index, text in enumerate(further)}

    def ids_of(text: str) -> TokenIds:
        return (
            ids.row(known_rows[text]) if text in known_rows else further_ids.row(further_rows[text])
        )

    for index, (prompt, other_text) in prompts.items():
        tokens = ids.row(index)
        prompt_ids = ids_of(prompt)
        num_common = _common_length(prompt_ids, tokens)
        if other_text:
            num_common = min(num_common, _common_length(prompt_ids, ids_of(other_text)))
        start = int(ids.offsets[index])
        mask[start : start + num_common] = False
        mask[start + num_common : start + len(tokens)] = True


def _common_length(one: TokenIds, other: TokenIds) -> int:
    """Return the number of leading tokens that both share.

    >>> _common_length(np.array([1, 2, 3]), np.array([1, 2, 4, 5]))
    2
    """
    length = min(len(one), len(other))
    differences = np.flatnonzero(one[:length] != other[:length])
    return int(differences[0]) if len(differences) else length

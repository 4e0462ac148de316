"""Prompts and completions without a chat template, for base models."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

import numpy as np

from brimful.checks import choice_of
from brimful.encode.characters import tokens_of
from brimful.encode.encoded import EncodedSample
from brimful.encode.encoder import Encoder, lengths_of
from brimful.encode.routing import begin_lengths_by_kind, encode_by_kind, encode_given, given_lengths
from brimful.encode.text import TextEncoder
from brimful.encode.tokenizer import Tokenizer
from brimful.errors import BadSampleError
from brimful.messages import setting
from brimful.sources.sample import Sample
from brimful.typing import Lengths

__all__ = ["CompletionEncoder", "CompletionTargets"]


class CompletionTargets(str, Enum):
    """Which tokens of a prompt and its completion are targets of the loss."""

    COMPLETION = "completion"
    """The completion and the EOS behind it."""
    ALL = "all"
    """Every token."""


class CompletionEncoder(Encoder):
    """``[BOS] prompt separator completion [EOS]``: rows of one prompt and one completion, as base models are trained.

    ::

        row          {"prompt": "1+1?", "completion": " 2"}
        input_ids    1 + 1 ? _2 </s>          int32[length]
        targets              _2 </s>          with train_on="all" every token

    Prompt and completion are tokenised as one text, as the model will see them; a token that holds characters of both
    is a target. Documents are encoded as ``TextEncoder`` does.

    Args:
        tokenizer: a directory, a hub id, or a ``transformers`` tokenizer.
        train_on: which tokens are targets.
        separator: put between prompt and completion, on the prompt's side.
        bos: put the tokenizer's BOS in front; None: if the tokenizer itself would.
        eos: put its EOS behind.

    Raises:
        SettingsError: a mark is asked for that the tokenizer does not have.
    """

    def __init__(
        self,
        tokenizer: str | os.PathLike[str] | Any,
        *,
        train_on: CompletionTargets | str = CompletionTargets.COMPLETION,
        separator: str = "",
        bos: bool | None = None,
        eos: bool = True,
    ) -> None:
        self.tokenizer = Tokenizer.of(tokenizer)
        self.train_on = choice_of(CompletionTargets, train_on, argument="train_on")
        self._separator = separator
        self._documents = TextEncoder(self.tokenizer, bos=bos, eos=eos)

    @property
    def length_settings(self) -> dict[str, Any]:
        return {**self._documents.length_settings, "encoder": "completion", "separator": self._separator}

    @property
    def label_settings(self) -> dict[str, Any]:
        return {"train_on": self.train_on.value}

    @property
    def all_are_targets(self) -> bool:
        return self.train_on is CompletionTargets.ALL

    def encode_batch(self, samples: Sequence[Sample]) -> list[EncodedSample | BadSampleError]:
        others = {"text": self._documents.encode_batch, "tokens": encode_given}
        return encode_by_kind(samples, {"chat": self._encode, **others})

    def _encode(self, samples: Sequence[Sample]) -> list[EncodedSample | BadSampleError]:
        pairs, errors = self._pairs(samples)
        texts = [prompt + completion for prompt, completion in pairs]
        before, after = self._documents.marks
        fast = self.tokenizer.backend is not None
        encodings: list[Any] = self.tokenizer.encode_texts(texts) if fast else self.tokenizer.ids(texts)
        results: list[EncodedSample | BadSampleError] = []
        for place, (prompt, _) in enumerate(pairs):
            if place in errors:
                results.append(errors[place])
                continue
            inner = encodings[place].ids if fast else encodings[place]
            if fast:
                first, _ = tokens_of(encodings[place], len(prompt), len(texts[place]), texts[place], len(inner))
            else:
                first = min(len(self.tokenizer.ids([prompt])[0]), len(inner))
            ids = np.array([*before, *inner, *after], dtype=np.int32)
            mask = np.ones(len(ids), dtype=bool)
            if self.train_on is CompletionTargets.COMPLETION:
                mask[: len(before) + first] = False
            results.append(EncodedSample(ids, mask))
        return results

    def _pairs(self, samples: Sequence[Sample]) -> tuple[list[tuple[str, str]], dict[int, BadSampleError]]:
        pairs: list[tuple[str, str]] = []
        errors: dict[int, BadSampleError] = {}
        for place, sample in enumerate(samples):
            messages = sample.messages or ()
            roles = [message["role"] for message in messages]
            plain = roles == ["user", "assistant"] and not any(message.get("tool_calls") for message in messages)
            if not plain or sample.tools:
                reason = (
                    f"has turns of {', '.join(roles)}{' and tools' if sample.tools else ''}, and without a chat template "
                    f"a sample is one prompt and one completion: use {setting('mode', 'chat', python='ChatEncoder')}"
                )
                errors[place] = BadSampleError(reason, sample_id=sample.sample_id)
                pairs.append(("", ""))
                continue
            prompt, completion = (str(message.get("content") or "") for message in messages)
            refused = Tokenizer.refusal(prompt + completion)
            if refused is not None:
                errors[place] = BadSampleError(refused, sample_id=sample.sample_id)
                prompt = completion = ""
            pairs.append((prompt + self._separator, completion))
        return pairs, errors

    def lengths(self, samples: Sequence[Sample]) -> tuple[Lengths, list[BadSampleError]]:
        return self.begin_lengths(samples)()

    def begin_lengths(self, samples: Sequence[Sample]) -> Callable[[], tuple[Lengths, list[BadSampleError]]]:
        others = {"text": self._documents.begin_lengths, "tokens": given_lengths}
        return begin_lengths_by_kind(samples, {"chat": self._begin_lengths, **others})

    def _begin_lengths(self, samples: Sequence[Sample]) -> Callable[[], tuple[Lengths, list[BadSampleError]]]:
        pairs, errors = self._pairs(samples)
        texts = [prompt + completion for prompt, completion in pairs]
        extra = sum(map(len, self._documents.marks))
        return lambda: lengths_of([count + extra for count in self.tokenizer.counts(texts)], errors)

    def no_target_reason(self, sample: Sample) -> str:
        return "its completion is empty" if sample.kind == "chat" else super().no_target_reason(sample)

    def decode(self, input_ids: Sequence[int]) -> str:
        return self._documents.decode(input_ids)

    def __reduce__(self) -> tuple[Any, ...]:
        rest = (self.train_on.value, self._separator, *self._documents.bos_and_eos)
        return _rebuild, (self.tokenizer, *rest)


def _rebuild(tokenizer: Tokenizer, train_on: str, separator: str, bos: bool | None, eos: bool) -> CompletionEncoder:
    return CompletionEncoder(tokenizer, train_on=train_on, separator=separator, bos=bos, eos=eos)

"""Chats through the tokenizer's own chat template, with labels on the assistant's turns."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import cached_property
from typing import Any

import numpy as np

from brimful.arguments import check_type
from brimful.choices import choice_of
from brimful.encode.encoded import EncodedSample
from brimful.encode.encoder import Encoder, lengths_of
from brimful.encode.tokenizer import Tokenizer
from brimful.encode.turns import Span, TurnFinder
from brimful.errors import AssistantTurnsError, BadSampleError, SettingsError
from brimful.sources.sample import Message, Sample
from brimful.typing import Lengths, LossMask
from brimful.words import setting

__all__ = ["ChatEncoder", "TrainOn"]

_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")


class TrainOn(str, Enum):
    """Which tokens of a chat are targets of the loss."""

    ASSISTANT = "assistant"
    """Every answer of the assistant with the token that ends it (a message with ``weight`` 0 excepted)."""
    LAST = "last"
    """The last answer only."""
    ALL = "all"
    """Every token."""


class ChatEncoder(Encoder):
    """Token for token what ``tokenizer.apply_chat_template`` gives, and a loss mask beside it.

    Args:
        tokenizer: a directory, a hub id, or a ``transformers`` tokenizer.
        chat_template: a Jinja template, or the path of one, instead of the tokenizer's own.
        train_on: which tokens are targets.
        template_kwargs: further variables for the template, such as ``{"enable_thinking": False}``.

    Raises:
        TokenizerNotFoundError: nothing at that path or id.
        SettingsError: the tokenizer has no chat template and none is given.
    """

    def __init__(
        self,
        tokenizer: str | os.PathLike[str] | Any,
        *,
        chat_template: str | os.PathLike[str] | None = None,
        train_on: TrainOn | str = TrainOn.ASSISTANT,
        template_kwargs: dict[str, Any] | None = None,
    ) -> None:
        self.tokenizer = tokenizer if isinstance(tokenizer, Tokenizer) else Tokenizer(tokenizer)
        self.train_on = choice_of(TrainOn, train_on, argument="train_on")
        if chat_template is not None:
            check_type("chat_template", chat_template, (str, os.PathLike), "a Jinja template or the path of one")
        if template_kwargs is not None:
            check_type("template_kwargs", template_kwargs, Mapping, "a mapping")
        self._template = None if chat_template is None else os.fspath(chat_template)
        self._kwargs = dict(template_kwargs or {})

    @cached_property
    def chat_template(self) -> str:
        """The Jinja source in use."""
        given = self._template
        if given is not None and "{" not in given:
            try:
                with open(given, encoding="utf-8") as file:
                    return file.read()
            except OSError as error:
                raise SettingsError(
                    f"{setting('chat_template', given)}: no such file, and no template either"
                ) from error
            except UnicodeDecodeError as error:
                raise SettingsError(
                    f"{setting('chat_template', given)} is no text: {error.reason} at byte {error.start}"
                ) from error
        if given is not None:
            return given
        own = self.tokenizer.hf.chat_template
        if not own:
            raise SettingsError(
                f"{self.tokenizer} has no chat template: name one with {setting('chat_template')}, or use {setting('mode', 'text', python='TextEncoder')}"
            )
        return str(self.tokenizer.hf.get_chat_template(None, None))

    @property
    def length_settings(self) -> dict[str, Any]:
        return {
            "encoder": "chat",
            "tokenizer": self.tokenizer.fingerprint,
            "chat_template": self.chat_template,
            "template_kwargs": self._kwargs,
            "special_tokens": {key: str(value) for key, value in self.tokenizer.hf.special_tokens_map.items()},
        }

    @property
    def label_settings(self) -> dict[str, Any]:
        return {"train_on": self.train_on.value}

    def _render(self, messages: Sequence[Message], tools: Any, add_generation_prompt: bool) -> str:
        text: str = self.tokenizer.hf.apply_chat_template(
            list(messages),
            tools=list(tools) if tools else None,
            chat_template=self.chat_template,
            add_generation_prompt=add_generation_prompt,
            tokenize=False,
            **self._kwargs,
        )
        return text

    def render(self, sample: Sample) -> str:
        """The text of a chat as the template writes it.

        Raises:
            BadSampleError: a text sample, or a conversation that the template refuses; says what it said.
        """
        if sample.messages is None:
            reason = f"is a text, and the encoder is for chats; use {setting('mode', 'text', python='TextEncoder')}"
            raise BadSampleError(reason, sample_id=sample.sample_id)
        _ = self.chat_template  # what is wrong with the template itself is no fault of the sample
        try:
            text = self._render(sample.messages, sample.tools, False)
        except Exception as error:  # whatever a template can raise is this sample's fault
            said = (str(error).strip() or repr(error)).splitlines()[0]
            raise BadSampleError(f"the chat template refuses it: {said}", sample_id=sample.sample_id) from error
        refusal = self.tokenizer.refusal(text)
        if refusal is not None:
            raise BadSampleError(refusal, sample_id=sample.sample_id)
        return text

    def _render_all(self, samples: Sequence[Sample]) -> tuple[list[str], dict[int, BadSampleError]]:
        texts: list[str] = []
        errors: dict[int, BadSampleError] = {}
        for place, sample in enumerate(samples):
            try:
                texts.append(self.render(sample))
            except BadSampleError as error:
                errors[place] = error
                texts.append("")
        return texts, errors

    def lengths(self, samples: Sequence[Sample]) -> tuple[Lengths, list[BadSampleError]]:
        return self.begin_lengths(samples)()

    def begin_lengths(self, samples: Sequence[Sample]) -> Callable[[], tuple[Lengths, list[BadSampleError]]]:
        texts, errors = self._render_all(samples)
        return lambda: lengths_of(self.tokenizer.counts(texts), errors)

    def encode_batch(self, samples: Sequence[Sample]) -> list[EncodedSample | BadSampleError]:
        texts, errors = self._render_all(samples)
        if self.tokenizer.backend is None:
            ids_of_all: list[Any] = self.tokenizer.ids(texts)
            encodings: list[Any] = [None] * len(texts)
        else:
            encodings = self.tokenizer.encode_texts(texts)
            ids_of_all = [encoding.ids for encoding in encodings]
        results: list[EncodedSample | BadSampleError] = []
        for place, sample in enumerate(samples):
            if place in errors:
                results.append(errors[place])
                continue
            ids = np.array(ids_of_all[place], dtype=np.int32)
            try:
                mask = self._mask(sample, texts[place], encodings[place], len(ids))
            except AssistantTurnsError as error:
                results.append(BadSampleError(error.message, sample_id=sample.sample_id))
                continue
            results.append(EncodedSample(ids, mask))
        return results

    def _mask(self, sample: Sample, text: str, encoding: Any, length: int) -> LossMask:
        if self.train_on is TrainOn.ALL:
            return np.ones(length, dtype=bool)
        mask = np.zeros(length, dtype=bool)
        for start, end in self._targets(sample, text):
            if encoding is None:
                first = len(self.tokenizer.ids([text[:start]])[0])
                last = len(self.tokenizer.ids([text[:end]])[0])
            else:
                first, last = _tokens_of(encoding, start, end, text, length)
            mask[first:last] = True
        return mask

    def _targets(self, sample: Sample, text: str) -> list[Span]:
        """Spans of the assistant turns to train on."""
        messages = sample.messages or ()
        answers = [message for message in messages if message["role"] == "assistant"]
        if not answers:
            return []
        marked = bool(_GENERATION.search(self.chat_template))
        spans = self._marked_spans(sample) if marked else self._finder.spans(messages, sample.tools, text)
        if spans is None:
            raise AssistantTurnsError(
                "the chat template does not show where the assistant's turns begin and end in this conversation; "
                "put {% generation %} … {% endgeneration %} around them in the template "
                f"({setting('chat_template')}), or train on all tokens ({setting('train_on', 'all')})"
            )
        if self.train_on is TrainOn.LAST:
            spans = spans[-1:]
            answers = answers[-1:]
        if len(spans) == len(answers):
            spans = [span for span, message in zip(spans, answers, strict=True) if _weight(message) != 0]
        return spans

    def _marked_spans(self, sample: Sample) -> list[Span]:
        from transformers.utils.chat_template_utils import render_jinja_template

        variables = {**self.tokenizer.hf.special_tokens_map, **self._kwargs}
        _, indices = render_jinja_template(
            conversations=[[{k: v for k, v in turn.items() if v is not None} for turn in sample.messages or ()]],
            tools=list(sample.tools) if sample.tools else None,
            chat_template=self.chat_template,
            return_assistant_tokens_mask=True,
            **variables,
        )
        return [(int(start), int(end)) for start, end in indices[0]]

    @cached_property
    def _finder(self) -> TurnFinder:
        return TurnFinder(self._render, self.tokenizer.special_texts)

    def decode(self, input_ids: Sequence[int]) -> str:
        return str(self.tokenizer.hf.decode(list(input_ids), skip_special_tokens=False))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.tokenizer, self._template, self.train_on.value, self._kwargs)


def _rebuild(tokenizer: Tokenizer, template: str | None, train_on: str, kwargs: dict[str, Any]) -> ChatEncoder:
    return ChatEncoder(tokenizer, chat_template=template, train_on=train_on, template_kwargs=kwargs)


def _tokens_of(encoding: Any, start: int, end: int, text: str, length: int) -> tuple[int, int]:
    """The run of tokens that hold the characters ``[start, end)``.

    A token that also holds characters behind the end belongs to the run, as in Transformers; so do all tokens of a
    last character that takes several.
    """
    first = _token_at(encoding, start, text, length)
    last = _token_at(encoding, end, text, length)
    for position in range(end - 1, start - 1, -1):
        token = encoding.char_to_token(position)
        if token is not None:
            return first, max(last, int(token) + 1)
    return first, last


def _token_at(encoding: Any, position: int, text: str, length: int) -> int:
    """The first token that holds the character at ``position`` or one behind it."""
    while position < len(text):
        token = encoding.char_to_token(position)
        if token is not None:
            return int(token)
        position += 1
    return length


def _weight(message: Message) -> Any:
    weight = message.get("weight", message.get("loss_weight", 1))
    return 1 if weight is None else weight

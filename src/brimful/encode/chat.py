"""Chats through the tokenizer's own chat template, with labels on the assistant's turns."""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from functools import cached_property
from typing import Any

import numpy as np

from brimful.checks import check_type, choice_of
from brimful.encode.characters import tokens_of
from brimful.encode.encoded import EncodedSample
from brimful.encode.encoder import Encoder, lengths_of
from brimful.encode.routing import begin_lengths_by_kind, encode_by_kind, encode_given, given_lengths
from brimful.encode.swallowed import SwallowedText
from brimful.encode.text import TextEncoder
from brimful.encode.tokenizer import Tokenizer
from brimful.encode.turns import Span, TurnFinder
from brimful.errors import AssistantTurnsError, BadSampleError, SettingsError
from brimful.messages import setting
from brimful.sources.sample import Message, Sample
from brimful.typing import Lengths, LossMask

__all__ = ["ChatEncoder", "Reasoning", "TrainOn"]

_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
_TODAY = re.compile(r"""strftime_now\(\s*(["'])(.*?)\1\s*\)""")
_NO_DATE = "brimful: no date"
_KNOWS_REASONING = re.compile(r"\b(reasoning_content|reasoning|thinking)\b")


class TrainOn(str, Enum):
    """Which tokens of a chat are targets of the loss."""

    ASSISTANT = "assistant"
    """Every answer of the assistant with the token that ends it (a message with ``weight`` 0 excepted)."""
    LAST = "last"
    """The last answer only."""
    ALL = "all"
    """Every token."""


class Reasoning(str, Enum):
    """What becomes of the thoughts of an answer (``reasoning_content``) if the template does not know them."""

    ERROR = "error"
    """The conversation is refused."""
    INLINE = "inline"
    """They are written in front of the answer, between ``<think>`` and ``</think>``."""
    DROP = "drop"
    """They are left out."""


class ChatEncoder(Encoder):
    """Token for token what ``tokenizer.apply_chat_template`` gives, and a loss mask beside it.

    A conversation of which the template would leave something out is refused by name. Texts among the chats are encoded
    as documents (``TextEncoder``), rows of tokens as they are.

    Args:
        tokenizer: a directory, a hub id, or a ``transformers`` tokenizer.
        chat_template: a Jinja template, or the path of one, instead of the tokenizer's own.
        train_on: which tokens are targets.
        template_kwargs: further variables for the template, such as ``{"enable_thinking": False}``.
        system: a system prompt for the conversations that have none.
        reasoning: what becomes of thoughts that the template does not know.
        date: the day that templates write which ask for today's (``strftime_now``), such as ``2026-01-31``; without it
            they would give other tokens on another day, and are refused.

    Raises:
        TokenizerNotFoundError: nothing at that path or id.
        SettingsError: the tokenizer has no chat template and none is given, or the template needs a date.
    """

    def __init__(
        self,
        tokenizer: str | os.PathLike[str] | Any,
        *,
        chat_template: str | os.PathLike[str] | None = None,
        train_on: TrainOn | str = TrainOn.ASSISTANT,
        template_kwargs: dict[str, Any] | None = None,
        system: str | None = None,
        reasoning: Reasoning | str = Reasoning.ERROR,
        date: datetime.date | str | None = None,
    ) -> None:
        self.tokenizer = Tokenizer.of(tokenizer)
        self.train_on = choice_of(TrainOn, train_on, argument="train_on")
        if chat_template is not None:
            check_type("chat_template", chat_template, (str, os.PathLike), "a Jinja template or the path of one")
        if template_kwargs is not None:
            check_type("template_kwargs", template_kwargs, Mapping, "a mapping")
        self._template = None if chat_template is None else os.fspath(chat_template)
        self._kwargs = dict(template_kwargs or {})
        self._system = system
        self._reasoning = choice_of(Reasoning, reasoning, argument="reasoning")
        self._date = _as_date(date)

    @cached_property
    def _documents(self) -> TextEncoder:
        return TextEncoder(self.tokenizer, eos=self.tokenizer.hf.eos_token_id is not None)

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
                f"{self.tokenizer} has no chat template: name one with {setting('chat_template')}, or train a base model "
                f"on prompts and completions as they are with {setting('mode', 'completion', python='CompletionEncoder')}"
            )
        return str(self.tokenizer.hf.get_chat_template(None, None))

    @cached_property
    def _rendered_template(self) -> str:
        """The template with the day that was asked for where it asks for today's."""
        date = self._date

        def fixed(match: re.Match[str]) -> str:
            if date is None:
                return f"raise_exception({_NO_DATE!r})"
            return repr(date.strftime(match.group(2)))

        template = _TODAY.sub(fixed, self.chat_template)
        if "strftime_now(" in template:
            raise SettingsError(
                "the chat template writes today's date in a form that is not known before: give it one that names the "
                f"form in place, with {setting('chat_template')}"
            )
        return template

    @property
    def length_settings(self) -> dict[str, Any]:
        more: dict[str, Any] = {}
        if self._system is not None:
            more["system"] = self._system
        if self._reasoning is not Reasoning.ERROR:
            more["reasoning"] = self._reasoning.value
        if self._date is not None and "strftime_now" in self.chat_template:
            more["date"] = self._date.isoformat()
        return {
            **more,
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
            chat_template=self._rendered_template,
            add_generation_prompt=add_generation_prompt,
            tokenize=False,
            **self._kwargs,
        )
        return text

    @property
    def all_are_targets(self) -> bool:
        return self.train_on is TrainOn.ALL

    def _prepared(self, sample: Sample) -> Sample:
        """A chat with the system prompt that was asked for, and with thoughts as the template can write them."""
        messages = sample.messages or ()
        changed: list[Message] | None = None
        if self._system is not None and messages[0]["role"] not in ("system", "developer"):
            changed = [{"role": "system", "content": self._system}, *messages]
        if any(message.get("reasoning_content") for message in messages) and not self._knows_reasoning:
            if self._reasoning is Reasoning.ERROR:
                raise BadSampleError(
                    f"an answer has thoughts (reasoning_content), which the chat template does not write: choose "
                    f"{setting('reasoning', 'inline')}, {setting('reasoning', 'drop')}, or another template",
                    sample_id=sample.sample_id,
                )
            inline = self._reasoning is Reasoning.INLINE
            changed = [_without_reasoning(message, inline) for message in changed or messages]
        return sample if changed is None else replace(sample, messages=changed)

    @cached_property
    def _knows_reasoning(self) -> bool:
        return _KNOWS_REASONING.search(self.chat_template) is not None

    def render(self, sample: Sample) -> str:
        """The text of a chat as the template writes it.

        Raises:
            BadSampleError: no chat, a conversation that the template refuses (says what it said), or one of which it
                leaves something out.
            SettingsError: the template asks for today's date and none was given.
        """
        return self._rendered(self._prepared(sample))

    def _rendered(self, sample: Sample) -> str:
        """The text of a prepared chat."""
        assert sample.messages is not None
        _ = self._rendered_template  # what is wrong with the template itself is no fault of the sample
        try:
            text = self._render(sample.messages, sample.tools, False)
        except Exception as error:  # whatever a template can raise is this sample's fault
            if _NO_DATE in str(error):
                raise SettingsError(
                    f"the chat template writes today's date, so that tomorrow's tokens would be others: name the day "
                    f"with {setting('date', datetime.date.today().isoformat())}"
                ) from None
            said = (str(error).strip() or repr(error)).splitlines()[0]
            raise BadSampleError(f"the chat template refuses it: {said}", sample_id=sample.sample_id) from error
        refusal = self.tokenizer.refusal(text) or self._swallowed.first(sample.messages, sample.tools, text)
        if refusal is not None:
            raise BadSampleError(refusal, sample_id=sample.sample_id)
        return text

    @cached_property
    def _swallowed(self) -> SwallowedText:
        return SwallowedText(self._render)

    def _render_all(self, samples: Sequence[Sample]) -> tuple[list[Sample], list[str], dict[int, BadSampleError]]:
        prepared: list[Sample] = []
        texts: list[str] = []
        errors: dict[int, BadSampleError] = {}
        for place, sample in enumerate(samples):
            try:
                ready = self._prepared(sample)
                texts.append(self._rendered(ready))
                prepared.append(ready)
            except BadSampleError as error:
                errors[place] = error
                texts.append("")
                prepared.append(sample)
        return prepared, texts, errors

    def lengths(self, samples: Sequence[Sample]) -> tuple[Lengths, list[BadSampleError]]:
        return self.begin_lengths(samples)()

    def begin_lengths(self, samples: Sequence[Sample]) -> Callable[[], tuple[Lengths, list[BadSampleError]]]:
        others = {"text": self._documents.begin_lengths, "tokens": given_lengths}
        return begin_lengths_by_kind(samples, {"chat": self._begin_lengths, **others})

    def _begin_lengths(self, samples: Sequence[Sample]) -> Callable[[], tuple[Lengths, list[BadSampleError]]]:
        _, texts, errors = self._render_all(samples)
        return lambda: lengths_of(self.tokenizer.counts(texts), errors)

    def encode_batch(self, samples: Sequence[Sample]) -> list[EncodedSample | BadSampleError]:
        others = {"text": self._documents.encode_batch, "tokens": encode_given}
        return encode_by_kind(samples, {"chat": self._encode, **others})

    def _encode(self, samples: Sequence[Sample]) -> list[EncodedSample | BadSampleError]:
        samples, texts, errors = self._render_all(samples)
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
            except (AssistantTurnsError, RecursionError) as error:
                reason = error.message if isinstance(error, AssistantTurnsError) else "it is nested too deeply"
                results.append(BadSampleError(reason, sample_id=sample.sample_id))
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
                first, last = tokens_of(encoding, start, end, text, length)
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
        if all(_weight(message) != 0 for message in answers):
            return spans
        if len(spans) != len(answers):
            raise AssistantTurnsError(
                f"an answer has weight 0, and the chat template marks {len(spans)} turns for {len(answers)} answers, so "
                f"that nobody knows which: leave the weights out, or use a template that marks each"
            )
        return [span for span, message in zip(spans, answers, strict=True) if _weight(message) != 0]

    def _marked_spans(self, sample: Sample) -> list[Span]:
        from transformers.utils.chat_template_utils import render_jinja_template

        variables = {**self.tokenizer.hf.special_tokens_map, **self._kwargs}
        _, indices = render_jinja_template(
            conversations=[[{k: v for k, v in turn.items() if v is not None} for turn in sample.messages or ()]],
            tools=list(sample.tools) if sample.tools else None,
            chat_template=self._rendered_template,
            return_assistant_tokens_mask=True,
            **variables,
        )
        return [(int(start), int(end)) for start, end in indices[0]]

    @cached_property
    def _finder(self) -> TurnFinder:
        return TurnFinder(self._render, self.tokenizer.special_texts)

    def decode(self, input_ids: Sequence[int]) -> str:
        return str(self.tokenizer.hf.decode(list(input_ids), skip_special_tokens=False))

    def no_target_reason(self, sample: Sample) -> str:
        if sample.kind != "chat":
            return super().no_target_reason(sample)
        answers = [message for message in sample.messages or () if message["role"] == "assistant"]
        if not answers:
            return "it has no turn of the assistant"
        asked = answers[-1:] if self.train_on is TrainOn.LAST else answers
        if all(_weight(message) == 0 for message in asked):
            return "its answers have weight 0"
        return "the chat template marks none of its tokens as an answer"

    def __reduce__(self) -> tuple[Any, ...]:
        date = None if self._date is None else self._date.isoformat()
        settings = (self._template, self.train_on.value, self._kwargs, self._system, self._reasoning.value, date)
        return _rebuild, (self.tokenizer, *settings)


def _rebuild(
    tokenizer: Tokenizer,
    template: str | None,
    train_on: str,
    kwargs: dict[str, Any],
    system: str | None,
    reasoning: str,
    date: str | None,
) -> ChatEncoder:
    return ChatEncoder(
        tokenizer,
        chat_template=template,
        train_on=train_on,
        template_kwargs=kwargs,
        system=system,
        reasoning=reasoning,
        date=date,
    )


def _as_date(date: datetime.date | str | None) -> datetime.date | None:
    if date is None or isinstance(date, datetime.date):
        return date
    try:
        return datetime.date.fromisoformat(date)
    except ValueError as error:
        raise SettingsError(f"{setting('date', date)} is no day: write it as 2026-01-31") from error


def _without_reasoning(message: Message, inline: bool) -> Message:
    """The message with its thoughts in front of its content, or without them."""
    if not message.get("reasoning_content"):
        return message
    content = message.get("content") or ""
    if inline:
        content = f"<think>\n{message['reasoning_content'].strip()}\n</think>\n\n{content}"
    return {**{key: value for key, value in message.items() if key != "reasoning_content"}, "content": content}


def _weight(message: Message) -> Any:
    weight = message.get("weight", message.get("loss_weight", 1))
    return 1 if weight is None else weight

"""Chats through the tokenizer's own chat template, with labels on the assistant's turns."""

import datetime
import os
import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from brimful.base.checks import check_type, choice_of
from brimful.base.typing import AnyPath
from brimful.base.wings import FILLING, loaded
from brimful.base.wording import setting
from brimful.encode.chat_template import ChatTemplate
from brimful.encode.completions import BORROWED_REASON, PromptAndOther, has_borrowed
from brimful.encode.rendering import RenderingEncoder
from brimful.encode.text import TextEncoder
from brimful.encode.token_places import Span, TextSpans
from brimful.encode.tokenizer import Tokenizer
from brimful.encode.turns import SwallowedText, TurnFinder
from brimful.errors import AssistantTurnsError, BadSampleError, SettingsError
from brimful.sources.sample import (
    Message,
    PlainMessages,
    Sample,
    is_empty,
    unusual_messages,
    weight,
)

_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
_TODAY = re.compile(r"""strftime_now\(\s*(["'])(.*?)\1\s*\)""")
_UNSTEADY = re.compile(
    r"""strftime_now(?!\s+is\b)|(?:\||\bfilter|map\(["'])\s*random\b|\blipsum\b"""
)
_NO_DATE = "brimful: no date"
"""Text that a template raises instead of writing today's date."""
_REASONING_VARIABLE = re.compile(r"\b(reasoning_content|reasoning|thinking)\b")


class TrainOn(str, Enum):
    """Choice of the tokens of a chat that are targets of the loss."""

    ASSISTANT = "assistant"
    """Every answer of the assistant with the token that ends it (a message with ``weight`` 0
    excepted).
    """
    LAST = "last"
    """The last answer only."""
    ALL = "all"
    """Every token."""


class Reasoning(str, Enum):
    """Treatment of an answer's reasoning (``reasoning_content``) that the template does not
    write.
    """

    ERROR = "error"
    """The conversation is refused."""
    INLINE = "inline"
    """The reasoning is written before the answer, between ``<think>`` and ``</think>``."""
    DROP = "drop"
    """The reasoning is left out."""


class FilledText(Protocol):
    """The text of a chat whose texts were put into the template's own, so that it shows them."""

    @property
    def text(self) -> str:
        """The whole text."""

    @property
    def turns(self) -> list[Span]:
        """The span of each turn of the assistant."""


class TextFiller(Protocol):
    """A way to the text of most chats that needs no rendering, and gives the template's text.

    ``base.wings.FILLING`` makes it from a template, from the finder of its turns, and from whether
    it is trusted: else every chat is rendered.
    """

    @property
    def fills_plain_chats(self) -> bool:
        """True if an ordinary chat is filled in, so that its text needs little Python."""

    def render(
        self, messages: Sequence[Message], tools: Any
    ) -> tuple[Hashable, str, FilledText | None]:
        """Return the shape of a chat, which decides what else the template writes, and its text;
        also as a filled text if it is one.

        Raises:
            Exception: the template refuses it; of any class.
        """

    def fill_together(self, samples: Sequence[Sample]) -> Mapping[int, FilledText]:
        """Return the texts of the chats that are filled in at once, by their index."""

    def spans_of_turns(
        self, rows: Sequence[int], texts: Sequence[Any], *, last_only: bool
    ) -> TextSpans:
        """Return the spans of the assistant's turns in several of its filled texts.

        Args:
            rows: index in the batch of each text.
            texts: the filled texts.
            last_only: return only the last turn of each text.
        """


class _Rendering(NamedTuple):
    """A prepared chat, and its text if that is filled in, so that its turns are known."""

    chat: Sample
    filled_text: FilledText | None


class ChatEncoder(RenderingEncoder):
    """The tokens that ``tokenizer.apply_chat_template`` gives, one for one, with a loss mask.

    A conversation is refused, with the name of the part, if the template would leave something out.
    Texts among the chats are encoded as documents (``TextEncoder``), rows of tokens as they are.

    Args:
        tokenizer: a directory, a hub id, or a ``transformers`` tokenizer.
        chat_template: a Jinja template, or the path of one, instead of the tokenizer's own.
        train_on: which tokens are targets.
        template_kwargs: further variables for the template, such as ``{"enable_thinking": False}``.
        system: a system prompt for the conversations that have none.
        reasoning: treatment of reasoning that the template does not write.
        date: the day that templates write if they ask for today's (``strftime_now``), such as
            ``2026-01-31``. Without it such templates would give other tokens on another day, and
            are refused.

    Raises:
        TokenizerNotFoundError: nothing at that path or id.
        SettingsError: the tokenizer has no chat template and none is given, or the template needs a
            date.
    """

    def __init__(
        self,
        tokenizer: AnyPath | Any,
        *,
        chat_template: AnyPath | None = None,
        train_on: TrainOn | str = TrainOn.ASSISTANT,
        template_kwargs: dict[str, Any] | None = None,
        system: str | None = None,
        reasoning: Reasoning | str = Reasoning.ERROR,
        date: datetime.date | str | None = None,
    ) -> None:
        self.tokenizer = Tokenizer.of(tokenizer)
        self.train_on = choice_of(TrainOn, train_on, argument="train_on")
        absent, of_template = type(None), "a Jinja template or the path of one"
        check_type("chat_template", chat_template, (str, os.PathLike, absent), of_template)
        check_type("template_kwargs", template_kwargs, (Mapping, absent), "a mapping")
        self._template = None if chat_template is None else os.fspath(chat_template)
        self._kwargs = dict(template_kwargs or {})
        self._system = system
        self._reasoning = choice_of(Reasoning, reasoning, argument="reasoning")
        self._date = _as_date(date)

    @cached_property
    def _documents(self) -> TextEncoder:  # type: ignore[override]
        # The user did not ask for EOS after documents among chats, so a tokenizer without one is
        # not an error.
        return TextEncoder(self.tokenizer, eos=self.tokenizer.facts.eos_id is not None)

    @cached_property
    def chat_template(self) -> str:
        """Jinja source of the template in use."""
        template = self._template
        if template is None:
            if self.tokenizer.facts.chat_template is None:
                raise SettingsError(
                    f"{self.tokenizer} has no chat template: name one with "
                    f"{setting('chat_template')}, or train a base model on prompts and completions "
                    f"as they are with {setting('mode', 'completion', python='CompletionEncoder')}"
                )
            return self.tokenizer.facts.chat_template
        # Every template has an expression in braces, and hardly any path has a brace.
        if "{" in template:
            return template
        try:
            with open(template, encoding="utf-8") as file:
                return file.read()
        except OSError as error:
            raise SettingsError(
                f"{setting('chat_template', template)}: no such file, and it is not a template"
            ) from error
        except UnicodeDecodeError as error:
            raise SettingsError(
                f"{setting('chat_template', template)} is not text: {error.reason} at byte "
                f"{error.start}"
            ) from error

    @cached_property
    def _rendered_template(self) -> str:
        """The template with the day of ``date`` instead of today's."""
        date = self._date

        def fix_day(match: re.Match[str]) -> str:
            if date is None:
                return f"raise_exception({_NO_DATE!r})"
            return repr(date.strftime(match.group(2)))

        template = _TODAY.sub(fix_day, self.chat_template)
        if match := _UNSTEADY.search(template):
            raise SettingsError(
                "the chat template writes today's date in a form that is not a literal, or other "
                f"text each time ({match[0]}): give it one that names the form in place, with "
                f"{setting('chat_template')}"
            )
        return template

    @property
    def length_settings(self) -> dict[str, Any]:
        # Settings that change nothing are left out, so that fingerprints of earlier versions, which
        # lack them, stay valid.
        optional: dict[str, Any] = {}
        if self._system is not None:
            optional["system"] = self._system
        if self._reasoning is not Reasoning.ERROR:
            optional["reasoning"] = self._reasoning.value
        if self._date is not None and "strftime_now" in self.chat_template:
            optional["date"] = self._date.isoformat()
        return {
            **optional,
            "encoder": "chat",
            "tokenizer": self.tokenizer.fingerprint,
            "chat_template": self.chat_template,
            "template_kwargs": self._kwargs,
            "special_tokens": dict(self.tokenizer.facts.special_tokens),
        }

    @property
    def label_settings(self) -> dict[str, Any]:
        return {"train_on": self.train_on.value}

    @cached_property
    def _chat_template(self) -> ChatTemplate:  # type: ignore[override]
        facts = self.tokenizer.facts
        return ChatTemplate(
            self._rendered_template,
            {**facts.special_tokens, **self._kwargs},
            self._apply_template,
            aliases_reasoning=facts.aliases_reasoning,
            jinja=self.tokenizer.fast or self.is_reference,
        )

    def _apply_template(
        self, messages: Sequence[Message], tools: Any, add_generation_prompt: bool
    ) -> str:
        """Return the text of a conversation from Transformers."""
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

    def _prepare(self, sample: Sample) -> Sample:
        """Return a chat with the system prompt of the settings, and with reasoning as the template
        can write it.
        """
        original = sample.messages or ()
        if self._system is None and type(original) is PlainMessages:
            return sample
        messages = original
        if self._system is not None and messages[0]["role"] not in ("system", "developer"):
            messages = [{"role": "system", "content": self._system}, *messages]
        has_thoughts = any(
            message.get("reasoning_content") for message in unusual_messages(original)
        )
        if has_thoughts and not self._knows_reasoning:
            if self._reasoning is Reasoning.ERROR:
                raise BadSampleError(
                    "an answer has reasoning (reasoning_content), which the chat template does "
                    f"not write: choose {setting('reasoning', 'inline')}, "
                    f"{setting('reasoning', 'drop')}, or another template",
                    sample_id=sample.sample_id,
                )
            is_inline = self._reasoning is Reasoning.INLINE
            messages = [_without_reasoning(message, is_inline) for message in messages]
        return sample if messages is original else replace(sample, messages=messages)

    @cached_property
    def _knows_reasoning(self) -> bool:
        return _REASONING_VARIABLE.search(self.chat_template) is not None

    def render(self, sample: Sample) -> str:
        """Return the text of a chat as the template writes it.

        Raises:
            BadSampleError: not a chat, a conversation that the template refuses (quotes its
                message), or one of which the template leaves something out.
            SettingsError: the template asks for today's date and none was given.
        """
        return self._render_sample(sample)[1]

    def _render_sample(self, sample: Sample) -> tuple[_Rendering, str]:
        """Return the prepared chat, with its turns if they are already known, and its text."""
        chat = self._prepare(sample)
        messages = chat.messages or ()
        # Made before the ``try``: a fault of the template itself is not the sample's fault.
        filling = self._filling
        try:
            shape, text, filled_text = filling.render(messages, chat.tools)
        except Exception as error:  # of any class: all count as the sample's fault
            if _NO_DATE in str(error):
                raise SettingsError(
                    "the chat template writes today's date, so that tomorrow's tokens would "
                    "differ: name the day with "
                    f"{setting('date', datetime.date.today().isoformat())}"
                ) from None
            raise _refused(sample, "it", error) from error
        self.tokenizer.check(sample, text)
        # Every message is in a filled text.
        if filled_text is not None:
            refusal = self._swallowed.missing_tool(chat.tools, text)
        else:
            refusal = self._swallowed.first(shape, messages, chat.tools, text)
        if refusal is not None:
            raise BadSampleError(refusal, sample_id=sample.sample_id)
        return _Rendering(chat, filled_text), text

    def _render_together(self, samples: Sequence[Sample]) -> Mapping[int, tuple[_Rendering, str]]:
        # Checks that depend only on the shape are made once for all its conversations.
        if self._system is not None:
            return {}
        renderings = {
            index: (_Rendering(samples[index], filled_text), filled_text.text)
            for index, filled_text in self._filling.fill_together(samples).items()
        }
        # If a text is refused, the conversations are checked one by one.
        return renderings if self.tokenizer.takes([text for _, text in renderings.values()]) else {}

    def prompt_and_other(self, sample: Sample) -> PromptAndOther:
        completion, original = sample.completion, sample.messages or ()
        assert completion is not None
        prepared = self._prepare(sample)
        # A system prompt from the settings comes before the prompt of the row.
        num_prompt = completion.num_prompt + len(prepared.messages or ()) - len(original)
        prompt = list(prepared.messages or ())[:num_prompt]
        other = (
            None
            if completion.other is None
            else self._prepare(replace(sample, messages=completion.other)).messages
        )
        try:
            return (
                self._chat_template.render(prompt, sample.tools, add_generation_prompt=True),
                "" if other is None else self._chat_template.render(other, sample.tools),
            )
        except Exception as error:  # as in ``_render_sample``
            raise _refused(sample, "its prompt or its other conversation", error) from error

    def _check_completion(self, sample: Sample) -> None:
        super()._check_completion(sample)
        if sample.completion is not None and sample.completion.needs_no_template:
            raise BadSampleError(
                "has two texts and no prompt: their common beginning is not a turn of a chat. "
                f"Choose {setting('mode', 'completion', python='CompletionEncoder')}, or give the "
                "prompt",
                sample_id=sample.sample_id,
            )

    @cached_property
    def _filling(self) -> TextFiller:
        filling: TextFiller = loaded(FILLING)(
            self._chat_template, self._finder, bool(self.tokenizer.engine_id)
        )
        return filling

    def _needs_little_python(self) -> bool:
        return self._filling.fills_plain_chats

    @cached_property
    def _swallowed(self) -> SwallowedText:
        return SwallowedText(self._chat_template.render)

    def _spans_of_batch(
        self,
        indices: Sequence[int],
        contexts: Sequence[Any],
        texts: Sequence[str],
        errors: dict[int, BadSampleError],
    ) -> TextSpans:
        # Spans of filled texts are found together, which takes a tenth of the time; the others one
        # by one.
        own_indices = [index for index in indices if self._shows_turns(contexts[index])]
        filled_texts = [contexts[index].filled_text for index in own_indices]
        spans = self._filling.spans_of_turns(
            own_indices, filled_texts, last_only=self.train_on is TrainOn.LAST
        )
        other_indices = sorted(set(indices).difference(own_indices))
        return TextSpans.joined(
            [spans, super()._spans_of_batch(other_indices, contexts, texts, errors)]
        )

    def _shows_turns(self, rendering: _Rendering) -> bool:
        """Return true if the filled text gives its targets: no template marks, no weights, no empty
        answers.
        """
        if rendering.filled_text is None or self._marks_turns:
            return False
        return not any(
            "weight" in message or "loss_weight" in message or is_empty(message)
            for message in unusual_messages(rendering.chat.messages or ())
        )

    def _may_hide(self, context: _Rendering) -> bool:
        if self._marks_turns:
            return any(weight(message) == 0 for message in _answers_of(context.chat))
        return context.filled_text is None

    def _target_spans(self, context: _Rendering, text: str) -> Sequence[Span]:
        try:
            return self._spans_to_train(context, text)
        # Both are faults of this conversation alone, so the batch continues without it.
        except AssistantTurnsError as error:
            reason = error.message
        except RecursionError:
            reason = "it is nested too deeply"
        raise BadSampleError(reason, sample_id=context.chat.sample_id)

    def _spans_to_train(self, rendering: _Rendering, text: str) -> list[Span]:
        """Return the spans of the assistant turns to train on."""
        sample = rendering.chat
        answers = _answers_of(sample)
        if not answers:
            return []
        if self._marks_turns:
            turns = [[span] for span in self._generation_spans(sample)]
        elif rendering.filled_text is not None:
            turns = [[span] for span in rendering.filled_text.turns]
        else:
            turns = self._finder.spans(sample.messages or (), sample.tools, text)
        if self.train_on is TrainOn.LAST:
            turns, answers = turns[-1:], answers[-1:]
        # If all answers are empty, the ends of turns are not worth training on.
        if all(map(is_empty, answers)):
            return []
        if any(weight(message) == 0 for message in answers):
            # Weights belong to answers, so each turn has to belong to a known answer.
            if len(turns) != len(answers):
                raise AssistantTurnsError(
                    f"an answer has weight 0, and the chat template marks {len(turns)} turns for "
                    f"{len(answers)} answers, so that it is unclear which: leave the weights out, "
                    "or use a template that marks each"
                )
            turns = [
                turn for turn, message in zip(turns, answers, strict=True) if weight(message) != 0
            ]
        return [(start, end) for turn in turns for start, end in turn if start < end]

    @cached_property
    def _marks_turns(self) -> bool:
        """True if the template itself marks the turns."""
        return _GENERATION.search(self.chat_template) is not None

    def _generation_spans(self, sample: Sample) -> list[Span]:
        """Return the spans that the template itself marks with ``{% generation %}``."""
        from transformers.utils.chat_template_utils import render_jinja_template

        variables = {**self.tokenizer.facts.special_tokens, **self._kwargs}
        _, indices = render_jinja_template(
            conversations=[
                [{k: v for k, v in turn.items() if v is not None} for turn in sample.messages or ()]
            ],
            tools=list(sample.tools) if sample.tools else None,
            chat_template=self._rendered_template,
            return_assistant_tokens_mask=True,
            **variables,
        )
        return [(int(start), int(end)) for start, end in indices[0]]

    @cached_property
    def _finder(self) -> TurnFinder:
        return TurnFinder(
            self._chat_template.render,
            self._chat_template.trace,
            self.tokenizer.facts.special_texts,
        )

    def no_target_reason(self, sample: Sample) -> str:
        if sample.kind != "chat":
            return super().no_target_reason(sample)
        if sample.completion is not None:
            return BORROWED_REASON if has_borrowed(sample) else "its completion is empty"
        answers = _answers_of(sample)
        if not answers:
            roles = dict.fromkeys(message["role"] for message in sample.messages or ())
            is_usual = roles.keys() <= {"system", "developer", "user", "tool"}
            return "it has no turn of the assistant" + (
                "" if is_usual else f" (its roles: {', '.join(roles)})"
            )
        trained_answers = answers[-1:] if self.train_on is TrainOn.LAST else answers
        if all(weight(message) == 0 for message in trained_answers):
            return "its answers have weight 0"
        if all(map(is_empty, trained_answers)):
            return "its answers are empty"
        return "the chat template marks none of its tokens as an answer"


def _refused(sample: Sample, subject: str, error: Exception) -> BadSampleError:
    """Return the error of a sample that the chat template refuses."""
    message = (str(error).strip() or repr(error)).splitlines()[0]
    return BadSampleError(
        f"the chat template refuses {subject}: {message}", sample_id=sample.sample_id
    )


def _as_date(date: datetime.date | str | None) -> datetime.date | None:
    if isinstance(date, datetime.datetime):
        return date.date()
    if date is None or isinstance(date, datetime.date):
        return date
    try:
        return datetime.date.fromisoformat(date)
    except ValueError as error:
        raise SettingsError(
            f"{setting('date', date)} is not a day: write it as 2026-01-31"
        ) from error


def _without_reasoning(message: Message, is_inline: bool) -> Message:
    """Return the message with its reasoning before its content, or without it."""
    if not message.get("reasoning_content"):
        return message
    content = message.get("content") or ""
    if is_inline:
        content = f"<think>\n{message['reasoning_content'].strip()}\n</think>\n\n{content}"
    return {
        **{key: value for key, value in message.items() if key != "reasoning_content"},
        "content": content,
    }


def _answers_of(sample: Sample) -> list[Message]:
    return [message for message in sample.messages or () if message["role"] == "assistant"]

"""Texts without a chat template: documents with their beginning and end marked, and prompts with
completions.
"""

from collections.abc import Sequence
from enum import Enum
from functools import cached_property
from typing import Any

from brimful.base.checks import choice_of
from brimful.base.typing import AnyPath
from brimful.base.wording import setting
from brimful.encode.completions import BORROWED_REASON, PromptAndOther, has_borrowed
from brimful.encode.encoder import wrong_kind
from brimful.encode.rendering import RenderingEncoder
from brimful.encode.tokenizer import Tokenizer
from brimful.errors import BadSampleError, SettingsError
from brimful.sources.sample import Sample


class TextEncoder(RenderingEncoder):
    """``[BOS] text [EOS]``; every token but the first of a segment is a target.

    Args:
        tokenizer: a directory, a hub id, or a ``transformers`` tokenizer.
        bos: begin with the tokenizer's BOS; None: if the tokenizer itself does.
        eos: end with its EOS. On by default, since the model should learn where a document ends.

    Raises:
        SettingsError: a requested mark that the tokenizer does not have.
        TokenizerNotFoundError: nothing at that path or id.
    """

    def __init__(
        self, tokenizer: AnyPath | Any, *, bos: bool | None = None, eos: bool = True
    ) -> None:
        self.tokenizer = Tokenizer.of(tokenizer)
        self._bos, self._eos = bos, eos

    @cached_property
    def marks(self) -> tuple[list[int], list[int]]:
        """Token ids before and after every document."""
        facts = self.tokenizer.facts
        # Some tokenizers add BOS automatically; the default follows them.
        bos = facts.begins_with_bos if self._bos is None else self._bos
        if bos and facts.bos_id is None:
            raise SettingsError(
                f"{self.tokenizer} has no beginning-of-sequence token; use {setting('bos', False)}"
            )
        if self._eos and facts.eos_id is None:
            raise SettingsError(
                f"{self.tokenizer} has no end-of-sequence token; use {setting('eos', False)}"
            )
        prefix = [facts.bos_id] if bos and facts.bos_id is not None else []
        return prefix, [facts.eos_id] if self._eos and facts.eos_id is not None else []

    @property
    def length_settings(self) -> dict[str, Any]:
        prefix, suffix = self.marks
        return {
            "encoder": "text",
            "tokenizer": self.tokenizer.fingerprint,
            "bos": prefix,
            "eos": suffix,
        }

    @property
    def label_settings(self) -> dict[str, Any]:
        return {"train_on": "all"}

    @property
    def all_are_targets(self) -> bool:
        return True

    def _render_sample(self, sample: Sample) -> tuple[None, str]:
        if sample.text is None:
            raise wrong_kind(sample, "texts")
        self.tokenizer.check(sample, sample.text)
        return None, sample.text


class CompletionTargets(str, Enum):
    """Choice of the tokens of a prompt and its completion that are targets of the loss."""

    COMPLETION = "completion"
    """The completion and the EOS after it."""
    ALL = "all"
    """Every token."""


class CompletionEncoder(RenderingEncoder):
    """``[BOS] prompt separator completion [EOS]``: rows of one prompt and one completion, for base
    models.

    ::

        row          {"prompt": "1+1?", "completion": " 2"}
        input_ids    1 + 1 ? _2 </s>          int32[length]
        targets              _2 </s>          with train_on="all" every token

    Prompt and completion are tokenized as one text, as the model will see them; a token that holds
    characters of both is a target. Documents are encoded as ``TextEncoder`` does.

    Args:
        tokenizer: a directory, a hub id, or a ``transformers`` tokenizer.
        train_on: which tokens are targets.
        separator: text between prompt and completion; it counts as part of the prompt.
        bos: begin with the tokenizer's BOS; None: if the tokenizer itself does.
        eos: end with its EOS.

    Raises:
        SettingsError: a requested mark that the tokenizer does not have.
    """

    _documents: TextEncoder

    def __init__(
        self,
        tokenizer: AnyPath | Any,
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
        return {
            **self._documents.length_settings,
            "encoder": "completion",
            "separator": self._separator,
        }

    @property
    def label_settings(self) -> dict[str, Any]:
        return {"train_on": self.train_on.value}

    @property
    def all_are_targets(self) -> bool:
        return self.train_on is CompletionTargets.ALL

    @property
    def marks(self) -> tuple[list[int], list[int]]:
        """Token ids before every prompt and after its completion."""
        return self._documents.marks

    def _render_sample(self, sample: Sample) -> tuple[int, str]:
        """Return the number of characters before the completion, and the whole text."""
        messages = sample.messages or ()
        roles = [message["role"] for message in messages]
        is_pair = roles == ["user", "assistant"] and not any(
            message.get("tool_calls") for message in messages
        )
        if not is_pair or sample.tools:
            reason = (
                f"has turns of {', '.join(roles)}{' and tools' if sample.tools else ''}, and "
                "without a chat template a sample is one prompt and one completion: use "
                f"{setting('mode', 'chat', python='ChatEncoder')}"
            )
            raise BadSampleError(reason, sample_id=sample.sample_id)
        prompt, completion = (str(message.get("content") or "") for message in messages)
        if sample.completion is not None:
            completion = self._without_eos(completion)
        self.tokenizer.check(sample, prompt + completion)
        # The separator is the same in all rows and teaches nothing, so it belongs to the prompt.
        prompt += self._separator
        return len(prompt), prompt + completion

    def _target_spans(self, context: int, text: str) -> Sequence[tuple[int, int]]:
        return [(context, len(text))]

    def prompt_and_other(self, sample: Sample) -> PromptAndOther:
        assert sample.completion is not None
        assert sample.messages is not None
        prompt = str(sample.messages[0]["content"]) + self._separator
        other = sample.completion.other
        return prompt, "" if other is None else prompt + self._without_eos(str(other[1]["content"]))

    def _without_eos(self, completion: str) -> str:
        """Return the completion without an EOS at the end of its text: as in TRL, it is written
        once.
        """
        eos = self.tokenizer.facts.special_tokens.get("eos_token")
        return completion.removesuffix(eos) if eos and self.marks[1] else completion

    def no_target_reason(self, sample: Sample) -> str:
        if has_borrowed(sample):
            return BORROWED_REASON
        return (
            "its completion is empty" if sample.kind == "chat" else super().no_target_reason(sample)
        )

"""Choice of the encoder for a source, from the format of its rows and the settings."""

import datetime
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import Enum
from inspect import signature
from typing import Any

from brimful.base.arguments import as_settings, option, understands
from brimful.base.checks import choice_of
from brimful.base.typing import AnyPath
from brimful.base.wings import ATTACHMENT_ENCODER, loaded
from brimful.base.wording import setting
from brimful.encode.chat import ChatEncoder, Reasoning, TrainOn
from brimful.encode.encoder import Encoder, TokenEncoder
from brimful.encode.text import CompletionEncoder, TextEncoder
from brimful.encode.tokenizer import Tokenizer
from brimful.errors import SettingsError
from brimful.sources.source import Source


class Mode(str, Enum):
    """Choice of the way from rows to tokens."""

    AUTO = "auto"
    """By the format of the rows: chats if any, else documents, else tokens as they are."""
    CHAT = "chat"
    """Through the chat template (``ChatEncoder``); texts and tokens among the chats as they are."""
    COMPLETION = "completion"
    """Prompt and completion without a template, for base models (``CompletionEncoder``)."""
    TEXT = "text"
    """Documents (``TextEncoder``)."""
    TOKENS = "tokens"
    """Rows that are already tokenized (``TokenEncoder``)."""


_ENCODERS: dict[Mode, Callable[..., Encoder]] = {
    Mode.CHAT: ChatEncoder,
    Mode.COMPLETION: CompletionEncoder,
    Mode.TEXT: TextEncoder,
    Mode.TOKENS: TokenEncoder,
}
_MODE_OF_FORMAT = {"text": Mode.TEXT, "tokens": Mode.TOKENS}
"""Mode of a row format; chats for all others."""


@dataclass(frozen=True, kw_only=True)
class EncoderSettings:
    """Settings of the way from rows to tokens.

    Attributes:
        mode: the way from rows to tokens.
        train_on: see ``ChatEncoder`` and ``CompletionEncoder``; their default if None.
        chat_template, template_kwargs, system, reasoning, date: see ``ChatEncoder``.
        separator: see ``CompletionEncoder``.
        bos, eos: see ``TextEncoder``.
        fast: encode with faster libraries if they give the same tokens; never changes the result.
        media: the model family that turns the sizes of images, videos and audio into tokens
            (``media.families.open_family``), for chats with media.
        compare_media: see ``MediaChatEncoder``.
    """

    mode: Mode | str = option(
        Mode.AUTO,
        "Chats with the chat template, prompt and completion without one, documents, or ready "
        "tokens; auto chooses by the format of the rows.",
    )
    chat_template: str | None = option(
        None, "A Jinja chat template instead of the tokenizer's own.", "FILE"
    )
    template_kwargs: Mapping[str, Any] | None = option(
        None,
        "A variable of the chat template, such as enable_thinking=false.",
        "NAME=VALUE",
        "--template-arg",
        example="enable_thinking=false",
    )
    system: str | None = option(None, "System prompt for chats without one.", "TEXT")
    reasoning: Reasoning | str = option(
        Reasoning.ERROR,
        "Reasoning (reasoning_content) that the template does not support: refuse, write it as "
        "<think>, or drop.",
    )
    date: datetime.date | str | None = option(
        None, "The date for templates that write today's date, such as Llama 3.1's.", "YYYY-MM-DD"
    )
    train_on: str | None = option(
        None,
        "Tokens that are targets: in chats every answer (default), the last answer, or all "
        "tokens; in prompt and completion the completion (default) or all tokens.",
        choices=("assistant", "last", "completion", "all"),
    )
    separator: str = option("", "Between prompt and completion, with --mode completion.", "TEXT")
    bos: bool | None = option(None, "Documents begin with BOS (default: as in the tokenizer).")
    eos: bool = option(True, "Documents end with EOS.")
    fast: bool = option(
        True, "Encode with faster libraries if they give the same tokens (default)."
    )
    media: Any = None
    compare_media: bool = option(
        True,
        "Compare a share of the samples with the model's own processor while measuring (default).",
    )

    def changes(self) -> dict[str, Any]:
        """Return the settings of encoders that differ from their defaults."""
        return {
            item.name: value
            for item in fields(self)
            if item.name not in ("mode", "fast", "media", "compare_media")
            and (value := getattr(self, item.name)) not in (item.default, {})
        }


@understands({}, EncoderSettings)
def encoder_for(
    source: Source | None,
    tokenizer: AnyPath | Any | None,
    settings: EncoderSettings | None = None,
    **options: Any,
) -> Encoder:
    """Return the encoder for a source, with these settings.

    Args:
        source: the samples; None if they are not known yet, for a given mode.
        tokenizer: a directory, a hub id, or a ``transformers`` tokenizer; None for rows of tokens.
        settings, options: an ``EncoderSettings``, or its fields as keywords.

    Raises:
        SettingsError: no tokenizer, though one is needed, or a setting that this mode does not
            have.

    >>> from brimful.sources import open_source
    >>> encoder_for(open_source([{"input_ids": [5, 6]}]), None)
    TokenEncoder(train_on labels)
    """
    settings = as_settings(EncoderSettings, settings, options)
    train_on, family = settings.train_on, settings.media
    mode = choice_of(Mode, settings.mode, argument="mode")
    if mode is Mode.AUTO:
        assert source is not None
        # A mixture is encoded by ``ChatEncoder``, which takes texts and tokens among the chats.
        modes = {_MODE_OF_FORMAT.get(row_format.name, Mode.CHAT) for row_format in source.formats}
        mode = modes.pop() if len(modes) == 1 else Mode.CHAT
    values = settings.changes()
    # A setting that this mode does not have would change nothing, and the user would never know.
    known = {choice: signature(encoder).parameters for choice, encoder in _ENCODERS.items()}
    stray = next((name for name in values if name not in known[mode]), None)
    if stray is not None:
        mode_names = " or ".join(
            setting("mode", choice.value) for choice in known if stray in known[choice]
        )
        raise SettingsError(
            f"{setting(stray)} has no effect in {setting('mode', mode.value)}: it is for "
            f"{mode_names}"
        )
    if source is not None and source.group_size > 1 and train_on is not None:
        raise SettingsError(
            f"{setting('train_on')} has no effect on preferences, whose targets are their "
            "completions: leave it out"
        )
    if source is not None and source.per_turn:
        if mode is not Mode.CHAT:
            raise SettingsError(
                f"{setting('per_turn')} is for {setting('mode', Mode.CHAT.value)}, and the mode is "
                f"{mode.value}"
            )
        if train_on not in (None, TrainOn.LAST):
            raise _repeated_targets(train_on)
        values["train_on"] = TrainOn.LAST
    if mode is Mode.TOKENS:
        return TokenEncoder(tokenizer)
    if tokenizer is None:
        raise SettingsError(
            f"{setting('tokenizer')} is missing: name the directory or hub id of the tokenizer of "
            "your model"
        )
    if not settings.fast:
        tokenizer = (
            tokenizer.reference
            if isinstance(tokenizer, Tokenizer)
            else Tokenizer(tokenizer, fast=False)
        )
    if family is None:
        return _ENCODERS[mode](tokenizer, **values)
    if mode is not Mode.CHAT:
        raise SettingsError(
            f"media are packed with {setting('mode', Mode.CHAT.value)}, and the mode is "
            f"{mode.value}"
        )
    encoder: Encoder = loaded(ATTACHMENT_ENCODER)(
        tokenizer, family, compare_media=settings.compare_media, **values
    )
    return encoder


def as_encoder(source: Source, encoder: Encoder | AnyPath | Any) -> Encoder:
    """Return an encoder as it is; for a tokenizer or its name, the encoder for the source.

    Raises:
        SettingsError: neither an encoder nor a tokenizer; or an encoder that would train answers of
            a source ``per_turn`` several times.
    """
    if isinstance(encoder, Encoder):
        train_on = encoder.train_on if isinstance(encoder, ChatEncoder) else TrainOn.LAST
        if source.per_turn and train_on is not TrainOn.LAST:
            raise _repeated_targets(train_on.value)
        return encoder
    return encoder_for(source, Tokenizer.of(encoder))


def _repeated_targets(train_on: str) -> SettingsError:
    """Return the error of targets that are in several samples of one conversation."""
    return SettingsError(
        f"with {setting('per_turn', True)} each answer is the only target of its sample, and "
        f"{setting('train_on', train_on)} would train it again in each later one: choose "
        f"{setting('train_on', TrainOn.LAST.value)}"
    )

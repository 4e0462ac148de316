"""Choice of the encoder for a source, from the format of its rows and the settings."""

import datetime
import os
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from brimful.checks import choice_of
from brimful.encode.chat import ChatEncoder, Reasoning
from brimful.encode.completion import CompletionEncoder
from brimful.encode.encoder import Encoder
from brimful.encode.media_chat import MediaChatEncoder
from brimful.encode.text import TextEncoder
from brimful.encode.tokenizer import Tokenizer
from brimful.encode.tokens import TokenEncoder
from brimful.errors import SettingsError
from brimful.media.families import Family
from brimful.messages import setting
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


_SETTINGS = {
    Mode.CHAT: ("train_on", "chat_template", "template_kwargs", "system", "reasoning", "date"),
    Mode.COMPLETION: ("train_on", "separator", "bos", "eos"),
    Mode.TEXT: ("bos", "eos"),
    Mode.TOKENS: (),
}
"""Settings that each mode has; any other is refused."""

_TRAIN_ON = {Mode.CHAT: ("assistant", "last", "all"), Mode.COMPLETION: ("completion", "all")}
_ENCODERS: dict[Mode, Callable[..., Encoder]] = {
    Mode.CHAT: ChatEncoder,
    Mode.COMPLETION: CompletionEncoder,
    Mode.TEXT: TextEncoder,
}
_MODE_OF_FORMAT = {"text": Mode.TEXT, "tokens": Mode.TOKENS}
"""Mode of a row format; chats for all others."""


def encoder_for(
    source: Source,
    tokenizer: str | os.PathLike[str] | Any | None,
    *,
    mode: Mode | str = Mode.AUTO,
    train_on: str | None = None,
    chat_template: str | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
    system: str | None = None,
    reasoning: str = Reasoning.ERROR.value,
    date: datetime.date | str | None = None,
    separator: str = "",
    bos: bool | None = None,
    eos: bool = True,
    fast: bool = True,
    media: Family | None = None,
    compare_media: bool = True,
) -> Encoder:
    """Return the encoder for a source, with these settings.

    Args:
        source: the samples.
        tokenizer: a directory, a hub id, or a ``transformers`` tokenizer; None for rows of tokens.
        mode: the way from rows to tokens.
        train_on: see ``ChatEncoder`` and ``CompletionEncoder``; their default if None.
        chat_template, template_kwargs, system, reasoning, date: see ``ChatEncoder``.
        separator: see ``CompletionEncoder``.
        bos, eos: see ``TextEncoder``.
        fast: encode with faster libraries if they give the same tokens; never changes the result.
        media: the model family that turns the sizes of images, videos and audio into tokens
            (``media.families.open_family``), for chats with media.
        compare_media: see ``MediaChatEncoder``.

    Raises:
        SettingsError: no tokenizer, though one is needed, or a setting that this mode does not have.

    >>> from brimful.sources import open_source
    >>> encoder_for(open_source([{"input_ids": [5, 6]}]), None)
    TokenEncoder(train_on labels)
    """
    mode = choice_of(Mode, mode, argument="mode")
    if mode is Mode.AUTO:
        # A mixture is encoded by ``ChatEncoder``, which takes texts and tokens among the chats.
        modes = {_MODE_OF_FORMAT.get(row_format.name, Mode.CHAT) for row_format in source.formats}
        mode = modes.pop() if len(modes) == 1 else Mode.CHAT
    values: dict[str, Any] = {
        "train_on": train_on,
        "chat_template": chat_template,
        "template_kwargs": dict(template_kwargs or {}) or None,
        "system": system,
        "reasoning": None if reasoning == Reasoning.ERROR.value else reasoning,
        "date": date,
        "separator": separator or None,
        "bos": bos,
        "eos": None if eos else False,
    }
    settings = {name: value for name, value in values.items() if value is not None}
    # A setting that this mode does not have would change nothing, and the user would never know.
    stray = next((name for name in settings if name not in _SETTINGS[mode]), None)
    if stray is not None:
        mode_names = " or ".join(setting("mode", choice.value) for choice in _SETTINGS if stray in _SETTINGS[choice])
        raise SettingsError(f"{setting(stray)} has no effect in {setting('mode', mode.value)}: it is for {mode_names}")
    if source is not None and source.group_size > 1 and train_on is not None:
        raise SettingsError(
            f"{setting('train_on')} has no effect on preferences, whose targets are their completions: leave it out"
        )
    if mode is Mode.TOKENS:
        return TokenEncoder(tokenizer)
    if tokenizer is None:
        raise SettingsError(
            f"{setting('tokenizer')} is missing: name the directory or hub id of the tokenizer of your model"
        )
    if train_on is not None and train_on not in _TRAIN_ON[mode]:
        raise SettingsError(
            f"{setting('train_on')} {train_on!r} is unknown with {setting('mode', mode.value)}: use one of "
            f"{', '.join(_TRAIN_ON[mode])}"
        )
    if not fast:
        tokenizer = tokenizer.reference if isinstance(tokenizer, Tokenizer) else Tokenizer(tokenizer, fast=False)
    if media is None:
        return _ENCODERS[mode](tokenizer, **settings)
    if mode is not Mode.CHAT:
        raise SettingsError(f"media are packed with {setting('mode', Mode.CHAT.value)}, and the mode is {mode.value}")
    return MediaChatEncoder(tokenizer, media, compare_media=compare_media, **settings)


def as_encoder(source: Source, encoder: Encoder | str | os.PathLike[str] | Any) -> Encoder:
    """Return an encoder as it is; for a tokenizer or its name, the encoder for the source.

    Raises:
        SettingsError: neither an encoder nor a tokenizer.
    """
    if isinstance(encoder, Encoder):
        return encoder
    return encoder_for(source, Tokenizer.of(encoder))

"""Beginning of a producer: its encoder, the header of the stream, and its registration there."""

import logging
import os
import uuid
from collections.abc import Mapping
from typing import Any

from brimful.base.checks import choice_of
from brimful.base.file_systems import is_remote
from brimful.base.wording import setting
from brimful.encode.choose import EncoderSettings, Mode
from brimful.encode.encoder import Encoder
from brimful.errors import BadSampleError, SettingsError, SourceError, StoreMismatchError
from brimful.sources.feed import Feed
from brimful.sources.sample import Sample
from brimful.store.shards import StreamLog
from brimful.stream.producer.registered import Registration
from brimful.stream.producer.settings import ProducerSettings

_ROWS = 256
"""First rows, by which the encoding mode is chosen."""


def mode_of_arrivals(settings: EncoderSettings, feed: Feed, known: Registration | None, *, close: bool) -> Mode | None:
    """Return the encoding mode: as given, as registered, or by the first rows; None until it is known.

    Args:
        settings: of the encoder.
        feed: the samples.
        known: registration of this producer, if it was begun.
        close: true if nothing will follow the current contents of the feed.
    """
    mode: Mode = choice_of(Mode, settings.mode, argument="mode")
    if mode is not Mode.AUTO:
        return mode
    if settings.media is not None:
        return Mode.CHAT
    if known is not None and known.settings.get("mode", "encoder") != "encoder":
        return Mode(known.settings["mode"])
    rows = feed.poll(_ROWS, 0, is_last=close)
    if close and not rows and feed.is_ended:
        raise SourceError(f"{feed.title} is empty: no sample to pack")
    feed.seek([])
    kinds = {row.kind for row in rows if isinstance(row, Sample)}
    if not kinds:
        error = next((row for row in rows if isinstance(row, BadSampleError)), None)
        if error is not None:
            raise error
        return None
    return Mode(kinds.pop()) if len(kinds) == 1 else Mode.CHAT


def claim_stream(log: StreamLog, encoder: Encoder, settings: ProducerSettings, notes: Mapping[str, Any]) -> int:
    """Begin the stream, or check that it has the same identity; return its lanes.

    Raises:
        StoreMismatchError: it holds packs made differently.
    """
    media = encoder.length_settings.get("media")
    identity = {
        "capacity": settings.capacity,
        "source": "stream",
        "encoder": encoder.fingerprint,
        "train_on": encoder.label_settings.get("train_on"),
        # For media, the settings that the collator needs: MediaFeatures.of_packs.
        **({"media_settings": media} if media else {}),
    }
    if not log.is_begun():
        tokenizer = getattr(encoder, "tokenizer", None)
        if tokenizer is not None:
            notes = {**notes, "tokenizer": tokenizer.place, "tokenizer_fingerprint": tokenizer.fingerprint}
        try:
            # A stream has no plan; a random name distinguishes it from the states of other streams.
            log.begin({**identity, "plan": uuid.uuid4().hex, "lanes": settings.lanes}, dict(notes))
        except StoreMismatchError:
            # Another producer began it at the same time, under another name.
            logging.getLogger("brimful").debug("%s: another producer began it", log.store.url)
    log.expect(identity)
    return int(log.header()["identity"]["lanes"])


def check_apart(source: Any, directory: str) -> None:
    """Reject a stream inside its source directory: its records would be read as rows.

    Raises:
        SettingsError: it is inside.
    """
    if is_remote(directory) or not isinstance(source, (str, os.PathLike)) or not os.path.isdir(source):
        return
    root = os.path.realpath(source)
    if os.path.commonpath([root, os.path.realpath(directory)]) == root:
        raise SettingsError(
            f"{directory} lies in the source {os.fspath(source)}: choose another {setting('directory')}"
        )

"""Beginning of a producer: its encoder, the header of the stream, and its registration there.

The producers of one stream have a name each, a number for their sample ids, and fixed settings.

::

    producers/000000.json           name, settings and source of producer 0; its sample ids begin at 0
    producers/000000-closed.json    it is closed: once all are, the stream ends
"""

from __future__ import annotations

import json
import logging
import os
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from brimful.base.blobs import BlobStore, is_remote
from brimful.base.checks import choice_of
from brimful.base.typing import Fingerprint
from brimful.base.wording import differences, setting
from brimful.encode.choose import EncoderSettings, Mode
from brimful.encode.encoder import Encoder
from brimful.errors import (
    BadSampleError,
    CorruptFileError,
    SettingsError,
    SourceError,
    StoreMismatchError,
)
from brimful.sources.sample import Sample
from brimful.store.shards import StreamLog
from brimful.stream.producer.feed import Feed
from brimful.stream.producer.settings import ProducerSettings

SAMPLES_OF_PRODUCER = 1 << 44
"""Sample ids of each producer: the ids of producer ``n`` begin at ``n`` times this."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


_ROWS = 256
"""First rows, by which the encoding mode is chosen."""


@dataclass(frozen=True)
class Registration:
    """One producer of a stream.

    Attributes:
        index: from 0, in the order of registration.
        name: of the producer.
        settings: of its packing.
        source: fingerprint of its machine, its files and how it reads them; None for other rows.
    """

    index: int
    name: str
    settings: dict[str, Any]
    source: Fingerprint | None = None

    @property
    def first_sample_id(self) -> int:
        """``sample_id`` of its first sample."""
        return self.index * SAMPLES_OF_PRODUCER


class Producers:
    """All producers of one stream."""

    def __init__(self, store: BlobStore) -> None:
        self._store = store

    def all(self, first: int = 0) -> list[Registration]:
        """Return the registered producers, by number, from number ``first``."""
        registrations: list[Registration] = []
        # By key, not by a listing: a stale listing could miss some, and a number would be given
        # twice.
        while (producer := self._read(first + len(registrations))) is not None:
            registrations.append(producer)
        return registrations

    def named(self, name: str) -> Registration | None:
        """Return the producer of that name, if it is registered."""
        return next((producer for producer in self.all() if producer.name == name), None)

    def register(
        self, name: str, settings: dict[str, Any], source: Fingerprint | None = None
    ) -> Registration:
        """Return the registration of a producer; register it if it is new.

        Raises:
            SettingsError: not a name that a file can have.
            StoreMismatchError: it is registered with other settings, named by the differences; or
                another producer with these settings reads its source.
        """
        if not _NAME.fullmatch(name):
            raise SettingsError(
                f"{setting('producer', name)} must be of letters, digits, dots, dashes and "
                "underscores"
            )
        while True:
            registrations = self.all()
            same = next((producer for producer in registrations if producer.name == name), None)
            if same is not None:
                text = differences(same.settings, settings, settings, show=str)
                if text:
                    raise StoreMismatchError(
                        f"{self._store.url}: producer {name} was begun differently: "
                        f"{text.replace(' in the state', ' there')}. Go on with the same settings, "
                        f"or choose another {setting('producer')} for another source"
                    )
                return same
            for other in registrations:
                if not source or other.source != source:
                    continue
                twice = (
                    f"{self._store.url}: producer {other.name} reads this source too, and each sample "
                    "that both take comes twice"
                )
                if other.settings == settings and not self.is_closed(other):
                    raise StoreMismatchError(
                        f"{twice}. Go on as {setting('producer', other.name)}, or name another source"
                    )
                logging.getLogger("brimful").warning(twice)
            # Of two concurrent producers one gets this number, and the other looks again.
            self._store.put_if_absent(
                f"producers/{len(registrations):06d}.json",
                json.dumps({"producer": name, "settings": settings, "source": source}).encode(),
            )

    def close(self, producer: Registration, counts: dict[str, Any]) -> None:
        """Record that a producer is closed."""
        self._store.put_if_absent(
            f"producers/{producer.index:06d}-closed.json", json.dumps(counts).encode()
        )

    def is_closed(self, producer: Registration) -> bool:
        """Return true if a producer is closed."""
        return self._store.size(f"producers/{producer.index:06d}-closed.json") is not None

    def _read(self, index: int) -> Registration | None:
        key = f"producers/{index:06d}.json"
        try:
            data = self._store.get(key)
        except FileNotFoundError:
            return None
        if not data:  # claimed by a producer that was killed
            return None
        try:
            values = json.loads(data)
            return Registration(index, values["producer"], values["settings"], values.get("source"))
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptFileError(f"{self._store.url}/{key} is damaged: {error!r}") from error


def mode_of_arrivals(
    settings: EncoderSettings, feed: Feed, known: Registration | None, *, close: bool
) -> Mode | None:
    """Return the encoding mode: as given, as registered, or by the first rows; None until it is
    known.

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
    types = {row.kind for row in rows if isinstance(row, Sample)}
    if not types:
        error = next((row for row in rows if isinstance(row, BadSampleError)), None)
        if error is not None:
            raise error
        return None
    return Mode(types.pop()) if len(types) == 1 else Mode.CHAT


def claim_stream(
    log: StreamLog, encoder: Encoder, settings: ProducerSettings, notes: Mapping[str, Any]
) -> int:
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
            notes = {
                **notes,
                "tokenizer": tokenizer.place,
                "tokenizer_fingerprint": tokenizer.fingerprint,
            }
        try:
            # A stream has no plan; a random name distinguishes it from the states of other streams.
            log.claim({**identity, "plan": uuid.uuid4().hex, "lanes": settings.lanes}, dict(notes))
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
    if (
        is_remote(directory)
        or not isinstance(source, (str, os.PathLike))
        or not os.path.isdir(source)
    ):
        return
    root = os.path.realpath(source)
    if os.path.commonpath([root, os.path.realpath(directory)]) == root:
        raise SettingsError(
            f"{directory} lies in the source {os.fspath(source)}: choose another "
            f"{setting('directory')}"
        )

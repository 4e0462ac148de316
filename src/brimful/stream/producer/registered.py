"""Producers of one stream: each has a name, a number for its sample ids, and fixed settings.

::

    producers/000000.json           name and settings of producer 0; its sample ids begin at 0
    producers/000000-closed.json    it is closed: once all are, the stream ends
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from brimful.base.blobs import BlobStore
from brimful.base.wording import differences, setting
from brimful.errors import CorruptFileError, SettingsError, StoreMismatchError

SAMPLES_OF_PRODUCER = 1 << 44
"""Sample ids of each producer: the ids of producer ``n`` begin at ``n`` times this."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class Registration:
    """One producer of a stream.

    Attributes:
        number: from 0, in the order of registration.
        name: of the producer.
        settings: of its packing.
    """

    number: int
    name: str
    settings: dict[str, Any]

    @property
    def first_sample_id(self) -> int:
        """``sample_id`` of its first sample."""
        return self.number * SAMPLES_OF_PRODUCER


class Producers:
    """All producers of one stream."""

    def __init__(self, store: BlobStore) -> None:
        self._store = store

    def all(self) -> list[Registration]:
        """Return the registered producers, by number."""
        return self.since(0)

    def since(self, number: int) -> list[Registration]:
        """Return the registered producers from a number."""
        registrations: list[Registration] = []
        # By key, not by a listing: a stale listing could miss some, and a number would be given twice.
        while (producer := self._read(number + len(registrations))) is not None:
            registrations.append(producer)
        return registrations

    def named(self, name: str) -> Registration | None:
        """Return the producer of that name, if it is registered."""
        return next((producer for producer in self.all() if producer.name == name), None)

    def register(self, name: str, settings: dict[str, Any]) -> Registration:
        """Return the registration of a producer; register it if it is new.

        Raises:
            SettingsError: not a name that a file can have.
            StoreMismatchError: it is registered with other settings; names the differences.
        """
        if not _NAME.fullmatch(name):
            raise SettingsError(f"{setting('producer', name)} must be of letters, digits, dots, dashes and underscores")
        while True:
            registrations = self.all()
            same = next((producer for producer in registrations if producer.name == name), None)
            if same is not None:
                text = differences(same.settings, settings, settings, show=str)
                if text:
                    raise StoreMismatchError(
                        f"{self._store.url}: producer {name} was begun differently: "
                        f"{text.replace(' in the state', ' there')}. Go on with the same settings, or choose another "
                        f"{setting('producer')} for another source"
                    )
                return same
            # Of two concurrent producers one gets this number, and the other looks again.
            self._store.put_if_absent(
                f"producers/{len(registrations):06d}.json",
                json.dumps({"producer": name, "settings": settings}).encode(),
            )

    def close(self, producer: Registration, counts: dict[str, Any]) -> None:
        """Record that a producer is closed."""
        self._store.put_if_absent(f"producers/{producer.number:06d}-closed.json", json.dumps(counts).encode())

    def is_closed(self, producer: Registration) -> bool:
        """Return true if a producer is closed."""
        return self._store.size(f"producers/{producer.number:06d}-closed.json") is not None

    def _read(self, number: int) -> Registration | None:
        key = f"producers/{number:06d}.json"
        try:
            data = self._store.get(key)
        except FileNotFoundError:
            return None
        try:
            values = json.loads(data)
            return Registration(number, values["producer"], values["settings"])
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptFileError(f"{self._store.url}/{key} is damaged: {error!r}") from error

"""Reasons for a producer to wait: too many untrained shards, or too little free disk space."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Sequence

from brimful.base.blobs import BlobStore, LocalBlobStore
from brimful.base.checks import setting_number
from brimful.base.wording import setting, size_of
from brimful.errors import SettingsError
from brimful.stream.acks import Acks

_LOOK_SECONDS = 1.0
"""Seconds between two checks of acknowledgements and of the disk."""

_WARN_SECONDS = 60.0
"""Seconds between two warnings of one wait."""


class Clock:
    """Clock of a producer; tests replace it."""

    def now(self) -> float:
        """Return seconds since a fixed moment; they never decrease."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)


class BackPressure:
    """Limit on how far a stream is ahead of its training, and on disk usage.

    Args:
        store: of the stream.
        high_water: shards that may be ahead of the acknowledgements of all trainings; None for no
            limit. Once it is reached, a producer waits until a quarter of them is trained.
        trainings: names under which trainings acknowledge; one without an acknowledgement needs
            every shard.
        min_free_bytes: bytes of the disk to keep free.
        clock: measures the pauses between two checks.

    Raises:
        SettingsError: a number of shards without trainings: nothing would ever count as trained.
    """

    def __init__(
        self,
        store: BlobStore,
        *,
        high_water: int | None,
        trainings: Sequence[str],
        min_free_bytes: int,
        clock: Clock,
    ) -> None:
        if high_water is not None:
            setting_number("high_water", high_water, minimum=1)
            if not trainings:
                raise SettingsError(
                    f"{setting('high_water', high_water)} counts shards that no training has "
                    f"acknowledged: name the trainings by {setting('trainings')}"
                )
        self._store, self._high_water, self._trainings, self._clock = (
            store,
            high_water,
            list(trainings),
            clock,
        )
        self._min_free_bytes = setting_number("min_free_bytes", min_free_bytes, minimum=0)
        self._next_look, self._next_warning = -float("inf"), -float("inf")
        self._is_full = False
        self._trained = 0
        self.reason = self._disk_reason = ""

    def is_on(self, num_shards: int) -> bool:
        """Return true if a stream of ``num_shards`` shards must not grow now; ``reason`` says
        why.
        """
        now = self._clock.now()
        if now >= self._next_look:
            self._next_look = now + _LOOK_SECONDS
            self._disk_reason = self._disk()
            if self._high_water is not None:
                self._trained = min(map(self._frontier, self._trainings))
        # Shards that this producer commits between two checks count at once.
        self.reason = self._disk_reason or self._water(num_shards)
        if self.reason and now >= self._next_warning:
            self._next_warning = now + _WARN_SECONDS
            logging.getLogger("brimful").warning("waiting: %s", self.reason)
        return bool(self.reason)

    def _water(self, num_shards: int) -> str:
        if self._high_water is None:
            return ""
        level = num_shards - self._trained
        # Once full, it stays full until a quarter is trained, so that it does not stop at every
        # shard.
        limit = self._high_water - (max(1, self._high_water // 4) - 1 if self._is_full else 0)
        self._is_full = level >= limit
        if not self._is_full:
            return ""
        return (
            f"{level:,} shards are ahead of training, and "
            f"{setting('high_water', self._high_water)} are allowed"
        )

    def _frontier(self, group: str) -> int:
        """Return the first shard that a resume from the last acknowledgement of a group needs."""
        acks = Acks(self._store, group)
        positions = acks.positions()
        return int(acks.read(positions[-1])[0]["frontier"]) if positions else 0

    def _disk(self) -> str:
        if not self._min_free_bytes or not isinstance(self._store, LocalBlobStore):
            return ""
        home = self._store.directory
        while not home.exists():
            home = home.parent
        num_free = shutil.disk_usage(os.fspath(home)).free
        if num_free >= self._min_free_bytes:
            return ""
        return (
            f"{size_of(num_free)} are free on the disk of {self._store.url}, and "
            f"{setting('min_free_bytes', self._min_free_bytes)} must stay free"
        )

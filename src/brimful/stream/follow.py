"""Reader of a log that may still grow: it reads existing records and waits for new ones."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import Any

from brimful.base.blobs import BlobStore
from brimful.base.checks import is_number
from brimful.base.wording import counted, setting
from brimful.errors import SettingsError, StreamTimeoutError
from brimful.store.shards import EndRecord, ShardRecord, StreamLog

_FIRST_WAIT, _MAX_WAIT = 0.02, 5.0
"""Seconds between two polls of the log, doubled while nothing arrives, so that waiting ranks cost almost nothing."""

_WARN_SECONDS = 60.0
"""Seconds between two warnings during one wait."""


def check_timeout(timeout: float | None) -> None:
    """Refuse an invalid number of seconds.

    Raises:
        SettingsError: the value is negative or not a number.
    """
    if timeout is not None and not (is_number(timeout) and timeout >= 0):
        raise SettingsError(f"{setting('timeout')} must be a number of seconds, at least 0, and is {timeout!r}")


class FollowedLog:
    """Records of a stream, which a producer may still append to.

    A poll requests the next record by its name: one request, and no listing that could be stale. No clock of the
    producer is read; waits are measured with the monotonic clock of this process.

    Args:
        store: blob store of the stream.
        timeout: maximum seconds of one wait; None waits forever.

    Attributes:
        header: the checked ``stream.json``.
        shards: records so far, numbered densely from 0.
        end: the last record, once the stream is closed.
    """

    _seconds_waited = 0.0
    _wait_begin: float | None = None

    def __init__(self, store: BlobStore, *, timeout: float | None = None) -> None:
        check_timeout(timeout)
        self._log = StreamLog(store)
        self._timeout = timeout
        self.header: dict[str, Any] = self._log.header()
        self.shards: list[ShardRecord]
        self.end: EndRecord | None
        self.shards, self.end = self._log.records()

    @property
    def seconds_waited(self) -> float:
        """Total seconds of all waits, including the current one; other threads may read it."""
        begin = self._wait_begin
        return self._seconds_waited + (0.0 if begin is None else time.monotonic() - begin)

    @property
    def num_packs(self) -> int:
        """Number of packs in the records so far."""
        return self.shards[-1].cum_packs if self.shards else 0

    def look(self) -> None:
        """Read the records that were committed since the last call, without waiting."""
        if self.end is None:
            self.end = self._log.next_records(self.shards)

    def wait_until(self, is_there: Callable[[], bool], action: str) -> None:
        """Read records until a condition on ``shards`` holds, or the stream has ended.

        Args:
            is_there: the condition, checked again after every new record.
            action: name of the awaited item, for messages: ``pack 17``.

        Raises:
            StreamTimeoutError: nothing arrived in time; names the record.
            CorruptFileError: a record is damaged.
        """
        if self.end is not None or is_there():
            return
        self._wait_begin = time.monotonic()
        try:
            self._wait_until(is_there, action)
        finally:
            self._seconds_waited, self._wait_begin = self.seconds_waited, None

    def _wait_until(self, is_there: Callable[[], bool], action: str) -> None:
        begin = last_warning = time.monotonic()
        wait = _FIRST_WAIT
        while not (self.end is not None or is_there()):
            num_known = len(self.shards)
            self.look()
            if len(self.shards) > num_known or self.end is not None:
                wait = _FIRST_WAIT
                continue
            time_now = time.monotonic()
            if self._timeout is not None and time_now - begin >= self._timeout:
                raise StreamTimeoutError(
                    f"{self._waiting(action)} for {time_now - begin:,.0f} s: is its producer running? Wait longer with "
                    f"{setting('timeout')}, or close the stream"
                )
            if time_now - last_warning >= _WARN_SECONDS:
                last_warning = time_now
                logging.getLogger("brimful").warning("%s for %.0f s", self._waiting(action), time_now - begin)
            # Ranks that began to wait together must not poll together.
            jitter = 0.75 + os.urandom(1)[0] / 512
            pause = wait * jitter
            if self._timeout is not None:
                pause = min(pause, max(begin + self._timeout - time_now, 0.001))
            time.sleep(pause)
            wait = min(2 * wait, _MAX_WAIT)

    def _waiting(self, action: str) -> str:
        seen_items = counted(len(self.shards), "shard")
        return f"{self._log.store.url}: waiting for {action}, so for log/{len(self.shards):012d}.json ({seen_items} so far)"

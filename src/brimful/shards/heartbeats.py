"""Heartbeats: small objects by which the producers and readers of a stream tell people how far they are.

::

    heartbeats/producer-000000.json              of producer 0
    heartbeats/reader-<group>-000003-000.json    of data-parallel rank 3 of a training, worker 0

Each process replaces its own object every ten seconds or more, in a thread of its own. Nothing decides by them: what is in
the stream, and what may be removed, follows from the log and the acknowledgements. So a lost heartbeat costs a number on
a screen, and an absent right to write costs one warning.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import socket
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from brimful.blobs import BlobStore

_VERSION = 1
"""Version in every heartbeat; those of others are not shown."""

FOLDER = "heartbeats"
"""Folder of the objects in a stream."""

_MIN_SECONDS = 10.0
"""Seconds between two heartbeats of one process, at least."""

_SECONDS_PER_WRITER = 0.1
"""Seconds between two heartbeats of all processes together: a thousand of them write ten objects a second, not a hundred."""

_FIRST_SECONDS = 1.0
"""Seconds before the first heartbeat: a process that ends at once leaves none."""

_RATE_SECONDS = 300.0
"""Seconds over which rates are taken: shards come and go in bursts."""

_LAST_SECONDS = 2.0
"""Seconds that the last heartbeat of a reader may take, at the end of its stream."""

_READER = re.compile(r"reader-(?P<group>.+)-(?P<dp_rank>\d{6})-(?P<worker>\d{3})\.json")

Telling: TypeAlias = Callable[[], tuple[str, dict[str, Any], dict[str, float]] | None]
"""Function that gives the key of a heartbeat, facts, and counts that only grow; None while there is nothing to tell."""


def producer_key(number: int) -> str:
    """Return the key of the heartbeat of a producer."""
    return f"{FOLDER}/producer-{number:06d}.json"


def reader_key(group: str, dp_rank: int, worker: int) -> str:
    """Return the key of the heartbeat of one worker of a rank.

    >>> reader_key("run-1", 3, 0)
    'heartbeats/reader-run-1-000003-000.json'
    """
    return f"{FOLDER}/reader-{group}-{dp_rank:06d}-{worker:03d}.json"


def seconds_between(num_writers: int) -> float:
    """Return the seconds between two heartbeats of one of so many processes.

    >>> seconds_between(8), seconds_between(2048)
    (10.0, 204.8)
    """
    return max(_MIN_SECONDS, _SECONDS_PER_WRITER * num_writers)


@dataclass(frozen=True)
class Beat:
    """One heartbeat, as it was read.

    Attributes:
        writer: host, process id and random digits of the process.
        number: of this heartbeat, from 0.
        interval: seconds until the next one.
        time: seconds since 1970 by the clock of its machine, for people.
        seconds: that the process had been at work, by its own monotonic clock.
        is_over: the process has ended as it should; nothing follows.
        facts: about the process.
        counts: since it began; they only grow.
        earlier_seconds, earlier_counts: the same, some minutes before; rates are between the two.
    """

    writer: str
    number: int
    interval: float
    time: float
    seconds: float
    is_over: bool
    facts: dict[str, Any]
    counts: dict[str, float]
    earlier_seconds: float
    earlier_counts: dict[str, float]

    def rate(self, name: str) -> float | None:
        """Return a count for each second of the last minutes; None before the second heartbeat.

        >>> beat = Beat("node-7-a", 3, 10.0, 0.0, 40.0, False, {}, {"packs": 90}, 10.0, {"packs": 30})
        >>> beat.rate("packs")
        2.0
        """
        seconds = self.seconds - self.earlier_seconds
        change = self.counts.get(name, 0) - self.earlier_counts.get(name, 0)
        return max(0.0, change / seconds) if seconds > 0 else None


def read_beats(store: BlobStore) -> dict[str, Beat]:
    """Return all heartbeats of a stream by their keys; damaged ones are left out, as they are replaced soon."""
    keys = [key for key in store.list(FOLDER) if key.endswith(".json")]
    try:
        texts: list[bytes | None] = list(store.get_many(keys))
    except FileNotFoundError:  # one was removed since they were listed
        texts = [_get(store, key) for key in keys]
    beats = {}
    for key, text in zip(keys, texts, strict=True):
        with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
            values = json.loads(text or b"{}")
            if values.pop("version") == _VERSION:
                beats[key] = Beat(**values)
    return beats


def _get(store: BlobStore, key: str) -> bytes | None:
    try:
        return store.get(key)
    except FileNotFoundError:
        return None


def remove_surplus_readers(store: BlobStore, group: str, *, dp_rank: int, dp_world_size: int, num_workers: int) -> None:
    """Remove the heartbeats of workers that this rank had before, and if it is rank 0 of ranks that there were."""
    for key in store.list(FOLDER):
        match = _READER.fullmatch(key.removeprefix(f"{FOLDER}/"))
        if match is None or match["group"] != group:
            continue
        is_surplus_worker = int(match["dp_rank"]) == dp_rank and int(match["worker"]) >= num_workers
        if is_surplus_worker or (dp_rank == 0 and int(match["dp_rank"]) >= dp_world_size):
            store.delete(key)


class Heartbeat:
    """A thread that writes a heartbeat, until it is stopped or its process ends.

    A failed write is logged once, and tried again at the next turn: it never stops the work.

    Args:
        store: of the stream.
        tell: called by the thread.
        interval: seconds between two heartbeats.
        prepare: called by the thread before the first one.
    """

    def __init__(
        self, store: BlobStore, tell: Telling, *, interval: float, prepare: Callable[[], None] | None = None
    ) -> None:
        self._store, self._tell, self._interval, self._prepare = store, tell, interval, prepare
        self._writer = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._begin = time.monotonic()
        self._history: deque[tuple[float, dict[str, float]]] = deque()
        self._number, self._is_over, self._is_warned = 0, False, False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="brimful heartbeat", daemon=True)
        self._thread.start()

    def stop(self, *, is_over: bool = True) -> None:
        """End the thread, after a last heartbeat if the process has ended as it should; wait for it for two seconds."""
        self._is_over = is_over
        self._stopped.set()
        if is_over:
            self._thread.join(_LAST_SECONDS)

    def _run(self) -> None:
        # Processes that began together must not write together.
        pause = _FIRST_SECONDS * _jitter()
        while not self._stopped.wait(pause):
            self._try_beat()
            pause = self._interval * _jitter()
        # Whoever was never seen says no goodbye: short runs leave nothing behind.
        if self._is_over and self._number:
            self._try_beat()

    def _try_beat(self) -> None:
        try:
            if self._prepare is not None:
                self._prepare()
                self._prepare = None
            self.beat()
        except Exception as error:
            if not self._is_warned:
                self._is_warned = True
                logging.getLogger("brimful").warning(
                    "%s: this process cannot say how far it is, so that nobody can watch it: %s", self._store.url, error
                )

    def beat(self) -> None:
        """Write one heartbeat now."""
        told = self._tell()
        if told is None:
            return
        key, facts, counts = told
        seconds = time.monotonic() - self._begin
        if not self._history:
            self._history.append((seconds, counts))
        # The oldest entry is the last one that is as old as the window, so that rates always reach over all of it.
        while len(self._history) > 1 and self._history[1][0] <= seconds - _RATE_SECONDS:
            self._history.popleft()
        earlier_seconds, earlier_counts = self._history[0]
        values = Beat(
            self._writer,
            self._number,
            self._interval,
            time.time(),
            seconds,
            self._is_over,
            facts,
            counts,
            earlier_seconds,
            earlier_counts,
        )
        self._store.put_atomic(key, json.dumps({"version": _VERSION, **asdict(values)}).encode())
        self._history.append((seconds, counts))
        self._number += 1


@contextlib.contextmanager
def beating(store: BlobStore, tell: Telling) -> Iterator[None]:
    """Write heartbeats while the block runs, and a last one if it ends without an error."""
    heartbeat = Heartbeat(store, tell, interval=seconds_between(1))
    try:
        yield
    except BaseException:
        heartbeat.stop(is_over=False)
        raise
    heartbeat.stop()


def _jitter() -> float:
    """Return a factor from 0.75 to 1.25."""
    return 0.75 + os.urandom(1)[0] / 510

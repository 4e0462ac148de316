"""Packs of a stream by position: its log is followed, its shards are read, and positions are
acknowledged.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from brimful.base.attachment import attachment_store
from brimful.base.blobs import BlobStore, PromisedBlobs, open_blob_store
from brimful.base.checks import path_of
from brimful.base.typing import AnyPath
from brimful.base.wording import counted, setting
from brimful.errors import CorruptFileError, ShardExpiredError, StateError, StreamTimeoutError
from brimful.plan.schedule import Tail
from brimful.serve.order import Position, facts_of_store, make_state
from brimful.serve.pack_store import ShardFiles
from brimful.store.shards import EndRecord, Pack, ShardRecord, StreamLog
from brimful.stream.acks import Acks, expired_below
from brimful.stream.assignment import Assignment, StreamOrder, StreamSettings

_FIRST_WAIT, _MAX_WAIT = 0.02, 5.0
"""Seconds between two polls of the log, doubled while nothing arrives, so that waiting ranks cost
almost nothing.
"""

_WARN_SECONDS = 60.0
"""Seconds between two warnings during one wait."""


class FollowedLog:
    """Records of a stream, which a producer may still append to.

    A poll requests the next record by its name: one request, and no listing that could be stale. No
    clock of the producer is read; waits are measured with the monotonic clock of this process.

    Args:
        store: blob store of the stream.
        timeout: maximum seconds of one wait; None waits forever.

    Attributes:
        header: the checked ``stream.json``.
        shards: records so far, numbered densely from 0.
        end: the last record, once the stream is closed.
    """

    def __init__(self, store: BlobStore, *, timeout: float | None = None) -> None:
        self._log = StreamLog(store)
        self._timeout = timeout
        self.header: dict[str, Any] = self._log.header()
        self.shards: list[ShardRecord]
        self.end: EndRecord | None
        self.shards, self.end = self._log.records()

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
        start = last_warning = time.monotonic()
        wait = _FIRST_WAIT
        while not (self.end is not None or is_there()):
            num_known = len(self.shards)
            self.look()
            if len(self.shards) > num_known or self.end is not None:
                wait = _FIRST_WAIT
                continue
            time_now = time.monotonic()
            if self._timeout is not None and time_now - start >= self._timeout:
                raise StreamTimeoutError(
                    f"{self._waiting(action)} for {time_now - start:,.0f} s: is its producer "
                    f"running? Wait longer with {setting('timeout')}, or close the stream"
                )
            if time_now - last_warning >= _WARN_SECONDS:
                last_warning = time_now
                logging.getLogger("brimful").warning(
                    "%s for %.0f s", self._waiting(action), time_now - start
                )
            # Ranks that began to wait together must not poll together.
            jitter = 0.75 + os.urandom(1)[0] / 512
            pause = wait * jitter
            if self._timeout is not None:
                pause = min(pause, max(start + self._timeout - time_now, 0.001))
            time.sleep(pause)
            wait = min(2 * wait, _MAX_WAIT)

    def _waiting(self, action: str) -> str:
        seen_items = counted(len(self.shards), "shard")
        return (
            f"{self._log.store.url}: waiting for {action}, so for {self._log.awaited(self.shards)} "
            f"({seen_items} so far)"
        )


_ACK_VERSION = 1
"""Version in every acknowledgment: the same position with another version would be taken for
another run.
"""


class FollowedPacks:
    """Packs of a finished or growing stream by position, over all ranks, and what its log shows of
    them.

    Args:
        directory: path or URL of the stream.
        settings: settings of this rank.

    Attributes:
        log: the records, as far as they were read.
        identity: settings that the packs were made with, from the header.
        settings: the settings, including values derived from the stream.
        lanes: packs of one global batch.
        packs_together: number of packs that all ranks take in one micro-batch.
        num_skipped: number of damaged packs.

    Raises:
        SettingsError, NotAPackStoreError: see ``StreamLoader``.
    """

    def __init__(self, directory: AnyPath, settings: StreamSettings) -> None:
        self.directory = path_of("directory", directory, "the path of a stream")
        self._store = open_blob_store(directory)
        self._follow(FollowedLog(self._store, timeout=settings.timeout), settings)
        store, shards, notes = self._store, self.log.shards, self.log.header["notes"]
        self._files = ShardFiles(
            store,
            # The list of shards grows in place, so files of new shards are known too.
            cache(lambda: attachment_store().files_of(store, shards, notes)),
            cache_dir=settings.cache_dir,
            cache_bytes=settings.cache_bytes,
        )

    def _follow(self, log: FollowedLog, settings: StreamSettings) -> None:
        self.log, self.identity = log, log.header["identity"]
        self.settings = settings = settings.of_stream(self.identity["lanes"])
        assert settings.lanes is not None
        assert settings.packs_per_micro_batch is not None
        self.lanes = settings.lanes
        self.packs_together = settings.packs_per_micro_batch * settings.dp_world_size
        self._order = StreamOrder(Assignment(settings.assign), log.shards, self.lanes)
        self.num_skipped = 0

    def __reduce__(self) -> tuple[object, ...]:
        # Each process follows the log itself and maps its own files.
        return FollowedPacks, (self.directory, self.settings)

    @property
    def steps_per_epoch(self) -> int | None:
        """Number of steps of one pass, the same on every rank; None while the stream grows."""
        is_full = self.settings.tail is Tail.DROP
        return None if self.log.end is None else self._order.num_steps(is_full=is_full)

    def has_micro_batch(self, position: int, awaited: str | None = None) -> bool:
        """Wait until the log shows whether the stream has the step of a position; it shows the same
        to every rank.

        Args:
            position: number of packs of all ranks before the micro-batch, a multiple of
                ``packs_together``.
            awaited: name of the awaited item for messages; the step if None.

        Raises:
            StreamTimeoutError: nothing arrived in time.
        """
        step, is_full = position // self.lanes, self.settings.tail is Tail.DROP
        positions = self.positions_of_rank(position)

        def is_known() -> bool:
            # A loader that drops the tail waits for all lanes: if one rank served a step and
            # another dropped it, both would hang.
            return (
                self._order.num_steps(is_full=True) > step
                if is_full
                else all(map(self._order.find, positions))
            )

        self.log.wait_until(is_known, awaited or f"step {step:,}")
        return is_known() or self._order.num_steps(is_full=is_full) > step

    def check_reached(self, step: int, lanes: int) -> None:
        """Refuse a position that the log does not reach; records that a mount shows late are
        awaited.

        Args:
            step: number of steps before the position.
            lanes: packs of one step there.

        Raises:
            StateError: the log ends before it.
        """
        order = StreamOrder(Assignment(self.settings.assign), self.log.shards, lanes)
        promised = PromisedBlobs(self._store)
        while (known := order.num_steps(is_full=False)) < step:
            is_ended = self.log.end is not None
            if is_ended or not promised.size(f"log/{len(self.log.shards):012d}.json"):
                raise StateError(
                    f"{self.directory}: the state is after step {step:,}, and the log ends with "
                    f"step {known:,}: it is shorter than when the state was saved. Restore its "
                    "later records, or start without the state"
                )
            self.log.look()

    def positions_of_rank(self, position: int) -> range:
        """Return the positions of this rank's packs in the micro-batch that begins at a position of
        all ranks.
        """
        first = position + self.settings.dp_rank
        return range(first, first + self.packs_together, self.settings.dp_world_size)

    def __getitems__(self, positions: Sequence[int]) -> list[Any]:
        """Return the packs at these positions; if all places are empty, one pack without loss.

        Raises:
            CorruptFileError: a shard is damaged.
            ShardExpiredError: a shard was removed after later checkpoints.
        """
        packs = []
        for record, row in filter(None, map(self._order.find, positions)):
            try:
                packs.append(self._files.pack(record, row))
            except CorruptFileError as error:
                first_present = expired_below(self._store)
                # Removed on purpose: skipping it would silently leave out data.
                if record.seq < first_present:
                    raise ShardExpiredError(
                        f"{self.directory}: shard {record.seq} was removed, like all below "
                        f"{first_present}, after later checkpoints were acknowledged: resume from "
                        "one of them, or let remove_acknowledged keep more"
                    ) from error
                if self.settings.on_corrupt == "error":
                    raise
                self.num_skipped += 1
                logging.getLogger("brimful").warning(
                    "skipped: %s (%d so far)", error.message, self.num_skipped
                )
        return packs or [self._filler()]

    def _filler(self) -> Pack:
        """Return a pack without loss, which keeps this rank in step with the others."""
        for record in reversed(self.log.shards):
            try:
                return self._files.pack(record, 0).without_loss()
            except CorruptFileError:
                continue
        raise CorruptFileError(f"{self.directory}: no shard of the stream can be read")

    def state_at(self, position: int, epoch: int = 0) -> dict[str, Any]:
        """Return the state after ``position`` packs of all ranks in a pass, including empty
        places.
        """
        settings = self.settings
        return make_state(
            "stream",
            self.log.header["checksum"],
            Position(epoch, *divmod(position, self.lanes)),
            facts_of_store(self.directory, self.identity),
            lanes=self.lanes,
            assign=Assignment(settings.assign).value,
            tail=Tail.named(settings.tail).value,
        )

    def ack(
        self, group: str, state: Mapping[str, Any], *, checkpoint: str, is_last_pass: bool
    ) -> None:
        """Acknowledge the packs before a state, which may be older than the position of a loader.

        Args:
            group, checkpoint: see ``StreamLoader.ack``.
            state: state from ``state_dict``.
            is_last_pass: true if no earlier pack is requested again; if false, every shard stays.

        Raises:
            StateError: see ``StreamLoader.ack``.
        """
        if state["places"]:
            raise StateError(
                f"ack within a step, after {state['places']} packs: a checkpoint is made at its end"
            )
        position = state["step"] * self.lanes
        # This rank may not know all shards that other ranks have already finished.
        self.log.look()
        frontier = self._order.frontier(position) if is_last_pass else 0
        facts = {
            "version": _ACK_VERSION,
            "stream": state["fingerprint"],
            **{name: state[name] for name in ("lanes", "assign", "tail", "epoch")},
            "packs_delivered": position,
            "frontier": frontier,
        }
        ranks = self.settings.dp_world_size
        notes = {"dp_world_size": ranks, "skipped": self.num_skipped, "time": time.time()}
        acks = Acks(self._store, group)
        acks.write(facts, notes={"checkpoint": checkpoint, **notes})
        if ranks > 1:
            acks.write_rank(self.settings.dp_rank, {"packs_delivered": position, **notes})

    def __repr__(self) -> str:
        end = "finished" if self.log.end is not None else "growing"
        return f"{self.directory!r}, {end}, {counted(len(self.log.shards), 'shard')}"

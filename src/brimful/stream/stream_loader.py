"""Loader of one rank's micro-batches from a stream that may still grow: in lockstep, resumable from one integer."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from copy import copy
from functools import partial
from typing import Any

from brimful.base.attachment import attachment_store
from brimful.base.blobs import open_blob_store
from brimful.base.checks import check_type, path_of, whole_number
from brimful.base.wording import counted, setting
from brimful.errors import CorruptFileError, SettingsError, ShardExpiredError, StateError
from brimful.plan.schedule import Tail
from brimful.serve.rank_loader import RankLoader, without_loss
from brimful.serve.shard_files import ShardFiles
from brimful.serve.state import Position, check_state, damaged, facts_of_store, make_state
from brimful.store.shards import Pack
from brimful.stream.acks import Acks, expired_below
from brimful.stream.follow import FollowedLog
from brimful.stream.order import Assignment, order_of
from brimful.stream.settings import OnCorrupt, StreamSettings

_ACK_VERSION = 1
"""Version in every acknowledgment: the same position with another version would be taken for another run."""


class StreamLoader(RankLoader):
    """Micro-batches of one data-parallel rank from a finished or growing stream of packs.

    A global batch is one pack from each of ``lanes`` places, so it is the same for every number of ranks that divides
    ``lanes``. A rank waits for shards that do not exist yet, and all ranks serve the same number of steps: the log
    decides, without communication. Iterating serves the rest of the stream once; ``set_epoch`` begins another pass.

    Args:
        directory: path or URL of the stream.
        collate_fn: turns a list of packs into a batch; the packs themselves if None.
        dp_rank, dp_world_size: this rank among the ranks that see different data.
        lanes: packs of one global batch, a multiple of ``dp_world_size``; the lanes of the stream if None.
        assign: ``lane`` or ``pack`` (``Assignment``); by lanes if the stream has several, otherwise by packs.
        packs_per_micro_batch: packs of one forward pass; all packs of this rank in a step if None.
        tail: ``pad`` serves the last packs together with empty places, ``drop`` leaves them out.
        timeout: maximum seconds of one wait for a shard; None waits forever, with a warning each minute.
        on_corrupt: ``error``, or ``skip``: a pack without loss replaces a damaged one, which is counted.
        repeat: begin again at the end of the stream, forever.
        group: name of the ranks that train one model on the stream, for ``ack``.
        cache_dir, cache_bytes: see ``open_packs``.

    Attributes:
        identity: settings that the packs were made with, from the header.
        settings: settings of this loader, including values derived from the stream.
        is_repeated: true if the stream begins again at its end.
        packs_together: number of packs that all ranks take in one micro-batch.
        num_skipped: number of damaged packs.

    Raises:
        SettingsError: the number of ranks does not divide the lanes, or ``packs_per_micro_batch`` does not divide the
            packs of a rank.
        NotAPackStoreError: the directory holds no stream.

    >>> import tempfile
    >>> from brimful.testing.toys import toy_stream
    >>> stream = toy_stream(tempfile.mkdtemp(), [2, 2, 1])
    >>> loader = StreamLoader(stream, dp_rank=1, dp_world_size=2, lanes=2)
    >>> [[pack.sample_ids.tolist() for pack in batch] for batch in loader]
    [[[1]], [[3]], [[-1]]]
    """

    knows_order = False

    def __init__(
        self,
        directory: str | os.PathLike[str],
        collate_fn: Callable[[list[Pack]], Any] | None = None,
        *,
        dp_rank: int = 0,
        dp_world_size: int = 1,
        lanes: int | None = None,
        assign: Assignment | str | None = None,
        packs_per_micro_batch: int | None = None,
        tail: Tail | str = Tail.PAD,
        timeout: float | None = None,
        on_corrupt: OnCorrupt = "error",
        repeat: bool = False,
        group: str | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_bytes: int | None = None,
    ) -> None:
        settings = StreamSettings(
            dp_rank=dp_rank,
            dp_world_size=dp_world_size,
            lanes=lanes,
            assign=assign,
            packs_per_micro_batch=packs_per_micro_batch,
            tail=tail,
            timeout=timeout,
            on_corrupt=on_corrupt,
            repeat=repeat,
            group=group,
            cache_dir=cache_dir,
            cache_bytes=cache_bytes,
        )
        self._open(directory, collate_fn, settings)

    @classmethod
    def with_settings(
        cls,
        directory: str | os.PathLike[str],
        collate_fn: Callable[[list[Pack]], Any] | None,
        settings: StreamSettings,
        *,
        are_shards_shared: bool = False,
    ) -> StreamLoader:
        """Return a loader with existing settings.

        Args:
            directory, collate_fn: see the class.
            settings: settings of this rank.
            are_shards_shared: true if other ranks read packs of the same shards, although the settings name only one
                rank.

        Raises:
            SettingsError, NotAPackStoreError: see the class.
        """
        check_type("settings", settings, StreamSettings, "StreamSettings(…)")
        loader = cls.__new__(cls)
        loader._open(directory, collate_fn, settings, are_shards_shared)
        return loader

    def _open(
        self,
        directory: str | os.PathLike[str],
        collate_fn: Callable[[list[Pack]], Any] | None,
        settings: StreamSettings,
        are_shards_shared: bool = False,
    ) -> None:
        self.directory = path_of("directory", directory, "the path of a stream")
        self._store = open_blob_store(directory)
        self._are_shards_shared = are_shards_shared
        self._follow(FollowedLog(self._store, timeout=settings.timeout), collate_fn, settings)
        # The list of shards grows in place, so files of new shards are known too.
        media = attachment_store().files_of(self._store, self._log.shards, self._log.header["notes"])
        self._files = ShardFiles(
            self._store,
            media,
            cache_dir=settings.cache_dir,
            cache_bytes=settings.cache_bytes,
            # With assignment by packs, every rank opens every shard for only a few of its packs.
            are_read_whole=self._assignment is Assignment.LANE
            or (settings.dp_world_size == 1 and not are_shards_shared),
        )

    def _follow(
        self, log: FollowedLog, collate_fn: Callable[[list[Pack]], Any] | None, settings: StreamSettings
    ) -> None:
        """Take the order of this rank from a log, and begin at its beginning."""
        super().__init__(collate_fn, dp_rank=settings.dp_rank, dp_world_size=settings.dp_world_size, tail=settings.tail)
        self._log = log
        self.identity: dict[str, Any] = log.header["identity"]
        self.settings = settings = settings.of_stream(self.identity["lanes"])
        assert settings.lanes is not None
        assert settings.packs_per_micro_batch is not None
        self.lanes, self._per_micro_batch = settings.lanes, settings.packs_per_micro_batch
        self.packs_together, self.is_repeated = self._per_micro_batch * settings.dp_world_size, settings.repeat
        self._assignment = Assignment(settings.assign)
        self._order = order_of(self._assignment, log.shards, self.lanes)
        self._position = 0  # packs of all ranks that were delivered in this pass, including empty places
        self.num_skipped = 0

    @property
    def collate_fn(self) -> Callable[[list[Pack]], Any]:
        """Function that makes a batch from packs."""
        return self._collate

    @property
    def steps_per_epoch(self) -> int | None:
        """Number of steps of one pass, the same on every rank; None while the stream grows."""
        return None if self._log.end is None else self._order.num_steps(is_full=self._tail is Tail.DROP)

    def begin_epoch(self, epoch: int) -> None:
        """Go to the beginning of the stream, for the pass with this number."""
        self._epoch, self._position = int(epoch), 0

    @property
    def packs_so_far(self) -> int:
        """Number of packs in the records read so far."""
        return self._log.num_packs

    @property
    def seconds_waited(self) -> float:
        """Seconds that this loader has waited for shards."""
        return self._log.seconds_waited

    def next_request(self) -> int | None:
        """Return the position of the next micro-batch once the log shows that it exists; None at the end."""
        while not self.has_micro_batch(self._position):
            # Exactly once: a run that is restarted after its last step does not train a second pass.
            if not (self.is_repeated and self._position):
                return None
            self.begin_epoch(self._epoch + 1)
        return self._position

    def make_batch(self, request: int) -> Any:
        """Return the micro-batch of this rank at a position that ``has_micro_batch`` allows."""
        return self._collate(self._packs(request))

    def advance(self) -> bool:
        """Count the next micro-batch as served; the log may not show yet whether it was the last."""
        self._position += self.packs_together
        return False

    def fork(self) -> StreamLoader:
        """Return a loader of the same stream with its own position and files, at the same place."""
        return copy(self)

    def __reduce__(self) -> tuple[object, ...]:
        # Each process follows the log itself and maps its own files.
        make = partial(StreamLoader.with_settings, settings=self.settings, are_shards_shared=self._are_shards_shared)
        return make, (self.directory, self._collate), (self._epoch, self._position)

    def __setstate__(self, state: tuple[int, int]) -> None:
        self._epoch, self._position = state

    def has_micro_batch(self, position: int, awaited: str | None = None) -> bool:
        """Wait until the log shows whether the stream has the step of a position; it shows the same to every rank.

        Args:
            position: number of packs of all ranks before the micro-batch, a multiple of ``packs_together``.
            awaited: name of the awaited item for messages; the step if None.

        Raises:
            StreamTimeoutError: nothing arrived in time.
        """
        step, is_full = position // self.lanes, self._tail is Tail.DROP
        places = self._places(position)

        def is_known() -> bool:
            # A loader that drops the tail waits for all lanes: if one rank served a step and another dropped it, both
            # would hang.
            return self._order.num_steps(is_full=True) > step if is_full else all(map(self._order.find, places))

        self._log.wait_until(is_known, awaited or f"step {step:,}")
        return is_known() or self._order.num_steps(is_full=is_full) > step

    def _places(self, position: int) -> range:
        """Return the positions of this rank's packs in the micro-batch that begins at a position of all ranks."""
        first = position + self._dp_rank
        return range(first, first + self.packs_together, self._dp_world_size)

    def _packs(self, position: int) -> list[Pack]:
        """Return the packs of a micro-batch; if all places are empty, one pack without loss."""
        places = [place for place in map(self._order.find, self._places(position)) if place is not None]
        packs = []
        for record, row in places:
            try:
                packs.append(self._files.pack(record, row))
            except CorruptFileError as error:
                first_present = expired_below(self._store)
                # Removed on purpose: skipping it would silently leave out data.
                if record.seq < first_present:
                    raise ShardExpiredError(
                        f"{self.directory}: shard {record.seq} was removed, like all below {first_present}, after later "
                        f"checkpoints were acknowledged: resume from one of them, or let remove_acknowledged keep more"
                    ) from error
                if self.settings.on_corrupt == "error":
                    raise
                self.num_skipped += 1
                logging.getLogger("brimful").warning("skipped: %s (%d so far)", error.message, self.num_skipped)
        return packs or [self._filler()]

    def _filler(self) -> Pack:
        """Return a pack without loss, which keeps this rank in step with the others."""
        for record in reversed(self._log.shards):
            try:
                return without_loss(self._files.pack(record, 0))
            except CorruptFileError:
                continue
        raise CorruptFileError(f"{self.directory}: no shard of the stream can be read")

    def state_dict(self) -> dict[str, Any]:
        """Return the position, the same on every rank, and the identity of the stream."""
        return self.state_at(self._position, self._epoch)

    def state_at(self, position: int, epoch: int = 0) -> dict[str, Any]:
        """Return the state after ``position`` packs of all ranks in a pass, including empty places."""
        return make_state(
            "stream",
            self._log.header["checksum"],
            Position(epoch, *divmod(position, self.lanes)),
            facts_of_store(self.directory, self.identity),
            lanes=self.lanes,
            assign=self._assignment.value,
            tail=self._tail.value,
        )

    def ack(self, group: str | None = None, *, checkpoint: str = "") -> None:
        """Acknowledge the packs delivered so far, after a checkpoint that includes them is durable.

        One rank must call it. If every rank calls it, ``brimful inspect`` shows which rank lags.

        Args:
            group: the ranks that train one model on this stream; the group of the loader if None.
            checkpoint: name of the model checkpoint, for inspection.

        Raises:
            SettingsError: neither this call nor the loader names a group.
            StateError: within a step, or another run has acknowledged this position after different packs.
        """
        # A further pass needs all shards again.
        is_last_pass = self._epoch == 0 and not self.is_repeated
        name = self.settings.group if group is None else group
        if name is None:
            raise SettingsError(f'ack needs the name of the training: ack("run-1"), or {setting("group", "run-1")}')
        self.ack_position(name, self.state_dict(), checkpoint=checkpoint, is_last_pass=is_last_pass)

    def ack_position(self, group: str, state: Mapping[str, Any], *, checkpoint: str, is_last_pass: bool) -> None:
        """Acknowledge the packs before a state, which may be older than the position of this loader.

        Args:
            group, checkpoint: see ``ack``.
            state: state from ``state_dict``.
            is_last_pass: true if no earlier pack is requested again; if false, every shard stays.

        Raises:
            StateError: see ``ack``.
        """
        if state["places"]:
            raise StateError(f"ack within a step, after {state['places']} packs: a checkpoint is made at its end")
        position = state["step"] * self.lanes
        # This rank may not know all shards that other ranks have already finished.
        self._log.look()
        frontier = self._order.frontier(position) if is_last_pass else 0
        facts = {
            "version": _ACK_VERSION,
            "stream": state["fingerprint"],
            **{name: state[name] for name in ("lanes", "assign", "tail", "epoch")},
            "packs_delivered": position,
            "frontier": frontier,
        }
        notes = {"dp_world_size": self._dp_world_size, "skipped": self.num_skipped, "time": time.time()}
        acks = Acks(self._store, group)
        acks.write(facts, notes={"checkpoint": checkpoint, **notes})
        if self._dp_world_size > 1:
            acks.write_rank(self._dp_rank, {"packs_delivered": position, **notes})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to the position of a state, which another number of ranks may have saved.

        With assignment by packs, a run may also continue with another step size if one of its steps begins at this
        position.

        Raises:
            StateError: the state belongs to another stream or order, or to a part of a step where these ranks cannot
                continue.
        """
        by_packs = self._assignment is Assignment.PACK
        epoch, step, places = check_state(
            state, self.state_dict(), ["assign", "tail"] if by_packs else ["lanes", "assign", "tail"]
        )
        lanes = whole_number("lanes of the loader state", state.get("lanes"), minimum=1)
        if places >= lanes:
            raise damaged(f"{places} places of {lanes}")
        position = step * lanes + places
        num_packs = None if self.steps_per_epoch is None else self.steps_per_epoch * self.lanes
        if num_packs is not None and position > num_packs + -num_packs % lanes:
            raise damaged(f"{position:,} of {num_packs:,} packs delivered")
        remainder = position % self.lanes
        if lanes != self.lanes and remainder:
            raise StateError(
                f"the loader state does not fit: lanes ({lanes} in the state, {self.lanes} here), and its {position:,} packs "
                f"end within a step of {self.lanes}: give {setting('lanes', lanes)}, or a divisor of {position:,}"
            )
        if remainder % self.packs_together:
            raise StateError(
                f"the state was saved within a step, after {remainder} of {self.lanes} packs, and micro-batches of "
                f"{self._per_micro_batch} × {self._dp_world_size} ranks do not meet it: save at the end of a step"
            )
        self._epoch, self._position = epoch, position

    def __repr__(self) -> str:
        end = "finished" if self._log.end is not None else "growing"
        return (
            f"StreamLoader({self.directory!r}, {end}, {counted(len(self._log.shards), 'shard')}, dp_rank {self._dp_rank} "
            f"of {self._dp_world_size}, step {self._position // self.lanes:,})"
        )

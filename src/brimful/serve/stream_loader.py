"""Micro-batches of one rank from a stream that may still grow: in lockstep, resumable by one integer."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from copy import copy
from functools import partial
from typing import Any

from brimful.blobs import open_blob_store
from brimful.checks import check_type, path_of, whole_number
from brimful.errors import CorruptFileError, SettingsError, ShardExpiredError, StateError
from brimful.messages import counted, setting
from brimful.plan.schedule import Tail
from brimful.serve.acks import Acks, expired_below
from brimful.serve.follow import FollowedLog
from brimful.serve.rank_loader import RankLoader, without_loss
from brimful.serve.shard_files import ShardFiles
from brimful.serve.state import Position, check_state, damaged, facts_of_store, make_state
from brimful.serve.stream_order import Assignment, LaneOrder, PackOrder, StreamOrder
from brimful.serve.stream_settings import OnCorrupt, StreamSettings
from brimful.shards import MediaFiles, Pack, recorded_root

_ACK_VERSION = 1
"""Version in every acknowledgement: the same position of another version would be taken for another run."""


class StreamLoader(RankLoader):
    """Micro-batches of one data-parallel rank from a stream of packs, finished or growing.

    A global batch is one pack from each of ``lanes`` places, so it is the same for every number of ranks that divides
    them. A rank waits for shards that do not exist yet, and all ranks serve the same number of steps: the log decides,
    and nothing is agreed on. Iterating serves the rest of the stream, once; ``set_epoch`` begins another pass.

    Args:
        directory: path or URL of the stream.
        collate_fn: turns a list of packs into a batch; the packs themselves if None.
        dp_rank, dp_world_size: this rank among those that see different data.
        lanes: packs of one global batch, a multiple of ``dp_world_size``; those of the stream if None.
        assign: ``lane`` or ``pack`` (``Assignment``); by lanes if the stream has several, else by packs.
        packs_per_micro_batch: packs of one forward; all that this rank has in a step if None.
        tail: ``pad`` serves the last packs beside empty places, ``drop`` leaves them out.
        timeout: most seconds of one wait for a shard; None waits for ever, with a warning each minute.
        on_corrupt: ``error``, or ``skip``: a pack without loss stands for a damaged one, and is counted.
        repeat: begin again at the end of the stream, without end.
        group: name of the ranks that train one model on the stream. ``ack`` takes it.
        cache_dir, cache_bytes: as of ``open_packs``.

    Attributes:
        num_skipped: packs that were damaged.

    Raises:
        SettingsError: ranks that do not divide the lanes, or packs that do not divide those of a rank.
        NotAPackStoreError: the directory holds no stream.

    >>> import tempfile
    >>> from brimful.testing.toys import toy_stream
    >>> stream = toy_stream(tempfile.mkdtemp(), [2, 2, 1])
    >>> loader = StreamLoader(stream, dp_rank=1, dp_world_size=2, lanes=2)
    >>> [[pack.sample_ids.tolist() for pack in batch] for batch in loader]
    [[[1]], [[3]], [[-1]]]
    """

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
        """Return a loader with settings that were made before.

        Args:
            directory, collate_fn: as of the class.
            settings: of this rank.
            are_shards_shared: other ranks read packs of the same shards, though this one is told that it is the only one.

        Raises:
            SettingsError, NotAPackStoreError: as of the class.
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
        super().__init__(collate_fn, dp_rank=settings.dp_rank, dp_world_size=settings.dp_world_size, tail=settings.tail)
        self.directory = path_of("directory", directory, "the path of a stream")
        self._store = open_blob_store(directory)
        self._log = FollowedLog(self._store, timeout=settings.timeout)
        self._are_shards_shared = are_shards_shared
        self._settings = settings = settings.of_stream(self._log.header["identity"]["lanes"])
        assert settings.lanes is not None
        assert settings.packs_per_micro_batch is not None
        self.lanes, self._per_micro_batch = settings.lanes, settings.packs_per_micro_batch
        self._assignment = Assignment(settings.assign)
        orders: dict[Assignment, type[StreamOrder]] = {Assignment.LANE: LaneOrder, Assignment.PACK: PackOrder}
        self._order = orders[self._assignment](self._log.shards, self.lanes)
        # The list of shards grows in place, so that containers of new ones are known too.
        media = MediaFiles(self._store, self._log.shards, recorded_root(self._store, self._log.header["notes"]))
        self._files = ShardFiles(
            self._store,
            media,
            cache_dir=settings.cache_dir,
            cache_bytes=settings.cache_bytes,
            # Where packs follow one another, every rank opens every shard for a few packs of it.
            are_read_whole=self._assignment is Assignment.LANE
            or (settings.dp_world_size == 1 and not are_shards_shared),
        )
        self._on_corrupt, self._repeat = settings.on_corrupt, settings.repeat
        self._position = 0  # packs of all ranks that were delivered in this pass, with empty places
        self.num_skipped = 0

    @property
    def collate_fn(self) -> Callable[[list[Pack]], Any]:
        """Function that makes a batch of packs."""
        return self._collate

    @property
    def settings(self) -> StreamSettings:
        """Settings of this loader, with what follows from the stream."""
        return self._settings

    @property
    def steps_per_epoch(self) -> int | None:
        """Number of steps of one pass, the same on every rank; None while the stream grows."""
        return None if self._log.end is None else self._order.num_steps(is_full=self._tail is Tail.DROP)

    def begin_epoch(self, epoch: int) -> None:
        """Go to the beginning of the stream, for a pass of this number."""
        self._epoch, self._position = int(epoch), 0

    @property
    def is_repeated(self) -> bool:
        """True if the stream begins again at its end."""
        return self._repeat

    @property
    def packs_together(self) -> int:
        """Number of packs that all ranks take in one micro-batch."""
        return self._per_micro_batch * self._dp_world_size

    @property
    def packs_so_far(self) -> int:
        """Number of packs that were seen committed."""
        return self._log.shards[-1].cum_packs if self._log.shards else 0

    @property
    def identity(self) -> dict[str, Any]:
        """Settings that the packs were made with, of the header."""
        return dict(self._log.header["identity"])

    @property
    def seconds_waited(self) -> float:
        """Seconds that this loader has waited for shards."""
        return self._log.seconds_waited

    def next_request(self) -> int | None:
        """Return the position of the next micro-batch, once the log shows that the stream has it; None at its end."""
        while not self.has_micro_batch(self._position):
            # Exactly once: a run that is started again behind its last step trains no second pass unasked.
            if not (self._repeat and self._position):
                return None
            self.begin_epoch(self._epoch + 1)
        return self._position

    def make_batch(self, request: int) -> Any:
        """Return the micro-batch of this rank at a position that ``has_micro_batch`` allows."""
        return self._collate(self._packs(request))

    def advance(self) -> bool:
        """Count the next micro-batch as served; whether it was the last, the log may not say yet."""
        self._position += self.packs_together
        return False

    def fork(self) -> StreamLoader:
        """Return a loader of the same stream with a position and files of its own, at the same place."""
        return copy(self)

    def __reduce__(self) -> tuple[object, ...]:
        # Each process follows the log itself, and maps its own files.
        make = partial(StreamLoader.with_settings, settings=self._settings, are_shards_shared=self._are_shards_shared)
        return make, (self.directory, self._collate), (self._epoch, self._position)

    def __setstate__(self, state: tuple[int, int]) -> None:
        self._epoch, self._position = state

    def has_micro_batch(self, position: int, awaited: str | None = None) -> bool:
        """Wait until the log shows whether the stream has the step of a position, as it shows to every rank.

        Args:
            position: packs of all ranks before the micro-batch, a multiple of ``packs_together``.
            awaited: what a person waits for, for messages; the step if None.

        Raises:
            StreamTimeoutError: nothing came in time.
        """
        step, is_full = position // self.lanes, self._tail is Tail.DROP
        places = self._places(position)

        def is_known() -> bool:
            # Who drops the tail waits for all lanes: a step that one rank serves and another drops would hang both.
            return self._order.num_steps(is_full=True) > step if is_full else all(map(self._order.find, places))

        self._log.wait_until(is_known, awaited or f"step {step:,}")
        return is_known() or self._order.num_steps(is_full=is_full) > step

    def _places(self, position: int) -> range:
        """Return the positions of this rank's packs in the micro-batch that begins at a position of all ranks."""
        first = position + self._dp_rank
        return range(first, first + self.packs_together, self._dp_world_size)

    def _packs(self, position: int) -> list[Pack]:
        """Return the packs of a micro-batch; where all places are empty, one without loss."""
        places = [place for place in map(self._order.find, self._places(position)) if place is not None]
        packs = []
        for record, row in places:
            try:
                packs.append(self._files.pack(record, row))
            except CorruptFileError as error:
                self._refuse_expired(record.seq)
                if self._on_corrupt == "error":
                    raise
                self.num_skipped += 1
                logging.getLogger("brimful").warning("skipped: %s (%d so far)", error.message, self.num_skipped)
        return packs or [self._filler()]

    def _refuse_expired(self, seq: int) -> None:
        """Refuse a shard that was removed on purpose: skipping it would train on holes."""
        first_present = expired_below(self._store)
        if seq < first_present:
            raise ShardExpiredError(
                f"{self.directory}: shard {seq} was removed, as all below {first_present}, after later checkpoints were "
                f"acknowledged: resume from one of those, or let remove_acknowledged keep more"
            )

    def _filler(self) -> Pack:
        """Return a pack without loss, which keeps this rank in step with the others."""
        for record in reversed(self._log.shards):
            try:
                return without_loss(self._files.pack(record, 0))
            except CorruptFileError:
                continue
        raise CorruptFileError(f"{self.directory}: no shard of the stream can be read")

    def state_dict(self) -> dict[str, Any]:
        """Return the position, the same on every rank, and what it is a position of."""
        return self.state_at(self._position, self._epoch)

    def state_at(self, position: int, epoch: int = 0) -> dict[str, Any]:
        """Return the state behind so many packs of all ranks in a pass, empty places included."""
        return make_state(
            "stream",
            self._log.header["checksum"],
            Position(epoch, *divmod(position, self.lanes)),
            facts_of_store(self.directory, self._log.header["identity"]),
            lanes=self.lanes,
            assign=self._assignment.value,
            tail=self._tail.value,
        )

    def ack(self, group: str | None = None, *, checkpoint: str = "") -> None:
        """Acknowledge the packs delivered so far, after a checkpoint with them is durable.

        One rank has to. Where every rank does, ``brimful inspect`` shows which of them is behind.

        Args:
            group: the ranks that train one model on this stream; as the loader was given if None.
            checkpoint: name of the model checkpoint, for people.

        Raises:
            SettingsError: no name is given here or there.
            StateError: within a step, or another run has acknowledged this position with other packs behind it.
        """
        # A further pass needs all shards again.
        is_last_pass = self._epoch == 0 and not self._repeat
        name = self._settings.group if group is None else group
        if name is None:
            raise SettingsError(f'ack needs the name of the training: ack("run-1"), or {setting("group", "run-1")}')
        self.ack_position(name, self.state_dict(), checkpoint=checkpoint, is_last_pass=is_last_pass)

    def ack_position(self, group: str, state: Mapping[str, Any], *, checkpoint: str, is_last_pass: bool) -> None:
        """Acknowledge the packs before a state, which may be behind what this loader has delivered.

        Args:
            group, checkpoint: as of ``ack``.
            state: as ``state_dict`` returns it.
            is_last_pass: no pack before it is asked for again; else every shard stays.

        Raises:
            StateError: as of ``ack``.
        """
        if state["places"]:
            raise StateError(f"ack within a step, behind {state['places']} packs: a checkpoint is made at its end")
        position = state["step"] * self.lanes
        # Shards that other ranks have left behind may be unknown to this one.
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

        One after another, packs may also go on in steps of another size, if a step of it begins there.

        Raises:
            StateError: the state is of another stream or order, or of a part of a step that these ranks cannot take up.
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
                f"the state was saved within a step, behind {remainder} of {self.lanes} packs, and micro-batches of "
                f"{self._per_micro_batch} × {self._dp_world_size} ranks do not meet it: save at the end of a step"
            )
        self._epoch, self._position = epoch, position

    def __repr__(self) -> str:
        end = "finished" if self._log.end is not None else "growing"
        return (
            f"StreamLoader({self.directory!r}, {end}, {counted(len(self._log.shards), 'shard')}, dp_rank {self._dp_rank} "
            f"of {self._dp_world_size}, step {self._position // self.lanes:,})"
        )

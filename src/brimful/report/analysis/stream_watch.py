"""Status of a stream, for display: its log and acknowledgements, read again and again at little
cost.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from dataclasses import asdict, dataclass
from typing import Any

from brimful.base.blobs import open_blob_store
from brimful.base.typing import AnyPath
from brimful.stream.acks import Acks, expired_below
from brimful.stream.assignment import Assignment, StreamOrder
from brimful.stream.followed_packs import FollowedLog
from brimful.stream.producer.registration import Producers


@dataclass(frozen=True)
class ProducerStatus:
    """One producer: counts of its commits.

    Attributes:
        name: of the producer.
        is_closed: true if it has nothing more.
        samples_read, packs, tokens, shards: committed, by all its processes.
        dropped: samples that were left out, by reason.
    """

    name: str
    is_closed: bool
    samples_read: int
    packs: int
    tokens: int
    shards: int
    dropped: dict[str, int]


@dataclass(frozen=True)
class RankStatus:
    """One data-parallel rank that acknowledges for itself.

    Attributes:
        dp_rank: the rank.
        step: that it acknowledged last.
        steps_behind: steps by which the first of the ranks is ahead of it.
        skipped: damaged packs that it skipped.
    """

    dp_rank: int
    step: int
    steps_behind: int
    skipped: int


@dataclass(frozen=True)
class TrainingStatus:
    """One training, a group of ranks, by its last acknowledgement: only packs in a checkpoint count
    as trained.

    Attributes:
        group: its name.
        packs, step: position of the checkpoint.
        checkpoint: its name.
        steps_there_are, packs_per_step: steps that the stream has for it, and packs of one.
        steps_behind: steps that the stream has after the checkpoint.
        first_needed_shard: the first that resuming from this checkpoint needs.
        dp_world_size: number of ranks.
        ranks: each rank that acknowledges for itself, by number.
        seconds_ago: since the acknowledgement, by the clock of its machine.
        steps_per_second: between the last two acknowledgements; None before the second.
        eta_seconds: to the end of a stream that has ended, at this speed; None while it grows.
        dry_seconds: after which the training has caught up with a stream that grows slower than it
            trains; None if that is not known, or never.
    """

    group: str
    packs: int
    step: int
    checkpoint: str
    steps_there_are: int
    packs_per_step: int
    steps_behind: int
    first_needed_shard: int
    dp_world_size: int
    ranks: tuple[RankStatus, ...]
    seconds_ago: float
    steps_per_second: float | None
    eta_seconds: float | None
    dry_seconds: float | None


@dataclass(frozen=True)
class StreamStatus:
    """A stream at one moment.

    Attributes:
        url: its path or URL.
        capacity: most tokens of a pack.
        shards, packs, tokens, bytes: committed, removed shards included.
        removed_shards: number of shards that were removed, since no checkpoint needs them.
        kept_bytes: of the shards that are still there.
        is_ended: true if nothing will follow.
        seconds_without_shard: since a shard was last seen to appear; None before one was.
        packs_per_second, tokens_per_second: appended over the last minutes; None at the first look.
        producers, trainings: one for each name.
    """

    url: str
    capacity: int
    shards: int
    packs: int
    tokens: int
    bytes: int
    removed_shards: int
    kept_bytes: int
    is_ended: bool
    seconds_without_shard: float | None
    packs_per_second: float | None
    tokens_per_second: float | None
    producers: tuple[ProducerStatus, ...]
    trainings: tuple[TrainingStatus, ...]

    @property
    def fill_ratio(self) -> float:
        """Share of the packs that is tokens."""
        return self.tokens / (self.packs * self.capacity) if self.packs else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return the status for JSON."""
        return {"kind": "stream", **asdict(self), "fill_ratio": self.fill_ratio}


_RATE_SECONDS = 300.0
"""Seconds over which the growth of the log is taken."""


class StreamWatch:
    """Observer of a stream; each look reads only new records.

    Everything it reports is durable: production comes from the log, and training progress from
    acknowledgements. So it is exact at every moment, even if a process is killed, and costs
    producers and trainers nothing. The growth of the log is timed by the monotonic clock of this
    process; the speed of a training by the clock of the machine that acknowledges.

    Args:
        directory: path or URL of the stream.

    >>> import tempfile
    >>> from brimful.testing.toys import toy_stream
    >>> status = StreamWatch(toy_stream(tempfile.mkdtemp(), [2, 1])).look()
    >>> status.shards, status.packs, status.tokens, status.fill_ratio, status.is_ended
    (2, 3, 12, 1.0, True)
    """

    def __init__(self, directory: AnyPath) -> None:
        self._store = open_blob_store(directory)
        self._log = FollowedLog(self._store)
        self._capacity = int(self._log.header["identity"]["capacity"])
        self._num_shards: int | None = None
        self._history: deque[tuple[float, int, int]] = deque()
        self._grown_at: float | None = None

    def look(self) -> StreamStatus:
        """Read new records, and return the status.

        Raises:
            CorruptFileError: a record of the log is damaged.
        """
        now = time.monotonic()
        self._log.look()
        shards = self._log.shards
        # Shards that existed when the watch began appeared at an unknown time.
        if self._num_shards is not None and len(shards) > self._num_shards:
            self._grown_at = now
        self._num_shards = len(shards)
        packs, tokens = (shards[-1].cum_packs, shards[-1].cum_tokens) if shards else (0, 0)
        self._history.append((now, packs, tokens))
        while len(self._history) > 2 and self._history[1][0] <= now - _RATE_SECONDS:
            self._history.popleft()
        start, packs_before, tokens_before = self._history[0]
        packs_per_second = tokens_per_second = None
        if self._log.end is not None:
            packs_per_second = tokens_per_second = 0.0
        elif now > start:
            packs_per_second = (packs - packs_before) / (now - start)
            tokens_per_second = (tokens - tokens_before) / (now - start)
        first_present = min(expired_below(self._store), len(shards))
        return StreamStatus(
            url=self._store.url,
            capacity=self._capacity,
            shards=len(shards),
            packs=packs,
            tokens=tokens,
            bytes=sum(record.bytes for record in shards),
            removed_shards=first_present,
            kept_bytes=sum(record.bytes for record in shards[first_present:]),
            is_ended=self._log.end is not None,
            seconds_without_shard=None if self._grown_at is None else now - self._grown_at,
            packs_per_second=packs_per_second,
            tokens_per_second=tokens_per_second,
            producers=self._producers(),
            trainings=tuple(
                training
                for group in sorted(self._store.folders("acks"))
                if (training := self._training(group, packs_per_second)) is not None
            ),
        )

    def _producers(self) -> tuple[ProducerStatus, ...]:
        """Return the counts in the last record of each producer."""
        counts: dict[str, dict[str, int]] = {
            record.state["producer"]: record.state["counts"]
            for record in self._log.shards
            if isinstance(record.state, dict) and "producer" in record.state
        }
        producers = Producers(self._store)
        statuses = []
        for producer in producers.all():
            totals = Counter(counts.get(producer.name, {}))
            facts = {
                name: int(totals[name]) for name in ("samples_read", "packs", "tokens", "shards")
            }
            losses = {
                name: int(totals[name]) for name in ("malformed", "without_target") if totals[name]
            }
            is_closed = producers.is_closed(producer)
            statuses.append(ProducerStatus(producer.name, is_closed, **facts, dropped=losses))
        return tuple(statuses)

    def _training(self, group: str, packs_per_second: float | None) -> TrainingStatus | None:
        """Return how far a training is; None before its first acknowledgement."""
        acks = Acks(self._store, group)
        positions = acks.positions()[-2:]
        if not positions:
            return None
        position = positions[-1]
        ack, notes = acks.read(position)
        lanes = int(ack["lanes"])
        order = StreamOrder(Assignment(ack["assign"]), self._log.shards, lanes)
        # While the stream grows, a step that lacks a pack is not there yet; at the end it is,
        # unless the tail is dropped.
        steps_there_are = order.num_steps(is_full=self._log.end is None or ack["tail"] == "drop")
        steps_behind = max(0, steps_there_are - position // lanes)
        seconds = notes["time"] - acks.read(positions[0])[1]["time"]
        rate = (position - positions[0]) / lanes / seconds if seconds > 0 else None
        dry = eta = None
        if rate:
            gain = None if packs_per_second is None else rate - packs_per_second / lanes
            if self._log.end is not None:
                eta = steps_behind / rate
            elif gain is not None and gain > 0:
                dry = steps_behind / gain
        # Ranks of an earlier, larger run no longer acknowledge.
        own_ranks = {
            rank: facts
            for rank, facts in sorted(acks.ranks().items())
            if rank < notes["dp_world_size"]
        }
        steps = {rank: int(facts["packs_delivered"]) // lanes for rank, facts in own_ranks.items()}
        first = max(steps.values(), default=0)
        return TrainingStatus(
            group=group,
            packs=position,
            step=position // lanes,
            checkpoint=str(notes["checkpoint"]),
            steps_there_are=steps_there_are,
            packs_per_step=lanes,
            steps_behind=steps_behind,
            first_needed_shard=int(ack["frontier"]),
            dp_world_size=int(notes["dp_world_size"]),
            ranks=tuple(
                RankStatus(rank, step, first - step, int(own_ranks[rank]["skipped"]))
                for rank, step in steps.items()
            ),
            seconds_ago=max(0.0, time.time() - notes["time"]),
            steps_per_second=rate,
            eta_seconds=eta,
            dry_seconds=dry,
        )

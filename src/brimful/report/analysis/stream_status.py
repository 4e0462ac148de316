"""State of a stream for people: what is produced, how far each training is, and who says nothing any more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Silence:
    """Time since the last heartbeat of a process.

    Attributes:
        seconds: since it was seen to change, or before that by the clock of its machine.
        is_silent: it should have come three times since, and its process has not ended as it should.
        is_over: the process has ended as it should.
    """

    seconds: float
    is_silent: bool
    is_over: bool


@dataclass(frozen=True)
class ProducerStatus:
    """One producer: counts of what it has committed, from the log.

    Attributes:
        name: of the producer.
        is_closed: it has nothing more.
        samples_read, packs, tokens, shards: committed, by all its processes.
        dropped: samples that were left out, by reason.
        waiting_for: reason for which it holds back; empty while it works.
        packs_per_second, tokens_per_second: over the last minutes; None if it does not say.
        silence: since its last heartbeat; None if there is none.
    """

    name: str
    is_closed: bool
    samples_read: int
    packs: int
    tokens: int
    shards: int
    dropped: dict[str, int]
    waiting_for: str
    packs_per_second: float | None
    tokens_per_second: float | None
    silence: Silence | None


@dataclass(frozen=True)
class RankStatus:
    """One data-parallel rank of a training, all its workers together.

    Attributes:
        dp_rank, dp_world_size: the rank.
        num_workers: processes that read for it.
        epoch, step: pass over the stream, and steps of it that were delivered; workers read ahead.
        steps_behind: steps that the stream has and this rank has not delivered.
        packs, tokens, skipped: delivered, and damaged, since its processes began.
        steps_per_second, packs_per_second, tokens_per_second: over the last minutes.
        wait_share: share of that time in which its workers waited for shards.
        waiting_for: what it waits for now; empty while it does not.
        silence: since the last heartbeat of the worker that said nothing for the longest time.
    """

    dp_rank: int
    dp_world_size: int
    num_workers: int
    epoch: int
    step: int
    steps_behind: int
    packs: int
    tokens: int
    skipped: int
    steps_per_second: float | None
    packs_per_second: float | None
    tokens_per_second: float | None
    wait_share: float | None
    waiting_for: str
    silence: Silence


@dataclass(frozen=True)
class TrainingStatus:
    """One training: a group of ranks.

    Attributes:
        group: its name.
        ranks: those that tell how far they are, by number.
        missing_ranks: numbers of ranks that have not told so far.
        steps_there_are, packs_per_step: steps that the stream has for it, and packs of one; None without a heartbeat.
        is_ended: the stream has no more than that.
        acked_packs, acked_step: position of the last acknowledged checkpoint; None without any, or without a heartbeat.
        checkpoint: its name.
        first_needed_shard: the first that resuming from this checkpoint needs.
    """

    group: str
    ranks: tuple[RankStatus, ...]
    missing_ranks: tuple[int, ...]
    steps_there_are: int | None
    packs_per_step: int | None
    is_ended: bool
    acked_packs: int | None
    acked_step: int | None
    checkpoint: str
    first_needed_shard: int

    @property
    def reading_ranks(self) -> tuple[RankStatus, ...]:
        """Ranks that are neither silent nor at their end."""
        return tuple(rank for rank in self.ranks if not (rank.silence.is_silent or rank.silence.is_over))

    @property
    def slowest(self) -> RankStatus | None:
        """Rank that is furthest behind."""
        return min(self.ranks, key=lambda rank: (rank.epoch, rank.step), default=None)

    @property
    def step(self) -> int | None:
        """Steps that every rank has delivered."""
        return None if self.slowest is None else self.slowest.step

    @property
    def steps_behind(self) -> int | None:
        """Steps that the stream has and the slowest rank has not delivered."""
        return None if self.slowest is None else self.slowest.steps_behind

    @property
    def steps_per_second(self) -> float | None:
        """Speed of the slowest of the ranks that read."""
        rates = [rank.steps_per_second for rank in self.reading_ranks if rank.steps_per_second is not None]
        return min(rates, default=None)

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens that all ranks together take in a second."""
        rates = [rank.tokens_per_second for rank in self.reading_ranks if rank.tokens_per_second is not None]
        return sum(rates) if rates else None

    @property
    def wait_share(self) -> float | None:
        """Share of the time in which ranks wait for shards, in the mean."""
        shares = [rank.wait_share for rank in self.reading_ranks if rank.wait_share is not None]
        return sum(shares) / len(shares) if shares else None

    @property
    def eta_seconds(self) -> float | None:
        """Seconds to the end of a stream that has ended, at this speed; None while it grows."""
        rate = self.steps_per_second
        return self.steps_behind / rate if self.is_ended and rate and self.steps_behind is not None else None

    def as_dict(self) -> dict[str, Any]:
        """Return the training for JSON."""
        names = ("step", "steps_behind", "steps_per_second", "tokens_per_second", "wait_share", "eta_seconds")
        return {**asdict(self), **{name: getattr(self, name) for name in names}}


@dataclass(frozen=True)
class StreamStatus:
    """A stream at one moment.

    Attributes:
        url: its path or URL.
        capacity: most tokens of a pack.
        shards, packs, tokens, bytes: committed, removed shards included.
        removed_shards: those below this number were removed, since no checkpoint needs them.
        kept_bytes: of the shards that are still there.
        is_ended: nothing will follow.
        seconds_without_shard: since a shard was last seen to appear; None before one was.
        packs_per_second, tokens_per_second: appended over the last minutes; None if nobody knows.
        producers, trainings: by name.
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
        return {
            "kind": "stream",
            **asdict(self),
            "fill_ratio": self.fill_ratio,
            "trainings": [training.as_dict() for training in self.trainings],
        }


def seconds_until_dry(stream: StreamStatus, training: TrainingStatus) -> float | None:
    """Return the seconds after which a training has caught up with a stream that grows slower; None if it never does."""
    rate, growth = training.steps_per_second, stream.packs_per_second
    if stream.is_ended or not rate or growth is None or training.steps_behind is None or not training.packs_per_step:
        return None
    speed = rate - growth / training.packs_per_step
    return training.steps_behind / speed if speed > 0 else None


def mean_of(values: Sequence[float | None]) -> float | None:
    """Return the mean of the numbers among values; None if there is none."""
    numbers = [value for value in values if value is not None]
    return sum(numbers) / len(numbers) if numbers else None


def sum_of(values: Sequence[float | None]) -> float | None:
    """Return the sum of the numbers among values; None if there is none."""
    numbers = [value for value in values if value is not None]
    return sum(numbers) if numbers else None

"""State of a stream, for display: its production, and the progress of each training on it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


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
    """One training, a group of ranks, by its last acknowledgement: only packs in a checkpoint count as trained.

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
        dry_seconds: after which the training has caught up with a stream that grows slower than it trains; None if that
            is not known, or never.
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

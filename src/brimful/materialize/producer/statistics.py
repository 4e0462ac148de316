"""Account of one producer: what it has read and packed."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from brimful.messages import counted, percent


@dataclass(frozen=True)
class ProducerStatistics:
    """Account of one producer: read = packed + waiting + dropped, by sample.

    Attributes:
        samples_read, samples_packed, samples_waiting: taken from the source; in committed shards; not yet in a shard.
        dropped: samples that were left out, by reason.
        packs, tokens, shards: committed.
        capacity: maximum tokens of a pack.
    """

    samples_read: int
    samples_packed: int
    samples_waiting: int
    dropped: Mapping[str, int]
    packs: int
    tokens: int
    shards: int
    capacity: int

    @property
    def fill_ratio(self) -> float:
        """Share of the capacity of the committed packs that is filled."""
        return self.tokens / (self.packs * self.capacity) if self.packs else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return the account for JSON."""
        return {**asdict(self), "fill_ratio": self.fill_ratio}

    def __str__(self) -> str:
        num_dropped = "".join(f", {number:,} {reason}" for reason, number in self.dropped.items() if number)
        return (
            f"{counted(self.samples_read, 'sample')} read, {self.samples_packed:,} packed, {self.samples_waiting:,} "
            f"waiting{num_dropped}; {counted(self.packs, 'pack')} in {counted(self.shards, 'shard')}, "
            f"{self.tokens:,} tokens, {percent(self.fill_ratio)} full"
        )

"""Records of a stream as seen by one producer: all records, and its own ones."""

from collections.abc import Iterator

from brimful.shards import EndRecord, ShardRecord, StreamLog


class SeenRecords:
    """Records that one producer has read or written, in their order.

    Args:
        log: of the stream.
        name: of the producer.

    Attributes:
        shards: records of shards so far.
    """

    def __init__(self, log: StreamLog, name: str) -> None:
        self._log, self._name = log, name
        self.shards: list[ShardRecord] = []

    def __len__(self) -> int:
        return len(self.shards)

    def look(self) -> EndRecord | None:
        """Read the new records; return the end if it exists."""
        if not self.shards:
            self.shards, end = self._log.records()
            if end is not None:
                return end
        return self._log.next_records(self.shards)

    def own(self, first: int = 0) -> list[ShardRecord]:
        """Return the records with this producer's name, from number ``first``."""
        return [record for record in self.shards[first:] if self._is_own(record)]

    def last_own(self) -> Iterator[ShardRecord]:
        """Yield the records with this producer's name, last first."""
        return filter(self._is_own, reversed(self.shards))

    def _is_own(self, record: ShardRecord) -> bool:
        return isinstance(record.state, dict) and record.state.get("producer") == self._name

    @property
    def sums(self) -> tuple[int, int]:
        """Packs and tokens of all shards."""
        return (self.shards[-1].cum_packs, self.shards[-1].cum_tokens) if self.shards else (0, 0)

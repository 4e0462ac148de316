"""Records of a stream as one producer sees them: what it reads, what it writes, and what it resumes from.

A record commits a shard, the position in the source and the carry-over together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from brimful.base.attachment import attachment_jobs
from brimful.base.blobs import BlobGroup, BlobStore, crash_points
from brimful.errors import CorruptFileError, StateError
from brimful.store.shards import EndRecord, Pack, ShardRecord, StreamLog, add_shard
from brimful.stream.producer.back_pressure import Clock
from brimful.stream.producer.carry_over import load_carry_over, write_packs_to
from brimful.stream.producer.open_window import PackingWindow
from brimful.stream.producer.settings import ProducerSettings

STATE_VERSION = 1
"""Version of the state in records; others are rejected."""

FIRST_WAIT = 0.02
"""Seconds between the first two checks for something that has not arrived."""

_LATE_LOOKS = 12
"""Checks for a file that must exist before it counts as lost: half a minute, as network mounts may need."""

_KEPT_CARRY_OVERS = 2
"""Number of last records whose carry-over is kept: another process may be reading the second to last."""


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


def write_shard(
    files: BlobGroup,
    records: SeenRecords,
    packs: Sequence[Pack],
    state: dict[str, Any],
    writer_id: str,
    with_media: bool,
) -> ShardRecord:
    """Write a shard and its media under the next number, and return its record; its commit publishes them.

    Raises:
        BadSampleError: a medium was changed after intake, or is gone.
    """
    seq, (num_packs, num_tokens) = len(records), records.sums
    container = attachment_jobs().ShardContainer(files, seq)
    media = [container.add(pack) for pack in packs] if with_media else None
    media_facts = container.close()
    crash_points.reach("after-media")
    blob = files.blob(f"shards/{seq:08d}")
    batches = write_packs_to(blob, packs, media)
    tokens = sum(map(len, packs))
    numbers = (len(packs), tokens, num_packs + len(packs), num_tokens + tokens)
    return add_shard(files, seq, blob, numbers, writer_id, state=state, media=media_facts, batches=batches)


def remove_carry_over(store: BlobStore, records: SeenRecords) -> None:
    """Remove the carry-over of a record that no process resumes from."""
    files = [_carried_files(record) for record in islice(records.last_own(), _KEPT_CARRY_OVERS + 1)]
    if len(files) > _KEPT_CARRY_OVERS:
        # A container of media stays while a later record names it.
        for key in files[-1].difference(*files[:-1]):
            store.delete(key)


def _carried_files(record: ShardRecord) -> set[str]:
    carried = record.state["carry_over"] or {}
    return {facts["file"] for facts in [carried, *carried.get("containers", [])] if facts}


@dataclass(frozen=True)
class Recovered:
    """State from which a producer resumes.

    Attributes:
        window: samples that were taken and are in no shard.
        cursors: of the feed, one for each own record.
        is_closing: the source was read to its end.
        end: of the stream, if it exists.
    """

    window: PackingWindow
    cursors: list[Any]
    is_closing: bool
    end: EndRecord | None


def recover(
    store: BlobStore,
    records: SeenRecords,
    settings: ProducerSettings,
    name: str,
    clock: Clock,
    carried_media: Any,
) -> Recovered:
    """Return the state in the last record of a producer.

    Raises:
        CorruptFileError: the carry-over is gone or damaged.
        StateError: the state is of another version.
    """
    carried_file = ""
    for _ in late_looks(clock):
        end = records.look()
        states = [record.state for record in records.own()]
        window = PackingWindow(settings)
        if carried_media is not None:
            carried_media.forget()
        try:
            if states:
                carried_file = (states[-1].get("carry_over") or {}).get("file", "")
                _load(window, store, name, states[-1], carried_media)
        except FileNotFoundError:
            # Another process of this name has committed more records, or a network mount shows the file late.
            continue
        is_closing = bool(states) and bool(states[-1]["is_closing"])
        return Recovered(window, [state["cursor"] for state in states], is_closing, end)
    raise CorruptFileError(
        f"{store.url}: {carried_file} is missing: what producer {name} has taken and not packed is lost; begin the "
        f"stream again"
    )


def _load(window: PackingWindow, store: BlobStore, name: str, state: dict[str, Any], carried_media: Any) -> None:
    if state.get("version") != STATE_VERSION:
        raise StateError(
            f"{store.url}: producer {name} has state of version {state.get('version')!r}; this brimful reads "
            f"{STATE_VERSION}"
        )
    carried = state["carry_over"]
    ready, segments = ([], []) if carried is None else load_carry_over(store, carried, carried_media)
    window.load(state["counts"], state["window"], ready, segments)


def late_looks(clock: Clock) -> Iterator[int]:
    """Yield the number of each check for something that a network mount may show late, with pauses in between."""
    for look in range(_LATE_LOOKS):
        if look:
            clock.sleep(min(FIRST_WAIT * 2 ** (look - 1), 5.0))
        yield look

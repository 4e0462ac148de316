"""Records of a stream as one producer sees them: what it reads, what it writes, and what it resumes
from.

A record commits a shard, the position in the source and the carry-over together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from brimful.base.blobs import BlobGroup, crash_points
from brimful.errors import CorruptFileError, StateError
from brimful.store.shards import EndRecord, Pack, ShardRecord, StreamLog, add_shard
from brimful.stream.producer.back_pressure import Clock
from brimful.stream.producer.carry_over import load_carry_over, write_packs_to
from brimful.stream.producer.open_window import PackingWindow
from brimful.stream.producer.settings import ProducerSettings

if TYPE_CHECKING:
    from brimful.media.job.producer import CarriedMedia

STATE_VERSION = 1
"""Version of the state in records; others are rejected."""

FIRST_WAIT = 0.02
"""Seconds between the first two checks for something that has not arrived."""

_LATE_LOOKS = 12
"""Checks for a file that must exist before it counts as lost: half a minute, as network mounts may
need.
"""

_KEPT_CARRY_OVERS = 2
"""Number of last records whose carry-over is kept: another process may be reading the second to
last.
"""


class SeenRecords:
    """Records that one producer has read or written, in their order.

    Args:
        log: of the stream.
        name: of the producer.
        clock: waits for what a network mount shows late.
        carried_media: media of its carry-over; None without media.

    Attributes:
        shards: records of shards so far.
    """

    def __init__(
        self, log: StreamLog, name: str, clock: Clock, carried_media: CarriedMedia | None
    ) -> None:
        self._log, self._name, self._clock, self._carried_media = log, name, clock, carried_media
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

    def states(self, first: int = 0) -> list[dict[str, Any]]:
        """Return the states in the records of this producer, from record ``first``."""
        return list(self._own(self.shards[first:]))

    def _own(self, records: Iterable[ShardRecord]) -> Iterator[dict[str, Any]]:
        states = (record.state for record in records)
        return (
            state
            for state in states
            if isinstance(state, dict) and state.get("producer") == self._name
        )

    @property
    def sums(self) -> tuple[int, int]:
        """Packs and tokens of all shards."""
        return (self.shards[-1].cum_packs, self.shards[-1].cum_tokens) if self.shards else (0, 0)

    def write_shard(
        self, files: BlobGroup, packs: Sequence[Pack], state: dict[str, Any], writer_id: str
    ) -> ShardRecord:
        """Write a shard and its media under the next number, and return its record; its commit
        publishes them.

        Raises:
            BadSampleError: a medium was changed after intake, or is gone.
        """
        seq, (num_packs, num_tokens) = len(self), self.sums
        media, media_facts = None, None
        if self._carried_media is not None:
            from brimful.media.job.producer import ShardContainer

            container = ShardContainer(files, seq)
            media = [container.add(pack) for pack in packs]
            media_facts = container.close()
        crash_points.reach("after-media")
        blob = files.blob(f"shards/{seq:08d}")
        batches = write_packs_to(blob, packs, media)
        tokens = sum(map(len, packs))
        totals = (len(packs), tokens, num_packs + len(packs), num_tokens + tokens)
        return add_shard(
            files, seq, blob, totals, writer_id, state=state, media=media_facts, batches=batches
        )

    def clear_carry_over(self) -> None:
        """Remove the carry-over of a record that no process resumes from."""
        states = islice(self._own(reversed(self.shards)), _KEPT_CARRY_OVERS + 1)
        files = [_carried_files(state) for state in states]
        if len(files) > _KEPT_CARRY_OVERS:
            # A container of media stays while a later record names it.
            for key in files[-1].difference(*files[:-1]):
                self._log.store.delete(key)

    def recover(
        self, settings: ProducerSettings
    ) -> tuple[PackingWindow, list[dict[str, Any]], EndRecord | None]:
        """Return the window of the last record of this producer, the states in its records, and the
        end if it exists.

        Raises:
            CorruptFileError: the carry-over is gone or damaged.
            StateError: the state is of another version.
        """
        store, carried_file = self._log.store, ""
        for _ in late_looks(self._clock):
            end, states, window = self.look(), self.states(), PackingWindow(settings)
            if self._carried_media is not None:
                self._carried_media.forget()
            if not states:
                return window, states, end
            state = states[-1]
            if state.get("version") != STATE_VERSION:
                raise StateError(
                    f"{store.url}: producer {self._name} has state of version "
                    f"{state.get('version')!r}; this brimful reads {STATE_VERSION}"
                )
            carried = state["carry_over"]
            carried_file = (carried or {}).get("file", "")
            try:
                rows = (
                    ([], [])
                    if carried is None
                    else load_carry_over(store, carried, self._carried_media)
                )
            except FileNotFoundError:
                # Another process of this name has committed more records, or a network mount shows
                # the file late.
                continue
            window.load(state["counts"], state["window"], *rows)
            return window, states, end
        raise CorruptFileError(
            f"{store.url}: {carried_file} is missing: what producer {self._name} has taken and not "
            "packed is lost; begin the stream again, or restore the later records if the log is "
            "shorter than it was"
        )


def _carried_files(state: dict[str, Any]) -> set[str]:
    carried = state["carry_over"] or {}
    return {facts["file"] for facts in [carried, *carried.get("containers", [])] if facts}


def late_looks(clock: Clock) -> Iterator[int]:
    """Yield the number of each check for something that a network mount may show late, with pauses
    in between.
    """
    for look in range(_LATE_LOOKS):
        if look:
            clock.sleep(min(FIRST_WAIT * 2 ** (look - 1), 5.0))
        yield look

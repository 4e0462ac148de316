"""Settings of a stream reader, and the shard and the pack at each position: by lanes or one after
another.

A position counts the packs of all ranks: ``position // lanes`` is the step, ``position % lanes``
the place in its global batch. So the batches are the same for every number of ranks. With two lanes
and shards ``a`` (packs 0 1 2), ``b`` (0 1), ``c`` (0)::

    by lanes            step 0: a0 b0   step 1: a1 b1   step 2: a2 --   step 3: c0 --
    one after another   step 0: a0 a1   step 1: a2 b0   step 2: b1 c0

By lanes, a rank opens only its own shards. One after another, places stay empty only in the last
step, and each rank opens all shards.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Literal, TypeAlias

from brimful.base.checks import check_rank, choice_of, is_number, setting_number, whole_number
from brimful.base.typing import AnyPath
from brimful.base.wording import setting
from brimful.errors import SettingsError
from brimful.plan.schedule import Tail
from brimful.store.shards import ShardRecord
from brimful.stream.acks import check_group

OnCorrupt: TypeAlias = Literal["error", "skip"]


class Assignment(Enum):
    """Rule that assigns packs to places in global batches."""

    LANE = "lane"
    """Shard ``s`` feeds place ``s % lanes`` of every batch: a rank opens only its own shards."""

    PACK = "pack"
    """Packs follow one another: empty places only in the last batch."""


@dataclass(frozen=True, kw_only=True)
class StreamSettings:
    """Validated and normalized options of ``StreamLoader``, which documents them.

    ``lanes``, ``assign`` and ``packs_per_micro_batch`` may be None until ``of_stream`` gets the
    lanes from the header.

    Raises:
        SettingsError: an impossible value, or two that contradict each other.

    >>> StreamSettings(dp_rank=1, dp_world_size=2, tail="drop").of_stream(8).packs_per_micro_batch
    4
    """

    dp_rank: int = 0
    dp_world_size: int = 1
    lanes: int | None = None
    assign: Assignment | str | None = None
    packs_per_micro_batch: int | None = None
    tail: Tail | str = Tail.PAD
    timeout: float | None = None
    on_corrupt: OnCorrupt = "error"
    repeat: bool = False
    group: str | None = None
    cache_dir: AnyPath | None = None
    cache_bytes: int | None = None

    def __post_init__(self) -> None:
        rank, world_size = check_rank(self.dp_rank, self.dp_world_size)
        tail = Tail.named(self.tail)
        if tail is Tail.REPEAT:
            raise SettingsError(
                f"{setting('tail', 'repeat')} needs a finished store and PackLoader: use pad or "
                "drop"
            )
        if self.on_corrupt not in ("error", "skip"):
            raise SettingsError(
                f"{setting('on_corrupt')} {self.on_corrupt!r} is unknown: use one of error, skip"
            )
        if self.timeout is not None and not (is_number(self.timeout) and self.timeout >= 0):
            raise SettingsError(
                f"{setting('timeout')} must be a number of seconds, at least 0, and is "
                f"{self.timeout!r}"
            )
        if self.group is not None:
            check_group(self.group)
        values: dict[str, Any] = {"dp_rank": rank, "dp_world_size": world_size, "tail": tail}
        if self.assign is not None:
            values["assign"] = choice_of(Assignment, self.assign, argument="assign")
        if self.packs_per_micro_batch is not None:
            values["packs_per_micro_batch"] = whole_number(
                "packs_per_micro_batch", self.packs_per_micro_batch, minimum=1
            )
        if self.lanes is not None:
            values["lanes"] = setting_number("lanes", self.lanes, minimum=1)
        # The object is frozen for users; here each value is replaced by its normalized form.
        self.__dict__.update(values, repeat=bool(self.repeat))

    def of_stream(self, stream_lanes: int) -> StreamSettings:
        """Return the settings with the values that follow from the lanes in the header of a stream.

        Raises:
            SettingsError: the number of ranks does not divide the lanes, or
                ``packs_per_micro_batch`` does not divide the packs of a rank.
        """
        lanes = stream_lanes if self.lanes is None else self.lanes
        if lanes % self.dp_world_size:
            raise SettingsError(
                f"{setting('lanes', lanes)} is not a multiple of dp_world_size "
                f"{self.dp_world_size}: give {setting('lanes')} as the packs of one global batch"
            )
        per_rank = lanes // self.dp_world_size
        per_micro_batch = (
            per_rank if self.packs_per_micro_batch is None else self.packs_per_micro_batch
        )
        if per_rank % per_micro_batch:
            raise SettingsError(
                f"packs_per_micro_batch {per_micro_batch} does not divide the {per_rank} packs "
                "that a rank has in a step"
            )
        assign = self.assign or (Assignment.LANE if stream_lanes > 1 else Assignment.PACK)
        return replace(self, lanes=lanes, packs_per_micro_batch=per_micro_batch, assign=assign)


class StreamOrder:
    """Shard and row at each position: a function of the records, which are only appended.

    Shards wait in queues, shard ``s`` in queue ``s % queues``: one queue for each lane, from which
    every step takes a pack; or one queue in all, from which it takes ``lanes`` packs.

    Args:
        assignment: by lanes, or one after another.
        shards: records so far; the list that the log appends to.
        lanes: packs of one global batch.

    >>> from brimful.testing.toys import toy_records
    >>> shards = toy_records([3, 2, 1])
    >>> order = StreamOrder(Assignment.PACK, shards, lanes=2)
    >>> [(record.seq, row) for record, row in map(order.find, range(6))]
    [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0)]
    >>> order = StreamOrder(Assignment.LANE, shards, lanes=2)
    >>> [found and (found[0].seq, found[1]) for found in map(order.find, range(8))]
    [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), None, (2, 0), None]
    >>> order.num_steps(is_full=True), order.num_steps(is_full=False)
    (2, 4)
    """

    def __init__(self, assignment: Assignment, shards: Sequence[ShardRecord], lanes: int) -> None:
        self._shards, self.lanes = shards, lanes
        self._num_queues = lanes if assignment is Assignment.LANE else 1
        # Running sums of the packs of each queue.
        self._queues: list[list[int]] = [[] for _ in range(self._num_queues)]
        self._num_read = 0

    def find(self, position: int) -> tuple[ShardRecord, int] | None:
        """Return the shard and the row at a position; None if no record has it yet."""
        self._read_on()
        queue_index, queue = divmod(position, self._num_queues)
        ends = self._queues[queue]
        shard_index = bisect_right(ends, queue_index)
        if shard_index == len(ends):
            return None
        record = self._shards[queue + shard_index * self._num_queues]
        return record, queue_index - (ends[shard_index] - record.packs)

    def num_steps(self, *, is_full: bool) -> int:
        """Return the number of steps in the records so far: with all places filled, or with at
        least one.
        """
        self._read_on()
        totals = [ends[-1] if ends else 0 for ends in self._queues]
        per_step = self.lanes // self._num_queues
        return min(totals) // per_step if is_full else -(-max(totals) // per_step)

    def frontier(self, position: int) -> int:
        """Return the number of the first shard that may hold the step of a position, or a later
        step.
        """
        self._read_on()
        queue_index = position // self.lanes * (self.lanes // self._num_queues)
        return min(
            queue + bisect_right(ends, queue_index) * self._num_queues
            for queue, ends in enumerate(self._queues)
        )

    def _read_on(self) -> None:
        """Add the records that arrived since the last call."""
        for record in self._shards[self._num_read :]:
            ends = self._queues[record.seq % self._num_queues]
            ends.append(record.packs + (ends[-1] if ends else 0))
        self._num_read = len(self._shards)

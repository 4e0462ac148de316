"""Order of a stream: the shard and the pack at each position, by lanes or one after another.

A position counts the packs of all ranks: ``position // lanes`` is the step, ``position % lanes`` the place in its
global batch. So the batches are the same for every number of ranks. With two lanes and shards ``a`` (packs 0 1 2),
``b`` (0 1), ``c`` (0)::

    by lanes            step 0: a0 b0   step 1: a1 b1   step 2: a2 --   step 3: c0 --
    one after another   step 0: a0 a1   step 1: a2 b0   step 2: b1 c0

By lanes, a rank opens only its own shards. One after another, places stay empty only in the last step, and each rank
opens all shards.
"""

from __future__ import annotations

import abc
from bisect import bisect_right
from collections.abc import Sequence
from enum import Enum

from brimful.store.shards import ShardRecord


class Assignment(Enum):
    """Rule that assigns packs to places in global batches."""

    LANE = "lane"
    """Shard ``s`` feeds place ``s % lanes`` of every batch: a rank opens only its own shards."""

    PACK = "pack"
    """Packs follow one another: empty places only in the last batch."""


class StreamOrder(abc.ABC):
    """Base of the orders: pure functions of the records, which are only appended.

    Args:
        shards: records so far; the list that the log appends to.
        lanes: packs of one global batch.
    """

    def __init__(self, shards: Sequence[ShardRecord], lanes: int) -> None:
        self._shards, self.lanes = shards, lanes

    @abc.abstractmethod
    def find(self, position: int) -> tuple[ShardRecord, int] | None:
        """Return the shard and the row at a position; None if no record has it yet."""

    @abc.abstractmethod
    def num_steps(self, *, is_full: bool) -> int:
        """Return the number of steps in the records so far: with all places filled, or with at least one."""

    @abc.abstractmethod
    def frontier(self, position: int) -> int:
        """Return the number of the first shard that may hold the step of a position, or a later step."""


class PackOrder(StreamOrder):
    """Packs one after another.

    >>> from brimful.testing.toys import toy_records
    >>> order = PackOrder(toy_records([3, 2, 1]), lanes=2)
    >>> [(record.seq, row) for record, row in map(order.find, range(6))]
    [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0)]
    """

    def find(self, position: int) -> tuple[ShardRecord, int] | None:
        if position >= self._num_packs:
            return None
        seq = bisect_right(self._shards, position, key=lambda record: record.cum_packs)
        record = self._shards[seq]
        return record, position - (record.cum_packs - record.packs)

    def num_steps(self, *, is_full: bool) -> int:
        return self._num_packs // self.lanes if is_full else -(-self._num_packs // self.lanes)

    def frontier(self, position: int) -> int:
        return bisect_right(self._shards, position - position % self.lanes, key=lambda record: record.cum_packs)

    @property
    def _num_packs(self) -> int:
        return self._shards[-1].cum_packs if self._shards else 0


class LaneOrder(StreamOrder):
    """One pack from every lane in each step; shard ``s`` belongs to lane ``s % lanes``.

    >>> from brimful.testing.toys import toy_records
    >>> order = LaneOrder(toy_records([3, 2, 1]), lanes=2)
    >>> [found and (found[0].seq, found[1]) for found in map(order.find, range(8))]
    [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), None, (2, 0), None]
    >>> order.num_steps(is_full=True), order.num_steps(is_full=False)
    (2, 4)
    """

    def __init__(self, shards: Sequence[ShardRecord], lanes: int) -> None:
        super().__init__(shards, lanes)
        # For each lane, the cumulative packs of its shards so far: lane l holds shards l, l + lanes, … in this order.
        self._ends: list[list[int]] = [[] for _ in range(lanes)]
        self._num_read = 0

    def find(self, position: int) -> tuple[ShardRecord, int] | None:
        self._read_on()
        step, lane = divmod(position, self.lanes)
        ends = self._ends[lane]
        number = bisect_right(ends, step)
        if number == len(ends):
            return None
        record = self._shards[lane + number * self.lanes]
        return record, step - (ends[number] - record.packs)

    def num_steps(self, *, is_full: bool) -> int:
        self._read_on()
        return (min if is_full else max)(ends[-1] if ends else 0 for ends in self._ends)

    def frontier(self, position: int) -> int:
        self._read_on()
        step = position // self.lanes
        return min(lane + bisect_right(ends, step) * self.lanes for lane, ends in enumerate(self._ends))

    def _read_on(self) -> None:
        """Add the records that arrived since the last call."""
        for record in self._shards[self._num_read :]:
            ends = self._ends[record.seq % self.lanes]
            ends.append(record.packs + (ends[-1] if ends else 0))
        self._num_read = len(self._shards)


def order_of(assignment: Assignment, shards: Sequence[ShardRecord], lanes: int) -> StreamOrder:
    """Return the order with this rule; the arguments are the arguments of ``StreamOrder``."""
    return (LaneOrder if assignment is Assignment.LANE else PackOrder)(shards, lanes)

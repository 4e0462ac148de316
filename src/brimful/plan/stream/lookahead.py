"""Packs of a stream: the planner looks some samples ahead, emits full packs, and keeps the other
samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
import numpy.typing as npt

from brimful.base.arguments import CAPACITY_NAMES, understands
from brimful.base.checks import check_share, setting_number
from brimful.base.ragged import offsets_of
from brimful.base.typing import AnyIntArray, Int64Array, Lengths, Offsets, SampleIds
from brimful.base.wording import differences
from brimful.errors import InvalidLengthsError, OversizedSampleError, SettingsError, StateError
from brimful.lengths.table import REJECTED
from brimful.lengths.targets import as_lengths
from brimful.plan.algorithms import ALGORITHMS
from brimful.plan.counts.counting_sort import decreasing_order
from brimful.plan.fit.any_fit import next_fit_upper_bound
from brimful.plan.packing import Packing, loads_of, tokens_of
from brimful.plan.policies.overflow import Overflow, apply_overflow


@dataclass(frozen=True)
class StreamPacks:
    """Packs that left the planner, in order: pack ``i`` has the segments
    ``offsets[i] … offsets[i + 1] - 1``.

    Attributes:
        offsets: ``int64[num_packs + 1]``.
        sample_ids: ``int64[num_segments]``, as given to ``add``.
        starts: ``int32[num_segments]``, first token of the sample in the segment; 0 unless cut.
        lengths: ``int32[num_segments]``, tokens.
    """

    offsets: Offsets
    sample_ids: SampleIds
    starts: Lengths
    lengths: Lengths

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __iter__(self) -> Iterator[tuple[SampleIds, Lengths, Lengths]]:
        """Yield sample ids, starts and lengths of each pack."""
        for begin, end in zip(self.offsets[:-1].tolist(), self.offsets[1:].tolist(), strict=True):
            yield self.sample_ids[begin:end], self.starts[begin:end], self.lengths[begin:end]

    def as_lists(self) -> list[list[int]]:
        """Return the sample ids of each pack, for small examples."""
        return [sample_ids.tolist() for sample_ids, _, _ in self]

    @classmethod
    def of_parts(cls, parts: list[StreamPacks]) -> StreamPacks:
        """Concatenate the packs of several parts."""
        no_ids, no_tokens = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int32)
        parts = [cls(np.zeros(1, dtype=np.int64), no_ids, no_tokens, no_tokens), *parts]
        sizes = np.concatenate([np.diff(part.offsets) for part in parts])
        names = ("sample_ids", "starts", "lengths")
        columns = (np.concatenate([getattr(part, name) for part in parts]) for name in names)
        return cls(offsets_of(sizes), *columns)


_VERSION = 1

_COUNTS = ("packs_emitted", "samples_dropped")
"""Attributes of a planner that its state holds."""

_WAITING = np.dtype(
    [("id", np.int64), ("start", np.int32), ("length", np.int32), ("deadline", np.int64)]
)
"""Fields of a waiting segment; its deadline is the number, from 0, of the last pack that may hold
it.
"""

LOOKAHEAD_ALGORITHMS = tuple(
    name for name, algorithm in ALGORITHMS.items() if algorithm.window_rule is not None
)
"""Names of the algorithms that can plan a stream."""


class Lookahead:
    """Planner of packs of a stream from a window of samples, in bounded memory. After a resume,
    packs are the same.

    When ``size`` samples wait, the algorithm packs them as if they were the whole stream, and packs
    leave in the order of their oldest sample. These planned packs are emitted:

    * packs filled to ``min_fill`` or more,
    * the fullest packs, until half of the samples have left, so that a sample is planned about
      twice and not once for each pack,
    * packs with a sample that might otherwise wait too long.

    The other samples stay and are packed again with the next samples. ``next_fit`` keeps the order
    of the stream: all packs are emitted except the last, which stays open unless it is the only
    one.

    Capacity 10, size 4, best fit decreasing, min_fill 1::

        add        waiting          planned         emitted    stays
        7 6 4 2    7 6 4 2          7 2 · 6 4       6 4        7 2       half of the samples went
        5 3        7 2 5 3          7 3 · 5 2       7 3        2 5
        5 8        2 5 5 8          8 2 · 5 5       8 2 · 5 5            both are full

    **No sample waits for more than** ``max_wait`` **packs**: at most this many are emitted between
    its arrival and the pack that holds it. The window is in order of arrival. Invariant: before
    each planning, the sample at position k of the window (from 0) may still wait for at least k
    packs. This is true when a sample arrives, because ``max_wait`` is at least ``size - 1``, the
    minimum that any planner can guarantee if no two samples share a pack. Packs leave in the order
    of their oldest sample, so at most k packs precede the sample at k. If the sample stays, up to P
    packs may precede it, P being the number of planned packs. A sample that may not wait for k + P
    packs is *due* and leaves now; the others may still wait for k packs afterward, and their
    positions only fall. The decreasing algorithms first place samples that might be due, so that
    these do not have to leave in half empty packs.

    Under ``split`` this holds for every segment, from the arrival of its sample, except that
    segment k of a sample (from 0) may need up to ``size - 1 + k`` packs, if this is more: up to
    that many segments can be before it, and possibly no two of them can share a pack.

    The result depends on the order of the samples, and not on their division among calls of
    ``add``.

    Args:
        capacity: maximum tokens of a pack, from 1 to 2**31 - 1. Also accepted as ``max_length``,
            ``packing_length`` and ``seq_length``.
        size: number of samples to look ahead before packs must be emitted.
        max_wait: packs that a sample may wait for, at least ``size - 1``. Several times ``size``
            leaves the algorithm free; less keeps packs closer to the order of arrival.
        algorithm: one of ``LOOKAHEAD_ALGORITHMS``.
        min_fill: share of the capacity, from 0 to 1, from which a pack leaves at once. 0 empties
            the window at each planning, and 1 keeps all but the fullest half for another attempt.
        overflow: policy for samples longer than a pack (``Overflow``).

    Cost: one planning of ``size`` samples for each ``size / 2`` samples that arrive, and O(size)
        memory.
    Source: streaming packers plan a window and keep a remainder (ms-swift, VeOmni, Energon);
    keeping the samples of packs that are not full, with a bound on the wait, is ours.

    >>> planner = Lookahead(capacity=10, size=4, max_wait=8, min_fill=1.0)
    >>> planner.add(np.arange(6), np.array([7, 6, 4, 2, 5, 3])).as_lists()
    [[1, 2], [0, 5]]
    >>> planner
    Lookahead(best_fit_decreasing, 2 of 4 samples waiting, 2 packs emitted)
    >>> planner.finish().as_lists()
    [[4, 3]]
    """

    @understands(capacity=CAPACITY_NAMES)
    def __init__(
        self,
        *,
        capacity: int,
        size: int,
        max_wait: int,
        algorithm: str = "best_fit_decreasing",
        min_fill: float = 1.0,
        overflow: Overflow | str = Overflow.ERROR,
    ) -> None:
        self._capacity = setting_number("capacity", capacity, minimum=1, maximum=2**31 - 1)
        self._size = setting_number("size", size, minimum=1, maximum=2**31 - 1)
        self._max_wait = setting_number("max_wait", max_wait, minimum=0, maximum=2**31 - 1)
        if max_wait < size - 1:
            raise SettingsError(
                f"max_wait is {max_wait:,} packs and {size:,} samples wait, perhaps for a pack "
                f"each: choose max_wait {size - 1:,} or more, or size {max_wait + 1:,}"
            )
        if algorithm not in LOOKAHEAD_ALGORITHMS:
            raise SettingsError(
                f"algorithm {algorithm!r} cannot plan a stream: use one of "
                f"{', '.join(LOOKAHEAD_ALGORITHMS)}"
            )
        self._algorithm = algorithm
        self._overflow = Overflow.named(overflow)
        self._settings: dict[str, Any] = {
            "capacity": self._capacity,
            "size": self._size,
            "max_wait": self._max_wait,
            "algorithm": algorithm,
            "min_fill": check_share("min_fill", min_fill),
            "overflow": self._overflow.value,
        }
        self._full_load = ceil(tokens_of(min_fill, self._capacity))
        self.packs_emitted = 0
        """Number of packs so far."""
        self.samples_dropped = 0
        """Number of samples so far that the overflow policy left out."""
        self._window = np.empty(self._size, dtype=_WAITING)  # in order of arrival
        self._num_waiting = 0

    def add(self, sample_ids: AnyIntArray, lengths: AnyIntArray) -> StreamPacks:
        """Add samples in their order and return the packs that are emitted as a result, often none.

        Args:
            sample_ids: ``int64[num_samples]``, any numbers.
            lengths: ``int32[num_samples]``, tokens; -1 marks a rejected sample, which is counted
                and left out.

        Raises:
            InvalidLengthsError: a length below 1, numbers that are not whole, or not one id and
                length per sample; nothing was added.
            OversizedSampleError: a length exceeds the capacity and the policy is ``error``; nothing
                was added.
        """
        ids = np.asarray(sample_ids)
        if ids.dtype.kind not in "iu" and ids.size:
            raise InvalidLengthsError(f"sample ids must be whole numbers and are {ids.dtype}")
        segments, first_rows = self._segments(ids.astype(np.int64, copy=False), as_lengths(lengths))
        arrivals = np.empty(
            len(segments), dtype=np.int64
        )  # packs emitted before the sample of the segment arrived
        packs = []
        row = 0
        while row < len(segments):
            # Add segments while the window has room; a full window is planned, and half of it
            # leaves.
            num_before, num_emitted = self._num_waiting, self.packs_emitted
            count = min(self._size - num_before, len(segments) - row)
            rows = slice(row, row + count)
            arrivals[rows] = num_emitted
            arrivals[rows] = arrivals[first_rows[rows]]
            # The earlier segments in the window may always leave first, one pack each; so a late
            # segment of a sample that was split into very many segments gets a later deadline.
            last_packs = num_emitted + num_before + np.arange(count)
            segments["deadline"][rows] = np.maximum(arrivals[rows] + self._max_wait, last_packs)
            self._window[num_before : num_before + count] = segments[rows]
            self._num_waiting += count
            row += count
            if self._num_waiting == self._size:
                packs.append(self._plan(is_last=False))
        return StreamPacks.of_parts(packs)

    def finish(self) -> StreamPacks:
        """End the stream and return the packs of all waiting samples, however full."""
        return self._plan(is_last=True) if self._num_waiting else StreamPacks.of_parts([])

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the next packs depend on, as plain numbers for JSON: settings,
        counts and window.
        """
        waiting = self._window[: self._num_waiting]
        deadlines, times = np.unique(waiting["deadline"], return_counts=True)
        return {
            "version": _VERSION,
            **self._settings,
            "counts": {name: getattr(self, name) for name in _COUNTS},
            "sample_ids": waiting["id"].tolist(),
            "starts": waiting["start"].tolist() if waiting["start"].any() else None,
            "lengths": waiting["length"].tolist(),
            "deadlines": [deadlines.tolist(), times.tolist()],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state.

        Raises:
            StateError: the state has other settings, which the message names, or contradicts
                itself.
        """
        own_state = {"version": _VERSION, **self._settings}
        mismatch = differences(state, own_state, own_state)
        if mismatch:
            raise StateError(f"the lookahead state does not fit: {mismatch}")
        try:
            counts = {name: int(state["counts"][name]) for name in _COUNTS}
            waiting = np.zeros(len(state["sample_ids"]), dtype=_WAITING)
            waiting["id"], waiting["length"] = state["sample_ids"], state["lengths"]
            waiting["start"] = state["starts"] or 0
            waiting["deadline"] = np.repeat(*state["deadlines"])
            lengths = waiting["length"]
            if ((lengths < 1) | (lengths > self._capacity)).any() or len(waiting) >= self._size:
                raise ValueError(
                    f"lengths are not fewer than {self._size:,}, from 1 to {self._capacity:,}"
                )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise StateError(
                f"the lookahead state is damaged: {type(error).__name__} {error}"
            ) from error
        self.__dict__.update(counts)
        self._num_waiting = len(waiting)
        self._window[: len(waiting)] = waiting

    def __repr__(self) -> str:
        waiting = f"{self._num_waiting:,} of {self._size:,} samples waiting"
        return f"Lookahead({self._algorithm}, {waiting}, {self.packs_emitted:,} packs emitted)"

    def _segments(
        self, ids: SampleIds, lengths: Lengths
    ) -> tuple[npt.NDArray[np.void], Int64Array]:
        """Apply the overflow policy.

        Returns:
            The segments, without deadlines; and for each segment the row of its sample's first
            segment.
        """
        if ids.shape != lengths.shape:
            raise InvalidLengthsError(
                f"{len(ids):,} sample ids and {len(lengths):,} lengths: one of each per sample"
            )
        invalid = np.flatnonzero((lengths < 1) & (lengths != REJECTED))
        if len(invalid):
            row = int(invalid[0])
            raise InvalidLengthsError(
                f"sample {int(ids[row])} has length {int(lengths[row])}; the least is 1 token"
            )
        oversized = lengths > self._capacity
        if self._overflow is Overflow.ERROR and oversized.any():
            row = int(np.argmax(oversized))
            raise OversizedSampleError(
                f"sample {int(ids[row])} has {int(lengths[row]):,} tokens and a pack holds "
                f"{self._capacity:,}. Choose overflow drop, truncate, truncate_left or split, or "
                f"capacity {int(lengths[row])}"
            )
        segments = apply_overflow(lengths, capacity=self._capacity, policy=self._overflow)
        rows = segments.ids()
        self.samples_dropped += len(segments.dropped_ids)
        waiting = np.zeros(len(rows), dtype=_WAITING)
        waiting["id"], waiting["length"] = ids[rows], segments.lengths
        if segments.starts is not None:
            waiting["start"] = segments.starts
        return waiting, rows if segments.sample_ids is None else np.searchsorted(rows, rows)

    def _plan(self, *, is_last: bool) -> StreamPacks:
        """Pack the window, remove the packs that leave, and close the gaps."""
        waiting = self._window[: self._num_waiting]
        lengths = np.ascontiguousarray(waiting["length"])
        # Packs that each segment may wait for, beyond the packs of earlier positions in the window.
        slack = waiting["deadline"] - self.packs_emitted - np.arange(len(waiting))
        packing = _pack_window(lengths, slack, algorithm=self._algorithm, capacity=self._capacity)
        num_packs = len(packing)
        oldest = np.minimum.reduceat(packing.items, packing.offsets[:-1])
        if is_last:
            leaves = np.ones(num_packs, dtype=np.bool_)
        elif self._algorithm == "next_fit":
            leaves = np.arange(num_packs) < max(1, num_packs - 1)
        else:
            # Full packs, the fullest until half of the segments have left, and due packs.
            loads = loads_of(packing, lengths)
            fullest_first = np.lexsort((oldest, -loads))
            num_segments = np.cumsum(packing.sizes[fullest_first])
            num_fullest = int(np.searchsorted(num_segments, -(-len(lengths) // 2))) + 1
            leaves = loads >= self._full_load
            leaves[fullest_first[:num_fullest]] = True
            leaves |= np.logical_or.reduceat(
                (slack < num_packs)[packing.items], packing.offsets[:-1]
            )
        packs = np.flatnonzero(leaves)
        packing = packing.take(packs[np.argsort(oldest[packs])])
        rows = packing.items
        emitted = StreamPacks(
            packing.offsets, waiting["id"][rows], waiting["start"][rows], lengths[rows]
        )
        self.packs_emitted += len(emitted)
        # The other segments move up in the window, in order of arrival.
        others = np.delete(waiting, rows)
        self._num_waiting = len(others)
        self._window[: len(others)] = others
        return emitted


def _pack_window(lengths: Lengths, slack: Int64Array, *, algorithm: str, capacity: int) -> Packing:
    """Pack positions in the window; decreasing algorithms first place the ones that might be
    due.
    """
    rule = ALGORITHMS[algorithm].window_rule
    assert rule is not None
    pack, longest_first = rule
    if not longest_first:
        return pack(lengths, capacity=capacity)
    order = decreasing_order(lengths)
    is_due = slack < next_fit_upper_bound(lengths, capacity=capacity)
    if is_due.any():
        due_rows = is_due[order]
        order = np.concatenate([order[due_rows], order[~due_rows]])
    packing = pack(lengths[order], capacity=capacity)
    return Packing(packing.offsets, order[packing.items])

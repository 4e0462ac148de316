"""Packs of a stream: the planner sees some samples ahead, emits packs, and keeps what would leave one half empty."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from brimful.arguments import CAPACITY_NAMES, understands
from brimful.errors import InvalidLengthsError, OversizedSampleError, SettingsError, StateError
from brimful.measure.table import REJECTED, as_lengths
from brimful.plan.best_fit import best_fit
from brimful.plan.first_fit import first_fit
from brimful.plan.histogram import decreasing_order
from brimful.plan.in_order import most_packs
from brimful.plan.min_fill import least_load
from brimful.plan.next_fit import next_fit
from brimful.plan.overflow import Overflow, apply_overflow
from brimful.plan.packing import Packing
from brimful.plan.stream import StreamLedger, StreamPacks
from brimful.typing import AnyIntArray, BoolArray, Int64Array, Lengths, Offsets, SampleIds

__all__ = ["LOOKAHEAD_ALGORITHMS", "Lookahead"]

_VERSION = 1

_RULES: Mapping[str, tuple[Callable[..., Packing], bool]] = {
    "best_fit_decreasing": (best_fit, True),
    "first_fit_decreasing": (first_fit, True),
    "best_fit": (best_fit, False),
    "first_fit": (first_fit, False),
    "next_fit": (next_fit, False),
}
"""Rule for one item after the other, and whether the longest go first. ``X decreasing`` is ``X`` on sorted items."""
LOOKAHEAD_ALGORITHMS = tuple(_RULES)
"""Names of the algorithms that can plan a stream."""


class Lookahead:
    """Plans packs of a stream from a window of samples, in bounded memory; stopped and resumed, the same packs.

    When ``size`` samples wait, they are packed by the algorithm, as if there were no others, and packs leave in the
    order of their oldest sample. Of the planned packs go

    * those filled to ``min_fill`` or more,
    * the fullest, until half of the samples went, so that a sample is planned about twice and not once for each pack,
    * those with a sample that might otherwise wait too long.

    The samples of the others stay and are packed again among those that come next. ``next_fit`` keeps the order of
    the stream: all packs go but the last, which stays open unless it is the only one.

    Capacity 10, size 4, best fit decreasing, min_fill 1::

        add        waiting          planned         emitted    stays
        7 6 4 2    7 6 4 2          7 2 · 6 4       6 4        7 2       half of the samples went
        5 3        7 2 5 3          7 3 · 5 2       7 3        2 5
        5 8        2 5 5 8          8 2 · 5 5       8 2 · 5 5            both are full

    **No sample waits for more than** ``max_wait`` **packs**: that many, at most, are emitted between its arrival and
    the pack that holds it. The window is in order of arrival, and before each planning the sample at position k of
    the window (from 0) may still wait for k packs or more: true of a sample that just came, because ``max_wait`` is at
    least ``size - 1``, the least that any planner can promise when no two samples share a pack. Packs go in the order
    of their oldest sample, so at most k go before the sample at k. A sample that stays could have P packs before it,
    P being the planned ones: whoever may not wait for k + P more is *due* and goes now; the others may wait for k
    more afterwards, and their positions only fall. The decreasing algorithms place samples first that might be due, so
    that they do not have to leave in half empty packs.

    Under ``split`` that holds for every segment, from the arrival of its sample on, but that segment k of a sample
    (from 0) may need as many as ``size - 1 + k`` packs, if that is more: so many segments can be before it, and no two of
    them may share a pack.

    The result depends on the order of the samples, and not on how they are divided among calls of ``add``.

    Args:
        capacity: most tokens of a pack, from 1 to 2**31 - 1. ``max_length``, ``packing_length`` and ``seq_length`` are
            understood.
        size: samples that may be seen before packs must be emitted: the lookahead.
        max_wait: packs that a sample may wait for, at least ``size - 1``. Several times ``size`` leaves the algorithm
            free; less keeps packs nearer to the order of arrival.
        algorithm: one of ``LOOKAHEAD_ALGORITHMS``.
        min_fill: share of the capacity, from 0 to 1, from which a pack leaves at once. 0 empties the window at each
            planning, and 1 keeps all but the fullest half for another try.
        overflow: what becomes of samples longer than a pack (``Overflow``).

    Cost: a planning of ``size`` samples by the algorithm for each half of it that arrives, and O(size) memory.
    Source: the window with a remainder is what streaming packers do (ms-swift, VeOmni, Energon); keeping whoever is
    not full, with a bound on the wait, is ours.

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
        _check(capacity, size, max_wait, algorithm, min_fill)
        self._overflow = Overflow.named(overflow)
        self._settings: dict[str, Any] = {
            "capacity": int(capacity),
            "size": int(size),
            "max_wait": int(max_wait),
            "algorithm": algorithm,
            "min_fill": float(min_fill),
            "overflow": self._overflow.value,
        }
        self._capacity, self._size, self._max_wait, self._algorithm = int(capacity), int(size), int(max_wait), algorithm
        self._full = least_load(min_fill, capacity)
        self._counts = dict.fromkeys(StreamLedger().as_dict(), 0)
        # The window, in order of arrival.
        self._waiting = 0
        self._ids = np.empty(size, dtype=np.int64)
        self._starts = np.empty(size, dtype=np.int32)
        self._lengths = np.empty(size, dtype=np.int32)
        self._deadlines = np.empty(size, dtype=np.int64)  # number of the last pack, from 0, that may hold the sample

    def add(self, sample_ids: AnyIntArray, lengths: AnyIntArray) -> StreamPacks:
        """Samples that arrive, in order; returns the packs that are emitted for it, often none.

        Args:
            sample_ids: ``int64[num_samples]``, any numbers.
            lengths: ``int32[num_samples]``, tokens; -1 marks a rejected sample, which is counted and left out.

        Raises:
            InvalidLengthsError: a length below 1, no whole numbers, or not one of each; nothing was added.
            OversizedSampleError: a length exceeds the capacity and the policy is ``error``; nothing was added.
        """
        ids = np.asarray(sample_ids)
        if ids.dtype.kind not in "iu" and ids.size:
            raise InvalidLengthsError(f"sample ids must be whole numbers and are {ids.dtype}")
        ids, starts, cut, heads = self._pieces(ids.astype(np.int64, copy=False), as_lengths(lengths))
        arrived = np.empty(len(ids), dtype=np.int64)  # packs emitted when the sample of the piece came
        packs = []
        at = 0
        while at < len(ids):
            taken = min(self._size - self._waiting, len(ids) - at)
            here, there = slice(self._waiting, self._waiting + taken), slice(at, at + taken)
            self._ids[here], self._starts[here], self._lengths[here] = ids[there], starts[there], cut[there]
            emitted = self._counts["packs_emitted"]
            arrived[there] = emitted
            arrived[there] = arrived[heads[there]]
            # As many packs as there are before it in the window may always come first; so late a piece enters that
            # came with a sample of very many.
            ranks = np.arange(self._waiting, self._waiting + taken)
            self._deadlines[here] = np.maximum(arrived[there] + self._max_wait, emitted + ranks)
            self._waiting += taken
            at += taken
            if self._waiting == self._size:
                packs.append(self._plan(last=False))
        return StreamPacks.of_parts(packs)

    def finish(self) -> StreamPacks:
        """The end of the stream: the packs of all that still waits, however full."""
        return self._plan(last=True) if self._waiting else StreamPacks.of_parts([])

    @property
    def ledger(self) -> StreamLedger:
        """Where every sample and token went until now."""
        waiting = {
            "segments_waiting": self._waiting,
            "tokens_waiting": int(self._lengths[: self._waiting].sum(dtype=np.int64)),
        }
        return StreamLedger(**{**self._counts, **waiting})

    def state_dict(self) -> dict[str, Any]:
        """All that the next packs depend on, as plain numbers for JSON: settings, counts, and who waits."""
        window = slice(0, self._waiting)
        deadlines, times = np.unique(self._deadlines[window], return_counts=True)
        return {
            "version": _VERSION,
            **self._settings,
            "counts": dict(self._counts),
            "sample_ids": self._ids[window].tolist(),
            "starts": self._starts[window].tolist() if self._starts[window].any() else None,
            "lengths": self._lengths[window].tolist(),
            "deadlines": [deadlines.tolist(), times.tolist()],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was taken.

        Raises:
            StateError: the state is of other settings, which are named, or contradicts itself.
        """
        own = {"version": _VERSION, **self._settings}
        differing = [key for key in own if state.get(key) != own[key]]
        if differing:
            shown = ", ".join(f"{key} ({state.get(key)!r} in the state, {own[key]!r} here)" for key in differing)
            raise StateError(f"the lookahead state does not fit: {shown}")
        counts, window = _read(state, size=self._size, capacity=self._capacity, max_wait=self._max_wait)
        self._counts = counts
        self._waiting = len(window[0])
        here = slice(0, self._waiting)
        self._ids[here], self._starts[here], self._lengths[here], self._deadlines[here] = window

    def __repr__(self) -> str:
        waiting = f"{self._waiting:,} of {self._size:,} samples waiting"
        return f"Lookahead({self._algorithm}, {waiting}, {self._counts['packs_emitted']:,} packs emitted)"

    def _pieces(self, ids: SampleIds, lengths: Lengths) -> tuple[SampleIds, Lengths, Lengths, Int64Array]:
        """Sample ids, starts and lengths of the pieces that there are to pack, and the number of the first piece of the
        same sample; counts what the policy cost."""
        if ids.shape != lengths.shape:
            raise InvalidLengthsError(f"{len(ids):,} sample ids and {len(lengths):,} lengths: one of each per sample")
        wrong = np.flatnonzero((lengths < 1) & (lengths != REJECTED))
        if len(wrong):
            at = int(wrong[0])
            raise InvalidLengthsError(f"sample {int(ids[at])} has length {int(lengths[at])}; the least is 1 token")
        over = lengths > self._capacity
        if self._overflow is Overflow.ERROR and over.any():
            at = int(np.argmax(over))
            raise OversizedSampleError(
                f"sample {int(ids[at])} has {int(lengths[at]):,} tokens and a pack holds {self._capacity:,}. Choose "
                f"overflow drop, truncate, truncate_left or split, or capacity {int(lengths[at])}"
            )
        counts = self._counts
        tokens_in = int(lengths[lengths > 0].sum(dtype=np.int64))
        oversized, number = int(lengths[over].sum(dtype=np.int64)), int(over.sum())
        counts["samples_in"] += len(ids)
        counts["tokens_in"] += tokens_in
        counts["samples_rejected"] += int((lengths == REJECTED).sum())
        if self._overflow is Overflow.DROP:
            counts["samples_dropped"] += number
            counts["tokens_dropped"] += oversized
        elif self._overflow is Overflow.SPLIT:
            counts["samples_split"] += number
        else:
            counts["samples_truncated"] += number
            counts["tokens_truncated"] += oversized - number * self._capacity
        starts = np.zeros(len(ids), dtype=np.int32)
        heads = np.arange(len(ids))
        if len(ids):
            pieces = apply_overflow(lengths, capacity=self._capacity, policy=self._overflow)
            lengths = pieces.lengths
            starts = pieces.starts if pieces.starts is not None else np.zeros(len(lengths), dtype=np.int32)
            if pieces.sample_ids is not None:
                ids = ids[pieces.sample_ids]
                heads = np.searchsorted(pieces.sample_ids, pieces.sample_ids)
        counts["segments"] += len(ids)
        return ids, starts, lengths, heads

    def _plan(self, *, last: bool) -> StreamPacks:
        """Pack the window, take out the packs that go, and close ranks."""
        count = self._waiting
        lengths = self._lengths[:count]
        wait = self._deadlines[:count] - self._counts["packs_emitted"] - np.arange(count)
        rule, decreasing = _RULES[self._algorithm]
        items, offsets = _pack(lengths, wait, rule=rule, decreasing=decreasing, capacity=self._capacity)
        oldest = np.minimum.reduceat(items, offsets[:-1])
        if last:
            goes = np.ones(len(oldest), dtype=np.bool_)
        elif self._algorithm == "next_fit":
            goes = np.arange(len(oldest)) < max(1, len(oldest) - 1)
        else:
            goes = _choose(lengths, wait, items, offsets, oldest, full=self._full)
        packs = np.flatnonzero(goes)
        packs = packs[np.argsort(oldest[packs])]
        offsets, items = _take(offsets, items, packs)
        emitted = StreamPacks(offsets, self._ids[items], self._starts[items], self._lengths[items])
        self._counts["packs_emitted"] += len(emitted)
        self._counts["segments_emitted"] += len(items)
        self._counts["tokens_emitted"] += int(emitted.lengths.sum(dtype=np.int64))
        stays = np.ones(count, dtype=np.bool_)
        stays[items] = False
        self._waiting = count - len(items)
        for array in (self._ids, self._starts, self._lengths, self._deadlines):
            array[: self._waiting] = array[:count][stays]
        return emitted


def _pack(
    lengths: Lengths, wait: Int64Array, *, rule: Callable[..., Packing], decreasing: bool, capacity: int
) -> tuple[AnyIntArray, Offsets]:
    """Positions in the window, pack by pack, and where each pack begins."""
    if not decreasing:
        packing = rule(lengths, capacity=capacity)
        return packing.items, packing.offsets
    order = decreasing_order(lengths)
    due = wait < most_packs(lengths, capacity=capacity)
    if due.any():
        first = due[order]
        order = np.concatenate([order[first], order[~first]])
    packing = rule(lengths[order], capacity=capacity)
    return order[packing.items], packing.offsets


def _choose(
    lengths: Lengths, wait: Int64Array, items: AnyIntArray, offsets: Offsets, oldest: AnyIntArray, *, full: int
) -> BoolArray:
    """Which packs go: the full ones, the fullest until half of the samples went, and those with a sample that is due."""
    loads = np.add.reduceat(lengths[items], offsets[:-1], dtype=np.int64)
    rank = np.lexsort((oldest, -loads))
    samples = np.cumsum(np.diff(offsets)[rank])
    goes: BoolArray = loads >= full
    goes[rank[: int(np.searchsorted(samples, -(-len(items) // 2))) + 1]] = True
    goes |= np.logical_or.reduceat((wait < len(oldest))[items], offsets[:-1])
    return goes


def _take(offsets: Offsets, items: AnyIntArray, packs: Int64Array) -> tuple[Offsets, AnyIntArray]:
    """Some of the packs, in the order given."""
    sizes = np.diff(offsets)[packs]
    taken = np.zeros(len(packs) + 1, dtype=np.int64)
    np.cumsum(sizes, out=taken[1:])
    return taken, items[np.repeat(offsets[packs] - taken[:-1], sizes) + np.arange(taken[-1])]


def _check(capacity: int, size: int, max_wait: int, algorithm: str, min_fill: float) -> None:
    for name, value, least in (("capacity", capacity, 1), ("size", size, 1), ("max_wait", max_wait, 0)):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
            raise SettingsError(f"{name} must be a whole number and is {value!r}")
        if not least <= value <= 2**31 - 1:
            raise SettingsError(f"{name} must be from {least} to {2**31 - 1:,} and is {value:,}")
    if max_wait < size - 1:
        raise SettingsError(
            f"max_wait is {max_wait:,} packs and {size:,} samples wait, perhaps for a pack each: choose max_wait "
            f"{size - 1:,} or more, or size {max_wait + 1:,}"
        )
    if algorithm not in _RULES:
        raise SettingsError(f"algorithm {algorithm!r} cannot plan a stream: use one of {', '.join(_RULES)}")
    if not 0 <= min_fill <= 1:
        raise SettingsError(f"min_fill must be from 0 to 1 and is {min_fill}")


def _read(
    state: Mapping[str, Any], *, size: int, capacity: int, max_wait: int
) -> tuple[dict[str, int], tuple[Int64Array, Lengths, Lengths, Int64Array]]:
    """Counts and window of a state, held against each other: a state may come from anywhere."""
    try:
        counts = {key: int(state["counts"][key]) for key in StreamLedger().as_dict()}
        ids = np.array(state["sample_ids"], dtype=np.int64)
        lengths = np.array(state["lengths"], dtype=np.int32)
        starts = np.array(state["starts"] or [0] * len(ids), dtype=np.int32)
        deadlines = np.repeat(*(np.array(part, dtype=np.int64) for part in state["deadlines"]))
        StreamLedger(**{**counts, "segments_waiting": len(ids), "tokens_waiting": int(lengths.sum(dtype=np.int64))})
    except (KeyError, TypeError, ValueError, OverflowError, AssertionError) as error:
        raise StateError(f"the lookahead state is damaged: {type(error).__name__} {error}") from error
    emitted = counts["packs_emitted"]
    ranks = np.arange(len(deadlines))
    if not len(ids) == len(lengths) == len(starts) == len(deadlines) < size:
        shown = f"{len(ids)} sample ids, {len(lengths)} lengths, {len(deadlines)} deadlines"
        raise StateError(f"the lookahead state is damaged: {shown}, and less than {size:,} can wait")
    if len(ids) and not (lengths.min() >= 1 and lengths.max() <= capacity and starts.min() >= 0):
        raise StateError(f"the lookahead state is damaged: lengths are not from 1 to {capacity:,}")
    if (np.diff(deadlines) < 0).any() or (deadlines < emitted + ranks).any() or (deadlines > emitted + max_wait).any():
        raise StateError("the lookahead state is damaged: a sample would wait for too long")
    return counts, (ids, starts, lengths, deadlines)

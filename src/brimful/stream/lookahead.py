"""Packs of a stream: the planner looks some samples ahead, emits full packs, and keeps the other
samples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

import numpy as np
import numpy.typing as npt

from brimful.base.arguments import CAPACITY_NAMES, understands
from brimful.base.checks import check_share, choice_of, setting_number, whole_number
from brimful.base.fingerprint import fingerprint_array
from brimful.base.ragged import offsets_of
from brimful.base.sharing import LEAST_SHARED, ShareMode
from brimful.base.typing import (
    AnyIntArray,
    BoolArray,
    Fingerprint,
    Int64Array,
    Lengths,
    SampleIds,
)
from brimful.base.wording import differences, setting
from brimful.errors import InvalidLengthsError, OversizedSampleError, SettingsError, StateError
from brimful.lengths.table import REJECTED
from brimful.lengths.targets import as_lengths
from brimful.plan.algorithms import ALGORITHMS
from brimful.plan.counts.counting_sort import decreasing_order
from brimful.plan.fit.any_fit import next_fit_upper_bound
from brimful.plan.packing import Packing, loads_of, tokens_of
from brimful.plan.policies.overflow import Overflow, apply_overflow, other_policies
from brimful.stream.stream_packs import StreamLedger, StreamPacks
from brimful.stream.tree_window import TreeWindow

LOOKAHEAD_ALGORITHMS = tuple(
    name for name, algorithm in ALGORITHMS.items() if algorithm.window_rule is not None
)
"""Names of the algorithms that can plan a stream."""

_VERSION = 1
"""Version of the state."""

_WAITING = np.dtype(
    [("id", np.int64), ("start", np.int32), ("length", np.int32), ("deadline", np.int64)]
)
"""Fields of a waiting segment; its deadline is the number, from 0, of the last pack that may hold
it.
"""


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

    With ``share="prefixes"`` the window is packed as trees, which ``add`` finds in the ``keys`` of
    the samples. Their promise about waiting is the same.

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
        share: ``prefixes`` packs tokens with which several samples begin once; for decreasing
            algorithms, and policies that keep the beginning of a sample.
        least_shared: shorter prefixes are not shared.

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
        share: ShareMode | str = ShareMode.NONE,
        least_shared: int = LEAST_SHARED,
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
        rule = ALGORITHMS[algorithm].window_rule
        assert rule is not None
        self._pack, self._is_decreasing = rule
        self._overflow = Overflow.named(overflow)
        self._settings: dict[str, Any] = {
            "capacity": self._capacity,
            "size": self._size,
            "max_wait": self._max_wait,
            "algorithm": algorithm,
            "min_fill": check_share("min_fill", min_fill),
            "overflow": self._overflow.value,
        }
        self._keys: list[AnyIntArray] | None = None
        self._least_shared = whole_number(setting("least_shared"), least_shared, minimum=1)
        if choice_of(ShareMode, share, argument="share") is ShareMode.PREFIXES:
            self._refuse_settings_without_trees()
            self._keys = []
            self._settings |= {
                "share": ShareMode.PREFIXES.value,
                "least_shared": self._least_shared,
            }
        self._full_load = ceil(tokens_of(min_fill, self._capacity))
        self._counts = Counter(StreamLedger().as_dict())
        self._window = np.empty(self._size, dtype=_WAITING)  # in order of arrival
        self._num_waiting = 0

    def _refuse_settings_without_trees(self) -> None:
        share = setting("share", ShareMode.PREFIXES.value)
        if not self._is_decreasing:
            names = [name for name in LOOKAHEAD_ALGORITHMS if name.endswith("decreasing")]
            raise SettingsError(
                f"{share} cuts trees before it packs them, and {self._algorithm} keeps the order "
                f"of samples: use {' or '.join(names)}"
            )
        if self._overflow in (Overflow.SPLIT, Overflow.TRUNCATE_LEFT):
            raise SettingsError(
                f"{share} shares beginnings, which {setting('overflow', self._overflow.value)} "
                "cuts off: use error, drop or truncate"
            )

    def add(
        self, sample_ids: AnyIntArray, lengths: AnyIntArray, keys: AnyIntArray | None = None
    ) -> StreamPacks:
        """Add samples in their order and return the packs that are emitted as a result, often none.

        Args:
            sample_ids: ``int64[num_samples]``, any numbers.
            lengths: ``int32[num_samples]``, tokens; -1 marks a rejected sample, which is counted
                and left out.
            keys: ``int[sum of lengths]``: tokens of the samples, one after the other, for trees; two
                tokens with equal keys are equal in everything that a model reads.

        Raises:
            InvalidLengthsError: a length below 1, numbers that are not whole, not one id and length
                per sample, or not one key per token; nothing was added.
            SettingsError: keys without trees, or trees without keys.
            OversizedSampleError: a length exceeds the capacity and the policy is ``error``; nothing
                was added.
        """
        ids = np.asarray(sample_ids)
        if ids.dtype.kind not in "iu" and ids.size:
            raise InvalidLengthsError(f"sample ids must be whole numbers and are {ids.dtype}")
        tokens = as_lengths(lengths)
        rows_of_keys = self._rows_of_keys(tokens, keys)
        segments, sample_rows, first_rows = self._segments(ids.astype(np.int64, copy=False), tokens)
        arrivals = np.empty(
            len(segments), dtype=np.int64
        )  # packs emitted before the sample of the segment arrived
        packs = []
        row = 0
        while row < len(segments):
            # Add segments while the window has room; a full window is planned, and half of it
            # leaves.
            num_before, num_emitted = self._num_waiting, self._counts["packs_emitted"]
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
            if self._keys is not None:
                self._keys += [
                    rows_of_keys[sample][:length].copy()
                    for sample, length in zip(
                        sample_rows[rows].tolist(), segments["length"][rows].tolist(), strict=True
                    )
                ]
            row += count
            if self._num_waiting == self._size:
                packs.append(self._plan(is_last=False))
        return StreamPacks.joined(packs)

    def finish(self) -> StreamPacks:
        """End the stream and return the packs of all waiting samples, however full."""
        return self._plan(is_last=True) if self._num_waiting else StreamPacks.joined([])

    @property
    def _waiting(self) -> npt.NDArray[np.void]:
        return self._window[: self._num_waiting]

    @property
    def ledger(self) -> StreamLedger:
        """Account of every sample and token so far."""
        waiting = {
            "segments_waiting": self._num_waiting,
            "tokens_waiting": int(self._waiting["length"].sum(dtype=np.int64)),
        }
        return StreamLedger(**{**self._counts, **waiting})

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the next packs depend on, as plain numbers for JSON: settings,
        counts and window; of the keys of trees only the fingerprint.
        """
        waiting = self._waiting
        deadlines, times = np.unique(waiting["deadline"], return_counts=True)
        return {
            "version": _VERSION,
            **self._settings,
            "counts": dict(self._counts),
            "sample_ids": waiting["id"].tolist(),
            "starts": waiting["start"].tolist() if waiting["start"].any() else None,
            "lengths": waiting["length"].tolist(),
            "deadlines": [deadlines.tolist(), times.tolist()],
            **({} if self._keys is None else {"keys": _fingerprint_of_keys(self._keys)}),
        }

    def load_state_dict(self, state: Mapping[str, Any], keys: AnyIntArray | None = None) -> None:
        """Continue from a state.

        Args:
            state: from ``state_dict``.
            keys: of trees, the keys of the waiting samples, ``state["sample_ids"]``, one after the
                other, as for ``add``.

        Raises:
            StateError: the state has other settings, which the message names, contradicts itself,
                or has waited with other keys.
            SettingsError: keys without trees, or trees without keys.
        """
        own_state = {"version": _VERSION, **self._settings}
        mismatch = differences(state, own_state, own_state)
        if mismatch:
            raise StateError(f"the lookahead state does not fit: {mismatch}")
        self._counts, waiting = self._read(state)
        if self._keys is not None:
            rows_of_keys = self._rows_of_keys(waiting["length"].astype(np.int32), keys)
            if _fingerprint_of_keys(rows_of_keys) != state.get("keys"):
                raise StateError("the lookahead state does not fit: other samples waited with it")
            self._keys = rows_of_keys
        self._num_waiting = len(waiting["id"])
        for name, column in waiting.items():
            self._window[name][: self._num_waiting] = column

    def _read(self, state: Mapping[str, Any]) -> tuple[Counter[str], dict[str, AnyIntArray]]:
        """Read counts and window from a state, and check that they agree: a state may come from
        anywhere.
        """
        try:
            counts = Counter({key: int(state["counts"][key]) for key in StreamLedger().as_dict()})
            if "tokens_shared" in state["counts"]:
                counts["tokens_shared"] = int(state["counts"]["tokens_shared"])
            ids = np.array(state["sample_ids"], dtype=np.int64)
            lengths = np.array(state["lengths"], dtype=np.int32)
            starts = np.array(state["starts"] or [0] * len(ids), dtype=np.int32)
            deadlines = np.repeat(
                *(np.array(column, dtype=np.int64) for column in state["deadlines"])
            )
            StreamLedger(
                **{
                    **counts,
                    "segments_waiting": len(ids),
                    "tokens_waiting": int(lengths.sum(dtype=np.int64)),
                }
            )
        except (KeyError, TypeError, ValueError, OverflowError, AssertionError) as error:
            raise StateError(
                f"the lookahead state is damaged: {type(error).__name__} {error}"
            ) from error
        emitted = counts["packs_emitted"]
        ranks = np.arange(len(deadlines))
        if not len(ids) == len(lengths) == len(starts) == len(deadlines) < self._size:
            shown = f"{len(ids)} sample ids, {len(lengths)} lengths, {len(deadlines)} deadlines"
            raise StateError(
                f"the lookahead state is damaged: {shown}, and fewer than {self._size:,} can wait"
            )
        if len(ids) and not (
            lengths.min() >= 1 and lengths.max() <= self._capacity and starts.min() >= 0
        ):
            raise StateError(
                f"the lookahead state is damaged: lengths are not from 1 to {self._capacity:,}"
            )
        if (
            (np.diff(deadlines) < 0).any()
            or (deadlines < emitted + ranks).any()
            or (deadlines > emitted + self._max_wait).any()
        ):
            raise StateError("the lookahead state is damaged: a sample would wait too long")
        return counts, {"id": ids, "start": starts, "length": lengths, "deadline": deadlines}

    def __repr__(self) -> str:
        waiting = f"{self._num_waiting:,} of {self._size:,} samples waiting"
        return f"Lookahead({self._algorithm}, {waiting}, {self._counts['packs_emitted']:,} packs emitted)"

    def _rows_of_keys(self, lengths: Lengths, keys: AnyIntArray | None) -> list[AnyIntArray]:
        """Return the keys of each sample; none without trees."""
        if (keys is None) != (self._keys is None):
            raise SettingsError(
                f"{setting('share', ShareMode.PREFIXES.value)} reads the keys of samples, and nothing "
                "else does: give both or neither"
            )
        if keys is None:
            return []
        offsets = offsets_of(np.maximum(lengths, 0))
        if len(keys) != int(offsets[-1]):
            raise InvalidLengthsError(
                f"{len(keys):,} keys were given for {int(offsets[-1]):,} tokens: one for each token"
            )
        return np.split(np.asarray(keys), offsets[1:-1])[: len(lengths)]

    def _segments(
        self, ids: SampleIds, lengths: Lengths
    ) -> tuple[npt.NDArray[np.void], Int64Array, Int64Array]:
        """Apply the overflow policy and count its cost.

        Returns:
            The segments, without deadlines; for each segment the row of its sample; and the row of
            its sample's first segment.
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
                f"{self._capacity:,}. Choose {other_policies(self._keys is not None)}, or "
                f"{setting('capacity', int(lengths[row]))}"
            )
        segments = apply_overflow(lengths, capacity=self._capacity, policy=self._overflow)
        rows = segments.ids()
        num_rejected = int(np.count_nonzero(lengths == REJECTED))
        oversized_tokens, num_oversized = (
            int(lengths[oversized].sum(dtype=np.int64)),
            int(np.count_nonzero(oversized)),
        )
        cut_tokens = oversized_tokens - num_oversized * self._capacity
        truncated = {"samples_truncated": num_oversized, "tokens_truncated": cut_tokens}
        costs = {
            Overflow.ERROR: {},
            Overflow.DROP: {"samples_dropped": num_oversized, "tokens_dropped": oversized_tokens},
            Overflow.TRUNCATE: truncated,
            Overflow.TRUNCATE_LEFT: truncated,
            Overflow.SPLIT: {"samples_split": num_oversized},
        }
        arrived = {
            "samples_in": len(ids),
            "tokens_in": int(lengths.sum(dtype=np.int64)) - REJECTED * num_rejected,
            "samples_rejected": num_rejected,
            "segments": len(rows),
        }
        self._counts.update(arrived | costs[self._overflow])
        waiting = np.zeros(len(rows), dtype=_WAITING)
        waiting["id"], waiting["length"] = ids[rows], segments.lengths
        if segments.starts is not None:
            waiting["start"] = segments.starts
        firsts = rows if segments.sample_ids is None else np.searchsorted(rows, rows)
        return waiting, rows, firsts

    def _plan(self, *, is_last: bool) -> StreamPacks:
        """Pack the window, remove the packs that leave, and close the gaps."""
        waiting = self._waiting
        lengths = np.ascontiguousarray(waiting["length"])
        # Packs that each segment may wait for, beyond the packs of earlier positions in the window.
        slack = waiting["deadline"] - self._counts["packs_emitted"] - np.arange(len(waiting))
        trees = None
        if self._keys is None:
            packing = self._packed(lengths, slack)
        else:
            trees = TreeWindow(self._keys, least=self._least_shared)
            packing = trees.pack(self._capacity, self._pack_unshared)
        num_packs = len(packing)
        oldest = np.minimum.reduceat(packing.items, packing.offsets[:-1])
        if is_last:
            leaves = np.ones(num_packs, dtype=np.bool_)
        elif self._algorithm == "next_fit":
            leaves = np.arange(num_packs) < max(1, num_packs - 1)
        else:
            loads = loads_of(packing, lengths) if trees is None else trees.loads(packing)
            leaves = self._leaving(loads, slack, packing, oldest)
        packs = np.flatnonzero(leaves)
        packing = packing.take(packs[np.argsort(oldest[packs])])
        rows = packing.items
        if trees is None:
            emitted = StreamPacks(
                packing.offsets, waiting["id"][rows], waiting["start"][rows], lengths[rows]
            )
        else:
            segments = trees.segments(packing)
            ids = waiting["id"][trees.order[segments.leaves]]
            emitted = StreamPacks(
                segments.offsets, ids, segments.starts, segments.lengths, segments.parents
            )
        num_tokens = int(emitted.lengths.sum(dtype=np.int64))
        self._counts.update(
            packs_emitted=len(emitted), segments_emitted=len(rows), tokens_emitted=num_tokens
        )
        if self._keys is not None:
            num_shared = int(lengths[rows].sum(dtype=np.int64)) - num_tokens
            self._counts.update(tokens_shared=num_shared)
            is_left = np.ones(len(lengths), dtype=np.bool_)
            is_left[rows] = False
            self._keys = [self._keys[row] for row in np.flatnonzero(is_left).tolist()]
        # The other segments move up in the window, in order of arrival.
        others = np.delete(waiting, rows)
        self._num_waiting = len(others)
        self._window[: len(others)] = others
        return emitted

    def _pack_unshared(self, lengths: Lengths) -> Packing:
        """Pack items that share nothing."""
        slack = np.full(len(lengths), self._max_wait + len(lengths), dtype=np.int64)
        return self._packed(lengths, slack)

    def _packed(self, lengths: Lengths, slack: Int64Array) -> Packing:
        """Pack positions in the window; decreasing algorithms first place the ones that might be
        due.
        """
        if not self._is_decreasing:
            return self._pack(lengths, capacity=self._capacity)
        order = decreasing_order(lengths)
        is_due = slack < next_fit_upper_bound(lengths, capacity=self._capacity)
        if is_due.any():
            due_rows = is_due[order]
            order = np.concatenate([order[due_rows], order[~due_rows]])
        packing = self._pack(lengths[order], capacity=self._capacity)
        return Packing(packing.offsets, order[packing.items])

    def _leaving(
        self, loads: Int64Array, slack: Int64Array, packing: Packing, oldest: AnyIntArray
    ) -> BoolArray:
        """Choose the packs that leave: full packs, the fullest until half of the segments have
        left, and due packs.
        """
        fullest_first = np.lexsort((oldest, -loads))
        num_segments = np.cumsum(packing.sizes[fullest_first])
        leaves: BoolArray = loads >= self._full_load
        leaves[fullest_first[: int(np.searchsorted(num_segments, -(-len(slack) // 2))) + 1]] = True
        leaves |= np.logical_or.reduceat(
            (slack < len(packing))[packing.items], packing.offsets[:-1]
        )
        return leaves


def _fingerprint_of_keys(keys: Sequence[AnyIntArray]) -> Fingerprint:
    """Return the fingerprint of the keys of waiting samples, whatever their type."""
    return fingerprint_array(np.concatenate([np.empty(0, dtype=np.int64), *keys]).astype(np.int64))

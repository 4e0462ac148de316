"""Samples longer than a pack, and samples that teach nothing since none of their tokens is a
target: cut or left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

from brimful.base.checks import choice_of
from brimful.base.fingerprint import fingerprint_array, fingerprint_of
from brimful.base.ragged import ranges
from brimful.base.typing import AnyIntArray, Fingerprint, Int64Array, Lengths
from brimful.base.wording import first_few, setting
from brimful.errors import NoTargetError, OversizedSampleError
from brimful.lengths.table import LengthTable

NO_SAMPLES = np.empty(0, dtype=np.int64)
"""An empty array of sample ids."""


class Overflow(str, Enum):
    """Policy for a sample whose length exceeds the capacity. No default loses tokens silently."""

    ERROR = "error"
    """Raise an error that names the samples. The default."""
    DROP = "drop"
    """Leave the sample out, counted with its tokens."""
    TRUNCATE = "truncate"
    """Keep the first ``capacity`` tokens."""
    TRUNCATE_LEFT = "truncate_left"
    """Keep the last ``capacity`` tokens."""
    SPLIT = "split"
    """Cut into segments of ``capacity`` tokens and a remainder; every token is kept. For documents,
    not for chats.
    """

    @classmethod
    def named(cls, name: Overflow | str) -> Overflow:
        """Return the policy with this name.

        Raises:
            SettingsError: no such policy.
        """
        return choice_of(cls, name, argument="overflow")


@dataclass(frozen=True)
class Segments:
    """Segments to pack, and samples that the policy left out.

    Attributes:
        lengths: ``int32[num_segments]``, each in [1, capacity].
        sample_ids: ``int64[num_segments]``, ascending; None if segment ``i`` is sample ``i``.
        starts: ``int32[num_segments]``, first token of the sample in each segment; None if all
            begin at 0.
        dropped_ids: ``int64``, samples left out, ascending.
    """

    lengths: Lengths
    sample_ids: Int64Array | None
    starts: Lengths | None
    dropped_ids: Int64Array

    def ids(self) -> Int64Array:
        """``int64[num_segments]``: the sample of each segment."""
        return np.arange(len(self.lengths)) if self.sample_ids is None else self.sample_ids


def apply_overflow(
    lengths: Lengths,
    *,
    capacity: int,
    policy: Overflow,
    unit: int = 1,
    limit: str = "capacity",
    shares: bool = False,
) -> Segments:
    """Turn samples into segments of at most ``capacity``. Samples of negative length (rejected) are
    left out.

    Args:
        lengths: lengths of the samples.
        capacity: maximum tokens of a segment.
        policy: policy for longer samples.
        unit: capacities are multiples of this number; for the advice in the error.
        limit: name of the setting that limits segments; for the advice in the error.
        shares: samples share what they begin with; for the advice in the error.

    Pure: no I/O.

    >>> segments = apply_overflow(np.array([3, 10], np.int32), capacity=4, policy=Overflow.SPLIT)
    >>> segments.sample_ids.tolist(), segments.starts.tolist(), segments.lengths.tolist()
    ([0, 1, 1, 1], [0, 0, 4, 8], [3, 4, 4, 2])

    Raises:
        OversizedSampleError: the policy is ``error`` and a length exceeds the capacity; names the
            first ten.
    """
    oversized = lengths > capacity
    oversized_ids = np.flatnonzero(oversized)
    if policy is Overflow.ERROR and len(oversized_ids):
        longest = -(-int(lengths[oversized_ids].max()) // unit) * unit
        raise OversizedSampleError(
            f"{_oversized(lengths, oversized_ids, capacity, unit, limit)}. Choose "
            f"{other_policies(shares)}, or {setting(limit, longest)}"
        )
    if policy in (Overflow.ERROR, Overflow.DROP):
        ids = np.flatnonzero((lengths > 0) & ~oversized)
        return Segments(lengths[ids], ids, None, oversized_ids)
    ids = np.flatnonzero(lengths > 0)
    sample_lengths = lengths[ids]
    if policy is Overflow.SPLIT:
        num_segments = -(-sample_lengths.astype(np.int64) // capacity)
        starts = (
            ranges(np.zeros(len(num_segments), dtype=np.int64), num_segments) * capacity
        ).astype(np.int32)
        segment_lengths = np.minimum(
            np.repeat(sample_lengths, num_segments) - starts, capacity
        ).astype(np.int32)
        return Segments(segment_lengths, np.repeat(ids, num_segments), starts, NO_SAMPLES)
    segment_lengths = np.minimum(sample_lengths, np.int32(capacity))
    left_starts = (
        (sample_lengths - segment_lengths).astype(np.int32)
        if policy is Overflow.TRUNCATE_LEFT
        else None
    )
    return Segments(
        segment_lengths, ids if len(ids) < len(lengths) else None, left_starts, NO_SAMPLES
    )


def other_policies(shares: bool) -> str:
    """Return the policies that a plan may choose instead of ``error``, for messages."""
    drop = setting("overflow", Overflow.DROP.value)
    if shares:
        return f"{drop} or truncate"
    return f"{drop}, truncate, truncate_left or split"


def _oversized(
    lengths: AnyIntArray, oversized_ids: AnyIntArray, capacity: int, unit: int, limit: str
) -> str:
    examples = (f"{sample_id} ({int(lengths[sample_id]):,})" for sample_id in oversized_ids)
    usable = "" if unit == 1 else f", in multiples of {unit:,}"
    return (
        f"{len(oversized_ids):,} of {len(lengths):,} samples are longer than the "
        f"{limit.replace('_', ' ')} of {capacity:,} tokens{usable}: sample "
        f"{first_few(examples, len(oversized_ids))}"
    )


def cut_stream(lengths: Lengths, *, capacity: int, policy: Overflow) -> Segments:
    """Cut the stream of all tokens every ``capacity`` tokens.

    Args:
        lengths: ``int[num_samples]``; samples of negative length (rejected) are left out.
        capacity: tokens of a pack, from 1 to 2**31 - 1.
        policy: first applied to longer samples; ``split`` keeps every token of every sample.

    Returns:
        Segments in the order of the stream, each within one pack.

    >>> segments = cut_stream(np.array([5, 2, 1, 6]), capacity=4, policy=Overflow.SPLIT)
    >>> segments.sample_ids.tolist(), segments.starts.tolist(), segments.lengths.tolist()
    ([0, 0, 1, 2, 3, 3], [0, 4, 0, 0, 0, 4], [4, 1, 2, 1, 4, 2])
    """
    if policy is Overflow.SPLIT:
        ids = np.flatnonzero(lengths > 0)
        samples = Segments(lengths[ids], ids, None, NO_SAMPLES)
    else:
        samples = apply_overflow(lengths, capacity=capacity, policy=policy)
    stream_ends = np.cumsum(samples.lengths, dtype=np.int64)
    stream_starts = stream_ends - samples.lengths
    first_pack = stream_starts // capacity
    packs = (stream_ends - 1) // capacity - first_pack + 1
    # A sample has one segment in each pack that it reaches into.
    pack = ranges(first_pack, packs)
    stream_start, stream_end = np.repeat(stream_starts, packs), np.repeat(stream_ends, packs)
    starts = np.maximum(pack * capacity - stream_start, 0)
    stops = np.minimum((pack + 1) * capacity, stream_end) - stream_start
    sample_starts = 0 if samples.starts is None else np.repeat(samples.starts, packs)
    return Segments(
        lengths=(stops - starts).astype(np.int32),
        sample_ids=np.repeat(samples.ids(), packs),
        starts=(starts + sample_starts).astype(np.int32),
        dropped_ids=samples.dropped_ids,
    )


@dataclass(frozen=True)
class Truncated:
    """Samples that ``truncate`` cut.

    Attributes:
        sample_ids: ``int64``, ascending.
        lengths: ``int32``, tokens of each sample before it was cut.
        saved_as: fingerprint in the plan's file, if it was opened from one.
    """

    sample_ids: Int64Array
    lengths: Lengths
    saved_as: Fingerprint | None = None

    @classmethod
    def none(cls) -> Truncated:
        """Return an account without samples."""
        return cls(NO_SAMPLES, np.empty(0, dtype=np.int32))

    def __len__(self) -> int:
        return len(self.sample_ids)

    @property
    def fingerprint(self) -> Fingerprint:
        """Fingerprint of samples and lengths."""
        return fingerprint_of([fingerprint_array(self.sample_ids), fingerprint_array(self.lengths)])

    @property
    def is_intact(self) -> bool:
        """True if samples and lengths are as they were saved."""
        return self.saved_as is None or self.fingerprint == self.saved_as

    def lengths_of(self, sample_ids: AnyIntArray, *, otherwise: Lengths) -> Lengths:
        """Return the full lengths of samples, ``int32``; samples that were not cut have the lengths
        in ``otherwise``.

        >>> cut = Truncated(np.array([2, 5]), np.array([90, 70], dtype=np.int32))
        >>> cut.lengths_of(np.array([5, 1, 2]), otherwise=np.array([8, 3, 8], dtype=np.int32)).tolist()
        [70, 3, 90]
        """
        if not len(self):
            return otherwise
        row = np.minimum(np.searchsorted(self.sample_ids, sample_ids), len(self) - 1)
        return np.where(self.sample_ids[row] == sample_ids, self.lengths[row], otherwise)


class NoTarget(str, Enum):
    """Policy for samples without a target, whether they never had one or lost it to truncation.

    They cost as much as other samples and teach nothing; often they are the first sign that a data
    set was misread. So the default is an error.
    """

    ERROR = "error"
    """Raise an error that names the samples. The default."""
    DROP = "drop"
    """Leave them out, counted with their tokens."""
    KEEP = "keep"
    """Pack them."""


def samples_to_leave_out(
    table: LengthTable,
    *,
    capacity: int | Int64Array,
    overflow: Overflow,
    policy: NoTarget,
    groups: Int64Array | None,
) -> Int64Array:
    """Return the samples that are left out for lack of a target.

    Pure: no I/O.

    Args:
        table: lengths with their targets.
        capacity: maximum tokens of a segment; an array with one value per sample if they differ.
        overflow: policy for longer samples; truncation may remove all targets of a sample.
        groups: ``int64[num_samples]``: a group stays whole as long as one of its samples has a
            target.

    Returns:
        ``int64``, ascending.

    Raises:
        NoTargetError: some samples have no target and the policy is ``error``, or all samples have
            none.
    """
    targets, tokens = table.targets, table.tokens
    assert targets is not None
    targetless, truncated = np.flatnonzero((targets.counts == 0) & (tokens > 0)), NO_SAMPLES
    if overflow in (Overflow.TRUNCATE, Overflow.TRUNCATE_LEFT):
        longer = np.flatnonzero((tokens > capacity) & (targets.counts > 0))
        limits = np.broadcast_to(np.asarray(capacity, dtype=np.int64), tokens.shape)[longer]
        starts = (
            tokens[longer] - limits if overflow is Overflow.TRUNCATE_LEFT else np.zeros_like(limits)
        )
        truncated = longer[targets.within(longer, starts, limits) == 0]
    # Usually both are empty; NumPy imports its masked arrays for a union, which takes longer than a
    # small plan.
    ids = np.union1d(targetless, truncated) if len(targetless) or len(truncated) else NO_SAMPLES
    reasons = _reasons(table, len(targetless), len(truncated)) if len(ids) else ""
    if len(ids) and len(ids) == int(np.count_nonzero(table.tokens > 0)):
        raise NoTargetError(
            f"none of {len(ids):,} samples has a target of the loss{reasons}: their packs would "
            "teach nothing",
            sample_id=int(ids[0]),
        )
    if groups is not None and len(ids):
        has_target = table.tokens > 0
        has_target[ids] = False
        ids = ids[(groups[ids] < 0) | ~np.isin(groups[ids], groups[has_target])]
    if policy is NoTarget.ERROR and len(ids):
        raise NoTargetError(
            f"{len(ids):,} of {len(table):,} samples have no target of the loss{reasons}: sample "
            f"{first_few(ids, len(ids))}. Choose {setting('no_target', 'drop')} to leave them out, "
            f"or {setting('no_target', 'keep')}",
            sample_id=int(ids[0]),
            sample_ids=ids,
        )
    return ids if policy is NoTarget.DROP else NO_SAMPLES


def _reasons(table: LengthTable, num_targetless: int, num_truncated: int) -> str:
    """Write
    ``(194: it has no turn of the assistant; 367: truncation to the capacity takes them)``.
    """
    reasons: list[str] = []
    if num_targetless:
        reasons += [
            f"{count:,}: {reason}" for reason, count in table.account.no_target.most_common()
        ]
    if num_truncated:
        reasons.append(f"{num_truncated:,}: truncation to the capacity takes all of them")
    return f" ({'; '.join(reasons)})" if reasons else ""

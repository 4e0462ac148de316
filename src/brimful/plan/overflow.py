"""What becomes of samples longer than a pack."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

from brimful.checks import choice_of
from brimful.errors import OversizedSampleError
from brimful.messages import setting
from brimful.typing import AnyIntArray, Int64Array, Lengths

__all__ = ["Overflow", "Pieces", "apply_overflow"]

_EXAMPLES = 10


class Overflow(str, Enum):
    """The policy for a sample whose length exceeds the capacity. There is no silent default."""

    ERROR = "error"
    """Stop, naming the samples. The default."""
    DROP = "drop"
    """Leave the sample out, counted with its tokens."""
    TRUNCATE = "truncate"
    """Keep the first ``capacity`` tokens."""
    TRUNCATE_LEFT = "truncate_left"
    """Keep the last ``capacity`` tokens."""
    SPLIT = "split"
    """Cut into segments of ``capacity`` tokens and a rest; every token is kept. For documents, not for chats."""

    @classmethod
    def named(cls, name: Overflow | str) -> Overflow:
        """The member of that name.

        Raises:
            SettingsError: no such policy.
        """
        return choice_of(cls, name, argument="overflow")


@dataclass(frozen=True)
class Pieces:
    """What there is to pack once the policy was applied.

    Attributes:
        lengths: ``int32[num_pieces]``, each in [1, capacity].
        sample_ids: ``int64[num_pieces]``, ascending; None if piece ``i`` is sample ``i``.
        starts: ``int32[num_pieces]``, where each piece begins in its sample; None if all begin at 0.
        dropped: ``int64``, samples left out.
    """

    lengths: Lengths
    sample_ids: Int64Array | None
    starts: Lengths | None
    dropped: Int64Array


_NOBODY = np.empty(0, dtype=np.int64)


def apply_overflow(lengths: Lengths, *, capacity: int, policy: Overflow, unit: int = 1) -> Pieces:
    """Turn samples into pieces of at most ``capacity``. Samples of negative length (rejected) are left out.

    Args:
        lengths: of the samples.
        capacity: most that a piece may have.
        policy: for those that have more.
        unit: what capacities are a multiple of, for the advice in the error.

    Pure: no I/O.

    >>> pieces = apply_overflow(np.array([3, 10], np.int32), capacity=4, policy=Overflow.SPLIT)
    >>> pieces.sample_ids.tolist(), pieces.starts.tolist(), pieces.lengths.tolist()
    ([0, 1, 1, 1], [0, 0, 4, 8], [3, 4, 4, 2])

    Raises:
        OversizedSampleError: the policy is ``error`` and a length exceeds the capacity; names the first ten.
    """
    rejected = int(lengths.min()) < 0
    if not rejected and int(lengths.max()) <= capacity:
        return Pieces(lengths, None, None, _NOBODY)
    over = lengths > capacity
    oversized = np.flatnonzero(over)
    if policy is Overflow.ERROR and len(oversized):
        raise OversizedSampleError(_complaint(lengths, oversized, capacity, unit))
    keep = lengths > 0 if rejected else np.ones(len(lengths), dtype=bool)
    if policy in (Overflow.ERROR, Overflow.DROP):
        ids = np.flatnonzero(keep & ~over)
        return Pieces(lengths[ids], ids, None, oversized)
    ids = np.flatnonzero(keep)
    whole = lengths[ids]
    if policy is Overflow.SPLIT:
        parts = -(-whole.astype(np.int64) // capacity)
        number = np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts)
        begin = (number * capacity).astype(np.int32)
        cut = np.minimum(np.repeat(whole, parts) - begin, capacity).astype(np.int32)
        return Pieces(cut, np.repeat(ids, parts), begin, _NOBODY)
    cut = np.minimum(whole, np.int32(capacity))
    starts = (whole - cut).astype(np.int32) if policy is Overflow.TRUNCATE_LEFT else None
    return Pieces(cut, ids if rejected else None, starts, _NOBODY)


def _complaint(lengths: AnyIntArray, oversized: AnyIntArray, capacity: int, unit: int) -> str:
    shown = ", ".join(f"{sample_id} ({int(lengths[sample_id]):,})" for sample_id in oversized[:_EXAMPLES].tolist())
    more = f" and {len(oversized) - _EXAMPLES:,} more" if len(oversized) > _EXAMPLES else ""
    longest = -(-int(lengths[oversized].max()) // unit) * unit
    usable = "" if unit == 1 else f", in multiples of {unit:,}"
    return (
        f"{len(oversized):,} of {len(lengths):,} samples are longer than the capacity of {capacity:,} tokens{usable}: sample "
        f"{shown}{more}. Choose {setting('overflow', 'drop')}, truncate, "
        f"truncate_left or split, or {setting('capacity', longest)}"
    )

"""Samples that teach nothing: none of their tokens is a target of the loss."""

from enum import Enum

import numpy as np

from brimful.base.typing import Int64Array
from brimful.base.wording import first_few, setting
from brimful.errors import NoTargetError
from brimful.lengths.table import LengthTable
from brimful.plan.policies.overflow import NO_SAMPLES, Overflow


class NoTarget(str, Enum):
    """Policy for samples without a target, whether they never had one or lost it to truncation.

    They cost as much as other samples and teach nothing; often they are the first sign that a data set was misread.
    So the default is an error.
    """

    ERROR = "error"
    """Raise an error that names the samples. The default."""
    DROP = "drop"
    """Leave them out, counted with their tokens."""
    KEEP = "keep"
    """Pack them."""


def samples_to_leave_out(
    table: LengthTable, *, capacity: int | Int64Array, overflow: Overflow, policy: NoTarget, groups: Int64Array | None
) -> Int64Array:
    """Return the samples that are left out for lack of a target.

    Pure: no I/O.

    Args:
        table: lengths with their targets.
        capacity: maximum tokens of a segment; an array with one value per sample if they differ.
        overflow: policy for longer samples; truncation may remove all targets of a sample.
        groups: ``int64[num_samples]``: a group stays whole as long as one of its samples has a target.

    Returns:
        ``int64``, ascending.

    Raises:
        NoTargetError: some samples have no target and the policy is ``error``, or all samples have none.
    """
    targetless, truncated = samples_without_target(table, capacity=capacity, overflow=overflow)
    # Usually both are empty; NumPy imports its masked arrays for a union, which takes longer than a small plan.
    ids = np.union1d(targetless, truncated) if len(targetless) or len(truncated) else NO_SAMPLES
    reasons = _reasons(table, len(targetless), len(truncated)) if len(ids) else ""
    if len(ids) and len(ids) == int(np.count_nonzero(table.tokens > 0)):
        raise NoTargetError(
            f"none of {len(ids):,} samples has a target of the loss{reasons}: their packs would teach nothing",
            sample_id=int(ids[0]),
        )
    if groups is not None and len(ids):
        has_target = table.tokens > 0
        has_target[ids] = False
        ids = ids[(groups[ids] < 0) | ~np.isin(groups[ids], groups[has_target])]
    if policy is NoTarget.ERROR and len(ids):
        raise NoTargetError(
            f"{len(ids):,} of {len(table):,} samples have no target of the loss{reasons}: "
            f"sample {first_few(ids, len(ids))}. Choose {setting('no_target', 'drop')} to leave them out, or "
            f"{setting('no_target', 'keep')}",
            sample_id=int(ids[0]),
            sample_ids=ids,
        )
    return ids if policy is NoTarget.DROP else NO_SAMPLES


def samples_without_target(
    table: LengthTable, *, capacity: int | Int64Array, overflow: Overflow
) -> tuple[Int64Array, Int64Array]:
    """Return the samples without a target, and the samples that lose all targets to truncation; both ascending."""
    targets, tokens = table.targets, table.tokens
    assert targets is not None
    targetless = np.flatnonzero((targets.counts == 0) & (tokens > 0))
    if overflow not in (Overflow.TRUNCATE, Overflow.TRUNCATE_LEFT):
        return targetless, NO_SAMPLES
    longer = np.flatnonzero((tokens > capacity) & (targets.counts > 0))
    limits = np.broadcast_to(np.asarray(capacity, dtype=np.int64), tokens.shape)[longer]
    starts = tokens[longer] - limits if overflow is Overflow.TRUNCATE_LEFT else np.zeros(len(longer), dtype=np.int64)
    remaining = targets.within(longer, starts, limits)
    return targetless, longer[remaining == 0]


def _reasons(table: LengthTable, num_targetless: int, num_truncated: int) -> str:
    """Write ``(194: it has no turn of the assistant; 367: truncation to the capacity takes them)``."""
    reasons: list[str] = []
    if num_targetless:
        reasons += [f"{count:,}: {reason}" for reason, count in table.account.no_target.most_common()]
    if num_truncated:
        reasons.append(f"{num_truncated:,}: truncation to the capacity takes all of them")
    return f" ({'; '.join(reasons)})" if reasons else ""

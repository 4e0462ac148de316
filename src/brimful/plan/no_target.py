"""What becomes of samples that teach nothing: those of which no token is a target of the loss."""

from __future__ import annotations

from enum import Enum

import numpy as np

from brimful.checks import choice_of
from brimful.errors import NoTargetError
from brimful.measure.table import LengthTable
from brimful.messages import setting
from brimful.plan.overflow import Overflow
from brimful.typing import Int64Array

__all__ = ["NoTarget", "samples_without_target", "without_target"]

_EXAMPLES = 10


class NoTarget(str, Enum):
    """The policy for samples without a target: none of their own, or none left after truncation.

    They cost what other samples cost and teach nothing; often they are the first sign that a data set was read wrongly.
    So the default is to stop and say so.
    """

    ERROR = "error"
    """Stop, naming the samples. The default."""
    DROP = "drop"
    """Leave them out, counted with their tokens."""
    KEEP = "keep"
    """Pack them."""

    @classmethod
    def named(cls, name: NoTarget | str) -> NoTarget:
        """The member of that name.

        Raises:
            SettingsError: no such policy.
        """
        return choice_of(cls, name, argument="no_target")


def without_target(
    table: LengthTable, *, capacity: int, overflow: Overflow, policy: NoTarget, groups: Int64Array | None
) -> Int64Array:
    """Samples that are to be left out for want of a target.

    Pure: no I/O.

    Args:
        table: lengths with their targets; without them nothing is known, and nothing is left out.
        capacity: most tokens of a segment.
        overflow: what becomes of longer samples; truncation may take all targets of one.
        groups: ``int64[num_samples]``: a group stays whole as long as one of its samples has a target.

    Returns:
        ``int64``, ascending.

    Raises:
        NoTargetError: there are some and the policy is ``error``, or every sample is one of them.
    """
    if table.targets is None:
        return _NOBODY
    own, cut = samples_without_target(table, capacity=capacity, overflow=overflow)
    found = np.union1d(own, cut)
    if len(found) and len(found) == int(np.count_nonzero(table.tokens > 0)):
        raise NoTargetError(
            f"none of {len(found):,} samples has a target of the loss{_reasons(table, len(own), len(cut))}: packs of "
            f"them would teach nothing",
            sample_id=int(found[0]),
        )
    if groups is not None and len(found):
        taught = np.unique(groups[(table.tokens > 0) & ~_marked(found, len(table))])
        found = found[(groups[found] < 0) | ~np.isin(groups[found], taught)]
    if policy is NoTarget.ERROR and len(found):
        shown = ", ".join(str(sample_id) for sample_id in found[:_EXAMPLES].tolist())
        more = f" and {len(found) - _EXAMPLES:,} more" if len(found) > _EXAMPLES else ""
        raise NoTargetError(
            f"{len(found):,} of {len(table):,} samples have no target of the loss{_reasons(table, len(own), len(cut))}: "
            f"sample {shown}{more}. Choose {setting('no_target', 'drop')} to leave them out, or "
            f"{setting('no_target', 'keep')}",
            sample_id=int(found[0]),
        )
    return found if policy is NoTarget.DROP else _NOBODY


def samples_without_target(table: LengthTable, *, capacity: int, overflow: Overflow) -> tuple[Int64Array, Int64Array]:
    """Samples that have no target of their own, and those that lose all of them to truncation; ascending."""
    targets, tokens = table.targets, table.tokens
    assert targets is not None
    own = np.flatnonzero((targets.counts == 0) & (tokens > 0))
    if overflow not in (Overflow.TRUNCATE, Overflow.TRUNCATE_LEFT):
        return own, _NOBODY
    longer = np.flatnonzero((tokens > capacity) & (targets.counts > 0))
    starts = tokens[longer] - capacity if overflow is Overflow.TRUNCATE_LEFT else np.zeros(len(longer), dtype=np.int64)
    left = targets.within(longer, starts, np.full(len(longer), capacity, dtype=np.int64))
    return own, longer[left == 0]


def _reasons(table: LengthTable, own: int, cut: int) -> str:
    """``(194: it has no turn of the assistant; 367: truncation to the capacity takes them)``."""
    reasons = [f"{count:,}: {reason}" for reason, count in table.account.no_target.most_common()] if own else []
    if cut:
        reasons.append(f"{cut:,}: truncation to the capacity takes all of them")
    return f" ({'; '.join(reasons)})" if reasons else ""


def _marked(ids: Int64Array, size: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    marked = np.zeros(size, dtype=np.bool_)
    marked[ids] = True
    return marked


_NOBODY = np.empty(0, dtype=np.int64)

"""Atomic groups: samples that share one pack or are in none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from brimful.errors import InvalidLengthsError, OversizedSampleError, SettingsError
from brimful.messages import setting
from brimful.plan.budgets import Budgets
from brimful.plan.overflow import Overflow
from brimful.plan.packing import Packing
from brimful.typing import AnyIntArray, BoolArray, Int64Array, Offsets

__all__ = ["ALONE", "Groups", "as_groups", "group_items"]

ALONE = -1
"""Group of a sample that belongs to none."""

_EXAMPLES = 10


@dataclass(frozen=True)
class Groups:
    """Groups as the items that are packed, and who is in them.

    Attributes:
        sizes: ``int64[num_groups, num_budgets]``: what all samples of a group take together.
        offsets: ``int64[num_groups + 1]``; group ``i`` is ``members[offsets[i]:offsets[i + 1]]``.
        members: ``int64[num_items]``: rows of the sizes that were grouped, ascending within a group. Groups come in
            order of their first member; a sample that is alone is a group of one.
        names: ``int64[num_groups]``: ids as they were given, ``ALONE`` for those of one that had none.
    """

    sizes: Int64Array
    offsets: Offsets
    members: Int64Array
    names: Int64Array

    def __len__(self) -> int:
        return len(self.names)

    def expand(self, packing: Packing) -> Packing:
        """Packs of groups as packs of samples: members of a group side by side, in order of their ids.

        >>> groups = group_items(np.array([[4], [1], [2], [3]]), np.array([7, -1, 7, -1]))
        >>> groups.expand(Packing(np.array([0, 2, 3]), np.array([2, 0, 1]))).as_lists()  # 3 | 0 2 · 1
        [[3, 0, 2], [1]]
        """
        counts = np.diff(self.offsets)[packing.items]
        ends = np.concatenate([[0], np.cumsum(counts)])
        place = np.arange(int(ends[-1]))
        place += np.repeat(self.offsets[:-1][packing.items] - ends[:-1], counts)
        return Packing(ends[packing.offsets], self.members[place])

    def over(
        self, budgets: Budgets, *, sizes: Int64Array, sample_ids: Int64Array | None, policy: Overflow, unit: int = 1
    ) -> tuple[BoolArray | None, dict[str, int]]:
        """Groups that exceed a capacity, and how many of their samples by budget (the first that is exceeded).

        A sample that alone exceeds one takes its whole group with it.

        Args:
            sizes: ``int64[num_items, num_budgets]`` of the samples, for the message.
            sample_ids: ``int64[num_items]``; None if row ``i`` is sample ``i``.
            unit: what capacities in tokens are a multiple of, for the advice in the error.

        Returns:
            ``bool[num_groups]``, None if there are none, and counts.

        Raises:
            OversizedSampleError: the policy is ``error``; names groups, their samples and numbers.
        """
        exceeded = self.sizes > budgets.capacities
        if not exceeded.any():
            return None, {}
        over: BoolArray = np.asarray(exceeded.any(axis=1))
        if policy is Overflow.ERROR:
            raise OversizedSampleError(self._complaint(budgets, sizes, sample_ids, exceeded, unit))
        first = np.argmax(exceeded[over], axis=1)
        samples = np.bincount(first, weights=np.diff(self.offsets)[over], minlength=len(budgets.names)).astype(np.int64)
        return over, {name: int(count) for name, count in zip(budgets.names, samples, strict=True) if count}

    def _complaint(
        self, budgets: Budgets, sizes: Int64Array, sample_ids: Int64Array | None, exceeded: BoolArray, unit: int
    ) -> str:
        at = int(np.argmax(exceeded.any(axis=0)))
        name, most = budgets.names[at], int(budgets.capacities[at])
        groups = np.flatnonzero(exceeded[:, at])
        group = int(groups[0])
        rows = self.members[self.offsets[group] : self.offsets[group + 1]]
        ids = rows if sample_ids is None else sample_ids[rows]
        pairs = zip(ids[:_EXAMPLES].tolist(), sizes[rows[:_EXAMPLES], at].tolist(), strict=True)
        shown = ", ".join(f"{sample_id} ({size:,})" for sample_id, size in pairs)
        shown += f" and {len(ids) - _EXAMPLES:,} more" if len(ids) > _EXAMPLES else ""
        size = int(self.sizes[group, at])
        more = f"; so do {len(groups) - 1:,} more" if len(groups) > 1 else ""
        who = f"group {int(self.names[group])}, samples" if self.names[group] != ALONE else "sample"
        longest = int(self.sizes[groups, at].max())
        fits = -(-longest // unit) * unit
        larger = setting("capacity", fits) if name == "tokens" else setting("budgets", {name: longest})
        return (
            f"{who} {shown}, takes {size:,} {name} and exceeds the capacity of {most:,}{more}. "
            f"Choose {setting('overflow', 'drop')}, which leaves out whole groups, or {larger}"
        )


def as_groups(groups: AnyIntArray | Sequence[int], *, num_samples: int, policy: Overflow) -> Int64Array:
    """Group ids as ``int64[num_samples]``.

    Raises:
        InvalidLengthsError: not one whole number for each sample, or one below ``ALONE``.
        SettingsError: the overflow policy cuts samples, which would take groups apart.
    """
    if policy not in (Overflow.ERROR, Overflow.DROP):
        raise SettingsError(
            f"{setting('overflow', policy.value)} cuts samples, and groups stay whole: choose error, or drop for whole groups"
        )
    array = np.asarray(groups)
    if array.ndim != 1 or len(array) != num_samples:
        raise InvalidLengthsError(
            f"groups must be one id for each of {num_samples:,} samples; their shape is {array.shape}"
        )
    if array.dtype.kind not in "iu":
        raise InvalidLengthsError(f"groups must be whole numbers and are {array.dtype}")
    if len(array) and int(array.min()) < ALONE:
        at = int(np.argmin(array))
        raise InvalidLengthsError(f"sample {at} is in group {int(array[at])}; groups are 0 and up, {ALONE} means none")
    return array.astype(np.int64, copy=False)


def group_items(sizes: Int64Array, groups: Int64Array) -> Groups:
    """Make one item of all samples of a group.

    ::

        sample        0    1    2    3    4
        group         7   -1    3    7    3
        tokens        5    2    4    1    1
        items         0 3: 6    1: 2    2 4: 5        in order of the first sample

    Sizes are those that samples take in a pack, aligned already: each stays a segment of its own.

    Pure: no I/O.

    Args:
        sizes: ``int64[num_items, num_budgets]``.
        groups: ``int64[num_items]``, ``ALONE`` or an id of 0 and up.

    Cost: one sort of the ids of those that are in groups, some seconds for 10 million.
    """
    number = len(groups)
    together = np.flatnonzero(groups != ALONE)
    if len(together) == 0:
        return Groups(sizes, np.arange(number + 1), np.arange(number), groups)
    by_group = together[np.argsort(groups[together], kind="stable")]
    ids = groups[by_group]
    begins = np.flatnonzero(np.concatenate([[True], ids[1:] != ids[:-1]]))
    counts = np.diff(np.concatenate([begins, [len(ids)]]))
    # A group stands where its first member stands among all samples.
    leader = np.arange(number)
    leader[by_group] = np.repeat(by_group[begins], counts)
    members = np.argsort(leader, kind="stable")
    per_leader = np.bincount(leader, minlength=number)
    leaders = np.flatnonzero(per_leader)
    offsets = np.concatenate([[0], np.cumsum(per_leader[leaders])])
    return Groups(np.add.reduceat(sizes[members], offsets[:-1], axis=0), offsets, members, groups[leaders])

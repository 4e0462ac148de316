"""Atomic groups: samples that are together in one pack or all left out."""

from dataclasses import dataclass

import numpy as np

from brimful.base.ragged import offsets_of, ranges
from brimful.base.typing import BoolArray, Int64Array, IntArrayLike, Lengths, Offsets
from brimful.base.wording import setting
from brimful.errors import InvalidLengthsError, SettingsError
from brimful.plan.packing import Packing
from brimful.plan.policies.budgets import Alignment, Budgets, examples_of
from brimful.plan.policies.overflow import Overflow

ALONE = -1
"""Group id of a sample without a group."""


@dataclass(frozen=True)
class Groups:
    """Groups as the items to pack, with their members.

    Attributes:
        sizes: ``int64[num_groups, num_budgets]``: sums over the samples of each group.
        offsets: ``int64[num_groups + 1]``; group ``i`` is ``members[offsets[i]:offsets[i + 1]]``.
        members: ``int64[num_items]``: rows of the grouped sizes, ascending within a group. Groups
            are in order of their first member; a sample without a group is a group of one.
        names: ``int64[num_groups]``: ids as given, ``ALONE`` for a sample without a group.
        are_rows: true for rows of two samples, which may be cut.
    """

    sizes: Int64Array
    offsets: Offsets
    members: Int64Array
    names: Int64Array
    are_rows: bool = False

    def __len__(self) -> int:
        return len(self.names)

    def to_samples(self, packing: Packing) -> Packing:
        """Turn packs of groups into packs of samples: members of a group are contiguous, in order
        of their ids.

        >>> groups = group_items(np.array([[4], [1], [2], [3]]), np.array([7, -1, 7, -1]))
        >>> groups.to_samples(Packing(np.array([0, 2, 3]), np.array([2, 0, 1]))).as_lists()  # 3 | 0 2 · 1
        [[3, 0, 2], [1]]
        """
        counts = np.diff(self.offsets)[packing.items]
        indices = ranges(self.offsets[:-1][packing.items], counts)
        return Packing(offsets_of(counts)[packing.offsets], self.members[indices])

    def oversized(self, budgets: Budgets) -> tuple[BoolArray, dict[str, int]]:
        """Find groups that exceed a capacity, and count their samples by the first exceeded budget.

        If a single sample exceeds a capacity, so does its group.

        Returns:
            ``bool[num_groups]``, and counts.
        """
        first = budgets.first_exceeded(self.sizes)
        counts = np.bincount(
            first + 1, weights=np.diff(self.offsets), minlength=len(budgets.names) + 1
        )
        by_budget = zip(budgets.names, counts[1:].astype(np.int64).tolist(), strict=True)
        return first >= 0, {name: count for name, count in by_budget if count}

    def describe_oversized(
        self, budgets: Budgets, sizes: Int64Array, sample_ids: Int64Array, unit: int = 1
    ) -> tuple[str, str, str]:
        """Return words for groups that exceed a capacity, the setting with which they would fit,
        and the budget.

        Args:
            sizes: ``int64[num_items, num_budgets]``, sizes of the samples.
            sample_ids: ``int64[num_items]``.
            unit: capacities in tokens are multiples of this number.
        """
        column, groups = budgets.exceeding(self.sizes)
        name, group = budgets.names[column], int(groups[0])
        rows = self.members[self.offsets[group] : self.offsets[group + 1]]
        others = f"; so do {len(groups) - 1:,} more" if len(groups) > 1 else ""
        longest = int(self.sizes[groups, column].max())
        longest = -(-longest // unit) * unit if name == "tokens" else longest
        title = (
            f"group {int(self.names[group])}, samples" if self.names[group] != ALONE else "sample"
        )
        members = examples_of(sample_ids[rows], sizes[rows, column])
        if self.are_rows:
            row, (first, second) = int(self.names[group]), sizes[rows, column].tolist()
            title, members = (
                f"row {row:,} (number {row + 1:,} of the data),",
                f"{first:,} + {second:,} {name}",
            )
        text = (
            f"{title} {members}, takes {int(self.sizes[group, column]):,} {name} and exceeds the "
            f"capacity of {int(budgets.capacities[column]):,}{others}"
        )
        return text, budgets.larger(column, longest), name


def as_groups(groups: IntArrayLike, *, num_samples: int, policy: Overflow) -> Int64Array:
    """Return group ids as ``int64[num_samples]``.

    Raises:
        InvalidLengthsError: not one whole number for each sample, or a number below ``ALONE``.
        SettingsError: the overflow policy cuts samples, which would break groups.
    """
    if policy not in (Overflow.ERROR, Overflow.DROP):
        raise SettingsError(
            f"{setting('overflow', policy.value)} cuts samples, and groups stay whole: choose "
            "error, or drop for whole groups"
        )
    array = np.asarray(groups)
    if array.ndim != 1 or len(array) != num_samples:
        raise InvalidLengthsError(
            f"groups must be one id for each of {num_samples:,} samples; their shape is "
            f"{array.shape}"
        )
    if array.dtype.kind not in "iu":
        raise InvalidLengthsError(f"groups must be whole numbers and are {array.dtype}")
    if len(array) and int(array.min()) < ALONE:
        sample_id = int(np.argmin(array))
        raise InvalidLengthsError(
            f"sample {sample_id} is in group {int(array[sample_id])}; groups are 0 and up, {ALONE} "
            "means none"
        )
    return array.astype(np.int64, copy=False)


def check_beginnings_stay(policy: Overflow) -> None:
    """Refuse a policy that cuts the beginning of samples that are made of several rows, as those of
    KTO.

    The completion of another row begins where the completion of the answer begins. For a row
    without its beginning, this position is unknown.

    Raises:
        SettingsError: the policy is ``truncate_left``.
    """
    if policy is Overflow.TRUNCATE_LEFT:
        raise SettingsError(
            f"{setting('overflow', policy.value)} cuts the beginning of rows of KTO, and then it "
            "is unknown where the completion of a mismatch begins: choose "
            f"{setting('overflow', 'drop')} or {setting('overflow', 'truncate')}"
        )


def limits_of_members(
    tokens: Lengths,
    *,
    group_size: int,
    capacity: int,
    alignment: Alignment,
    policy: Overflow,
    shared: Int64Array | None = None,
) -> Int64Array | None:
    """Return the maximum tokens that truncation leaves of each sample; None for a policy that does
    not cut.

    Either a whole group fits, or each of its samples keeps at most an equal part of the pack. For
    groups of two this is half a pack, TRL's ``max_length = capacity // 2``, and groups that fit
    keep every token::

        capacity 10     sample 0   1       2   3       4   5
        tokens                 6   4       7   4       9   2
        limits                10  10       5   5       5   5
        packed                 6   4       5   4       5   2

    Pure: no I/O.

    Args:
        tokens: tokens of all samples, -1 for rejected ones; group ``i`` begins at sample
            ``group_size·i``.
        group_size: samples of each group.
        capacity: maximum aligned tokens of a pack.
        alignment: alignment of segments.
        policy: policy for longer groups.
        shared: tokens that each sample need not take because a member of their group has them; None for none.

    Returns:
        ``int64[num_samples]``, or None.

    Raises:
        SettingsError: the part of a sample is less than one aligned token.

    >>> limits_of_members(
    ...     np.array([6, 4, 7, 4], np.int32), group_size=2, capacity=10, alignment=Alignment(), policy=Overflow.TRUNCATE
    ... ).tolist()
    [10, 10, 5, 5]
    """
    if policy not in (Overflow.TRUNCATE, Overflow.TRUNCATE_LEFT):
        return None
    limit = capacity // group_size // alignment.segment * alignment.segment
    if limit < 1:
        raise SettingsError(
            f"{setting('capacity')} has {capacity:,} usable tokens, and {group_size} samples stay "
            f"together, aligned to {alignment.segment}: raise it"
        )
    loads = (
        alignment.rounded(np.maximum(tokens, 0)).reshape(-1, group_size).sum(axis=1, dtype=np.int64)
    )
    if shared is not None:
        loads -= shared.reshape(-1, group_size).sum(axis=1)
    return np.repeat(np.where(loads > capacity, limit, capacity), group_size)


def group_items(sizes: Int64Array, groups: Int64Array, *, are_rows: bool = False) -> Groups:
    """Make one item from all samples of a group.

    ::

        sample        0    1    2    3    4
        group         7   -1    3    7    3
        tokens        5    2    4    1    1
        items         0 3: 6    1: 2    2 4: 5        in order of the first sample

    Sizes are already aligned, as samples take them in a pack: each sample remains a segment of its
    own.

    Pure: no I/O.

    Args:
        sizes: ``int64[num_items, num_budgets]``.
        groups: ``int64[num_items]``, ``ALONE`` or an id of at least 0.
        are_rows: see ``Groups``.

    Cost: one sort of the ids of samples in groups, some seconds for 10 million.
    """
    num_items = len(groups)
    grouped = np.flatnonzero(groups != ALONE)
    if len(grouped) == 0:
        return Groups(sizes, np.arange(num_items + 1), np.arange(num_items), groups)
    members_by_id = grouped[np.argsort(groups[grouped], kind="stable")]
    ids = groups[members_by_id]
    starts = np.flatnonzero(np.concatenate([[True], ids[1:] != ids[:-1]]))
    counts = np.diff(starts, append=len(ids))
    # The first member leads its group: the place of a group is the place of its leader among all
    # samples.
    leader = np.arange(num_items)
    leader[members_by_id] = np.repeat(members_by_id[starts], counts)
    members = np.argsort(leader, kind="stable")
    group_sizes = np.bincount(leader, minlength=num_items)
    leaders = np.flatnonzero(group_sizes)
    offsets = offsets_of(group_sizes[leaders])
    return Groups(
        np.add.reduceat(sizes[members], offsets[:-1], axis=0),
        offsets,
        members,
        groups[leaders],
        are_rows,
    )

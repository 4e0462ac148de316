"""Atomic groups: samples that share one pack or are in none."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from brimful.errors import InvalidLengthsError, OversizedSampleError, SettingsError
from brimful.messages import setting
from brimful.plan.packing import Packing
from brimful.plan.policies.alignment import Alignment
from brimful.plan.policies.budgets import Budgets, examples_of
from brimful.plan.policies.overflow import Overflow
from brimful.ragged import offsets_of, ranges
from brimful.typing import AnyIntArray, BoolArray, Int64Array, Lengths, Offsets

ALONE = -1
"""Group of a sample that belongs to none."""


@dataclass(frozen=True)
class Groups:
    """Groups as the items that are packed, with their members.

    Attributes:
        sizes: ``int64[num_groups, num_budgets]``: sums over the samples of each group.
        offsets: ``int64[num_groups + 1]``; group ``i`` is ``members[offsets[i]:offsets[i + 1]]``.
        members: ``int64[num_items]``: rows of the sizes that were grouped, ascending within a group. Groups come in
            order of their first member; a sample that is alone is a group of one.
        names: ``int64[num_groups]``: ids as they were given, ``ALONE`` for those of one that had none.
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
        """Turn packs of groups into packs of samples: members of a group side by side, in order of their ids.

        >>> groups = group_items(np.array([[4], [1], [2], [3]]), np.array([7, -1, 7, -1]))
        >>> groups.to_samples(Packing(np.array([0, 2, 3]), np.array([2, 0, 1]))).as_lists()  # 3 | 0 2 · 1
        [[3, 0, 2], [1]]
        """
        counts = np.diff(self.offsets)[packing.items]
        places = ranges(self.offsets[:-1][packing.items], counts)
        return Packing(offsets_of(counts)[packing.offsets], self.members[places])

    def oversized(
        self, budgets: Budgets, *, sizes: Int64Array, sample_ids: Int64Array, policy: Overflow, unit: int = 1
    ) -> tuple[BoolArray, dict[str, int]]:
        """Find groups that exceed a capacity, and count their samples by the first budget that is exceeded.

        A sample that alone exceeds one takes its whole group with it.

        Args:
            sizes: ``int64[num_items, num_budgets]`` of the samples, for the message.
            sample_ids: ``int64[num_items]``.
            unit: number that capacities in tokens are a multiple of, for the advice in the error.

        Returns:
            ``bool[num_groups]``, and counts.

        Raises:
            OversizedSampleError: the policy is ``error``; names groups, their samples and numbers.
        """
        first = budgets.first_exceeded(self.sizes)
        oversized = first >= 0
        if policy is Overflow.ERROR and oversized.any():
            raise OversizedSampleError(self._oversized_message(budgets, sizes, sample_ids, unit))
        counts = np.bincount(first[oversized], weights=np.diff(self.offsets)[oversized], minlength=len(budgets.names))
        by_budget = zip(budgets.names, counts.astype(np.int64).tolist(), strict=True)
        return oversized, {name: count for name, count in by_budget if count}

    def _oversized_message(self, budgets: Budgets, sizes: Int64Array, sample_ids: Int64Array, unit: int) -> str:
        exceeded = self.sizes > budgets.capacities
        column = int(np.argmax(exceeded.any(axis=0)))
        name, capacity = budgets.names[column], int(budgets.capacities[column])
        groups = np.flatnonzero(exceeded[:, column])
        group = int(groups[0])
        rows = self.members[self.offsets[group] : self.offsets[group + 1]]
        size = int(self.sizes[group, column])
        others = f"; so do {len(groups) - 1:,} more" if len(groups) > 1 else ""
        title = f"group {int(self.names[group])}, samples" if self.names[group] != ALONE else "sample"
        longest = int(self.sizes[groups, column].max())
        larger = budgets.larger(column, -(-longest // unit) * unit if name == "tokens" else longest)
        members, noun, cut = examples_of(sample_ids[rows], sizes[rows, column]), "groups", ""
        if self.are_rows:
            row, (first, second) = int(self.names[group]), sizes[rows, column].tolist()
            title, members, noun = (
                f"row {row:,} (number {row + 1:,} of the data),",
                f"{first:,} + {second:,} {name}",
                "rows",
            )
            cut = (
                f" {setting('overflow', 'truncate')}, which cuts each side to half a pack," if name == "tokens" else ""
            )
        return (
            f"{title} {members}, takes {size:,} {name} and exceeds the capacity of {capacity:,}{others}. Choose "
            f"{setting('overflow', 'drop')}, which leaves out whole {noun},{cut} or {larger}"
        )


def as_groups(groups: AnyIntArray | Sequence[int], *, num_samples: int, policy: Overflow) -> Int64Array:
    """Return group ids as ``int64[num_samples]``.

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
        sample_id = int(np.argmin(array))
        raise InvalidLengthsError(
            f"sample {sample_id} is in group {int(array[sample_id])}; groups are 0 and up, {ALONE} means none"
        )
    return array.astype(np.int64, copy=False)


def check_mismatches_keep_beginning(policy: Overflow) -> None:
    """Refuse a policy that cuts the beginning of rows of KTO.

    The completion of a mismatch begins where that of its answer does, which nobody can tell of a row without beginning.

    Raises:
        SettingsError: the policy is ``truncate_left``.
    """
    if policy is Overflow.TRUNCATE_LEFT:
        raise SettingsError(
            f"{setting('overflow', policy.value)} takes the beginning of rows of KTO, and then nobody knows where the "
            f"completion of a mismatch begins: choose {setting('overflow', 'drop')} or {setting('overflow', 'truncate')}"
        )


def limits_of_members(
    tokens: Lengths, *, group_size: int, capacity: int, alignment: Alignment, policy: Overflow
) -> Int64Array | None:
    """Return the tokens that truncation leaves of each sample at most; None under a policy that cuts nothing.

    A group is one: it fits, or each of its samples keeps at most an equal part of the pack. For preferences that is half
    a pack, TRL's ``max_length = capacity // 2``, and those that fit keep every token::

        capacity 10     sample 0   1       2   3       4   5
        tokens                 6   4       7   4       9   2
        limits                10  10       5   5       5   5
        packed                 6   4       5   4       5   2

    Pure: no I/O.

    Args:
        tokens: of all samples, -1 for rejected ones; group ``i`` is samples ``group_size·i`` and the following.
        group_size: samples of each group.
        capacity: aligned tokens of a pack at most.
        alignment: of segments.
        policy: for groups that have more.

    Returns:
        ``int64[num_samples]``, or None.

    Raises:
        SettingsError: the part of a sample is not one aligned token.

    >>> limits_of_members(
    ...     np.array([6, 4, 7, 4], np.int32), group_size=2, capacity=10, alignment=Alignment(), policy=Overflow.TRUNCATE
    ... ).tolist()
    [10, 10, 5, 5]
    """
    if policy not in (Overflow.TRUNCATE, Overflow.TRUNCATE_LEFT):
        return None
    part = capacity // group_size // alignment.segment * alignment.segment
    if part < 1:
        raise SettingsError(
            f"{setting('capacity')} has {capacity:,} usable tokens, and {group_size} samples stay together, aligned to "
            f"{alignment.segment}: raise it"
        )
    loads = alignment.rounded(np.maximum(tokens, 0)).reshape(-1, group_size).sum(axis=1, dtype=np.int64)
    return np.repeat(np.where(loads > capacity, part, capacity), group_size)


def group_items(sizes: Int64Array, groups: Int64Array, *, are_rows: bool = False) -> Groups:
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
        are_rows: as of ``Groups``.

    Cost: one sort of the ids of those that are in groups, some seconds for 10 million.
    """
    num_items = len(groups)
    grouped = np.flatnonzero(groups != ALONE)
    if len(grouped) == 0:
        return Groups(sizes, np.arange(num_items + 1), np.arange(num_items), groups)
    members_by_id = grouped[np.argsort(groups[grouped], kind="stable")]
    ids = groups[members_by_id]
    begins = np.flatnonzero(np.concatenate([[True], ids[1:] != ids[:-1]]))
    counts = np.diff(begins, append=len(ids))
    # The first member leads its group: a group stands where its leader stands among all samples.
    leader = np.arange(num_items)
    leader[members_by_id] = np.repeat(members_by_id[begins], counts)
    members = np.argsort(leader, kind="stable")
    group_sizes = np.bincount(leader, minlength=num_items)
    leaders = np.flatnonzero(group_sizes)
    offsets = offsets_of(group_sizes[leaders])
    return Groups(np.add.reduceat(sizes[members], offsets[:-1], axis=0), offsets, members, groups[leaders], are_rows)

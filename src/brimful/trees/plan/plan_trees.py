"""Trees of a plan: the segment that each segment continues; and their validation against the
lengths and prefixes that the plan was made from.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np

from brimful.base.sharing import ShareMode
from brimful.base.typing import AnyArray, BoolArray, Int64Array, Lengths
from brimful.base.wording import setting
from brimful.errors import PlanMismatchError
from brimful.lengths.table import LengthTable
from brimful.plan.policies.budgets import Budgets
from brimful.plan.saved.planned_packs import PlannedPacks
from brimful.trees import pack_tree
from brimful.trees.pack_tree import segments_above
from brimful.trees.prefixes import prefixes_of

PLAN_COLUMNS = ("parents",)
"""Columns of a saved plan."""


@dataclass(frozen=True, eq=False)
class PlanTrees:
    """Sharing of a plan of trees.

    Attributes:
        parents: ``int32[num_segments]``, an earlier segment of the same pack, counted from its
            first, that the segment continues; -1 for none.
    """

    parents: Lengths
    kind: ClassVar[ShareMode] = ShareMode.PREFIXES

    @property
    def columns(self) -> dict[str, AnyArray]:
        """Columns of a saved plan."""
        return {"parents": self.parents}


PlanSharing = PlanTrees


def parents_of(plan: PlannedPacks) -> Lengths:
    """Return the parents of the segments of a plan of trees."""
    assert isinstance(plan.sharing, PlanTrees)
    return plan.sharing.parents


def ends_sample(plan: PlannedPacks) -> BoolArray:
    """Return whether a sample ends with each segment: ``bool[num_segments]``; each sample has one."""
    return pack_tree.ends_sample(
        segments_above(parents_of(plan), plan.offsets), plan.sample_ids, plan.lengths
    )


def amounts(plan: PlannedPacks, table: LengthTable, budget: str) -> Int64Array:
    """Return how much of a measured budget each segment takes: ``int64[num_segments]``. What
    samples share counts once, if the table says how much it is (``Prefixes.amounts``).
    """
    sizes = table.budgets[budget][plan.sample_ids].astype(np.int64)
    sizes[~plan.ends_sample] = 0
    rows, indices = shared_indices(plan, table)
    if budget in prefixes_of(table).amounts:
        sizes[rows] -= prefixes_of(table).amounts[budget][indices]
    return sizes


def shared_indices(plan: PlannedPacks, table: LengthTable) -> tuple[Int64Array, Int64Array]:
    """Return the segments of a plan of trees that end a sample which shares tokens with the
    sample before it in its pack, and where in the prefixes of the table this is: two times
    ``int64[num_sharing]``.

    Raises:
        PlanMismatchError: the table has no prefixes.
    """
    if table.sharing is None:
        raise PlanMismatchError(
            "the samples of the plan share their prefixes, and the length table does not have "
            f"them: give the one that was measured with {setting('share', 'prefixes')}"
        )
    rows = np.flatnonzero(plan.ends_sample)
    tree = np.cumsum(parents_of(plan) < 0)[rows]
    follows = np.flatnonzero(tree[1:] == tree[:-1])
    before, rows = plan.sample_ids[rows[follows]], rows[follows + 1]
    return rows, prefixes_of(table).between(before, plan.sample_ids[rows])


def validate(plan: PlannedPacks, table: LengthTable) -> None:
    """Prove that every sample is the path to one segment, and shares only what it begins with.

    Args:
        plan: its packs are within their limits (``sizes``).
        table: with prefixes.

    Raises:
        PlanMismatchError: names the first wrong segment or sample.
    """
    parents = parents_of(plan)
    ids, starts = plan.sample_ids.astype(np.int64), plan.starts.astype(np.int64)
    lengths, is_end = plan.lengths.astype(np.int64), plan.ends_sample
    stops = starts + lengths
    _validate_order(plan)
    parent_rows = segments_above(parents, plan.offsets)
    _refuse(
        plan,
        starts != np.where(parent_rows >= 0, stops[parent_rows], 0),
        "does not begin where the segment that it continues ends",
    )
    is_empty = lengths == 0
    _refuse(plan, (lengths < 0) | (is_empty & ((parent_rows < 0) | ~is_end)), "has no tokens")
    _validate_ends(plan, table, ids[is_end], stops[is_end])
    # A segment that continues a segment of another sample: both samples begin with the same tokens.
    rows = np.flatnonzero((parent_rows >= 0) & (ids != ids[parent_rows]))
    prefixes = prefixes_of(table)
    indices = prefixes.between(ids[rows], ids[parent_rows[rows]])
    is_foreign = np.zeros(len(ids), dtype=np.bool_)
    is_foreign[rows] = prefixes.shared[indices] < starts[rows]
    _refuse(plan, is_foreign, "continues tokens with which its sample does not begin")
    if int(stops[is_end].sum()) != plan.ledger.tokens_packed + plan.ledger.tokens_shared:
        raise PlanMismatchError("the shared tokens do not add up to the plan's account")


def sizes(plan: PlannedPacks, table: LengthTable, budgets: Budgets) -> Int64Array:
    """Return what each segment takes of each budget: ``int64[num_segments, num_budgets]``.

    Tokens include the room of a fork: a trunk repeats its last token for each branch after its
    first.

    Raises:
        PlanMismatchError: the table has no prefixes.
    """
    starts, lengths = plan.starts.astype(np.int64), plan.lengths.astype(np.int64)
    stops, ends = starts + lengths, np.flatnonzero(plan.ends_sample)
    result = np.zeros((len(stops), len(budgets.names)), dtype=np.int64)
    result[ends] = budgets.sizes(
        table,
        lengths=stops[ends],
        sample_ids=plan.sample_ids[ends].astype(np.int64),
        rounded=stops[ends],
    )
    parents = parents_of(plan)
    parent_rows = segments_above(parents, plan.offsets)
    branches = np.flatnonzero((parent_rows >= 0) & (lengths > 0))
    _, first = np.unique(parent_rows[branches], return_index=True)
    result[:, 0] = lengths
    result[np.delete(branches, first), 0] += 1
    rows, indices = shared_indices(plan, table)
    prefixes = prefixes_of(table)
    for column, name in enumerate(budgets.names):
        if name in table.budgets:
            if name in prefixes.amounts:
                result[rows, column] -= prefixes.amounts[name][indices]
        elif name == "squares":
            result[:, column] = stops**2 - starts**2
    return result


def _refuse(plan: PlannedPacks, is_wrong: BoolArray, fault: str) -> None:
    if is_wrong.any():
        row = int(np.argmax(is_wrong))
        pack = int(np.searchsorted(plan.offsets, row, side="right")) - 1
        raise PlanMismatchError(
            f"segment {row - int(plan.offsets[pack])} of pack {pack}, of sample "
            f"{int(plan.sample_ids[row])}, {fault}"
        )


def _validate_order(plan: PlannedPacks) -> None:
    """Walk the segments depth first: each continues the one before it, or one that this continues."""
    parents = parents_of(plan).tolist()
    for pack, (start, end) in enumerate(pairwise(plan.offsets.tolist())):
        path: list[int] = []
        for segment, parent in enumerate(parents[start:end]):
            while path and path[-1] != parent:
                path.pop()
            if parent != -1 and not path:
                raise PlanMismatchError(
                    f"segment {segment} of pack {pack} continues segment {parent}, which is not on "
                    "the path to the segment before it"
                )
            path.append(segment)


def _validate_ends(
    plan: PlannedPacks, table: LengthTable, ids: Int64Array, tokens: Int64Array
) -> None:
    """Check that each sample ends once, with its last token or where the policy cut it."""
    counts = np.bincount(ids)
    if (counts > 1).any():
        raise PlanMismatchError(f"sample {int(np.argmax(counts > 1))} ends more than once")
    full_lengths = table.tokens[ids]
    is_cut = np.isin(ids, plan.truncated.sample_ids) & (tokens < full_lengths)
    is_wrong = ((tokens != full_lengths) & ~is_cut) | (tokens > plan.settings.longest_segment)
    if is_wrong.any():
        row = int(np.argmax(is_wrong))
        raise PlanMismatchError(
            f"sample {int(ids[row])} has {int(full_lengths[row]):,} tokens, and its path ends at "
            f"{int(tokens[row]):,}"
        )

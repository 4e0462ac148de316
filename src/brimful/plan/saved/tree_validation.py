"""Validation of a plan of trees against the lengths and prefixes that it was made from."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from brimful.base.tree_segments import segments_above
from brimful.base.typing import BoolArray, Int64Array
from brimful.errors import PlanMismatchError
from brimful.lengths.table import LengthTable
from brimful.plan.policies.budgets import Budgets
from brimful.plan.saved.planned_packs import PlannedPacks


def validate_trees(plan: PlannedPacks, table: LengthTable) -> None:
    """Prove that every sample is the path to one segment, and shares only what it begins with.

    Args:
        plan: its packs are within their limits (``tree_sizes``).
        table: with prefixes.

    Raises:
        PlanMismatchError: names the first wrong segment or sample.
    """
    assert plan.parents is not None
    ids, starts = plan.sample_ids.astype(np.int64), plan.starts.astype(np.int64)
    lengths, is_end = plan.lengths.astype(np.int64), plan.ends_sample
    stops = starts + lengths
    _validate_order(plan)
    parent_rows = segments_above(plan.parents, plan.offsets)
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
    assert table.prefixes is not None
    places = table.prefixes.between(ids[rows], ids[parent_rows[rows]])
    is_foreign = np.zeros(len(ids), dtype=np.bool_)
    is_foreign[rows] = table.prefixes.shared[places] < starts[rows]
    _refuse(plan, is_foreign, "continues tokens with which its sample does not begin")
    if int(stops[is_end].sum()) != plan.ledger.tokens_packed + plan.ledger.tokens_shared:
        raise PlanMismatchError("the shared tokens do not add up to the plan's account")


def tree_sizes(plan: PlannedPacks, table: LengthTable, budgets: Budgets) -> Int64Array:
    """Return what each segment takes of each budget: ``int64[num_segments, num_budgets]``.

    Tokens include the room of a fork: a trunk repeats its last token for each branch after its
    first.

    Raises:
        PlanMismatchError: the table has no prefixes.
    """
    starts, lengths = plan.starts.astype(np.int64), plan.lengths.astype(np.int64)
    stops, ends = starts + lengths, np.flatnonzero(plan.ends_sample)
    sizes = np.zeros((len(stops), len(budgets.names)), dtype=np.int64)
    sizes[ends] = budgets.sizes(
        table,
        lengths=stops[ends],
        sample_ids=plan.sample_ids[ends].astype(np.int64),
        rounded=stops[ends],
    )
    assert plan.parents is not None
    parent_rows = segments_above(plan.parents, plan.offsets)
    branches = np.flatnonzero((parent_rows >= 0) & (lengths > 0))
    _, first = np.unique(parent_rows[branches], return_index=True)
    sizes[:, 0] = lengths
    sizes[np.delete(branches, first), 0] += 1
    rows, places = plan.shared_places(table)
    for column, name in enumerate(budgets.names):
        if name in table.budgets:
            if table.prefixes is not None and name in table.prefixes.amounts:
                sizes[rows, column] -= table.prefixes.amounts[name][places]
        elif name == "squares":
            sizes[:, column] = stops**2 - starts**2
    return sizes


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
    assert plan.parents is not None
    bounds = plan.offsets.tolist()
    parents = plan.parents.tolist()
    for pack, (begin, end) in enumerate(pairwise(bounds)):
        path: list[int] = []
        for segment, parent in enumerate(parents[begin:end]):
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

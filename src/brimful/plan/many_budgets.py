"""From a length table to items under many budgets: alignment, groups, overflow, each before packing."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from brimful.errors import SettingsError
from brimful.measure.table import LengthTable
from brimful.messages import setting
from brimful.plan.alignment import Alignment
from brimful.plan.budgets import Budgets
from brimful.plan.groups import Groups, group_items
from brimful.plan.overflow import Overflow, Pieces, apply_overflow
from brimful.plan.packing import Packing
from brimful.typing import Int64Array

__all__ = ["Items", "items_of"]


@dataclass(frozen=True)
class Items:
    """What there is to pack.

    Attributes:
        pieces: the segments, of real lengths; ``dropped`` in it names every sample that was left out.
        sizes: ``int64[num_items, num_budgets]``: what each item takes, tokens aligned. Items are pieces, or groups.
        capacities: ``int64[num_budgets]``: most that a pack holds, tokens within what alignment leaves.
        groups: who is in each item; None if items are pieces.
        dropped: samples left out by budget, and ``group_mate_rejected`` for those whose group lost one to an error.
    """

    pieces: Pieces
    sizes: Int64Array
    capacities: Int64Array
    groups: Groups | None
    dropped: dict[str, int]

    def expand(self, packing: Packing) -> Packing:
        """Packs of items as packs of pieces."""
        return packing if self.groups is None else self.groups.expand(packing)


def items_of(
    table: LengthTable,
    budgets: Budgets,
    *,
    policy: Overflow,
    alignment: Alignment,
    groups: Int64Array | None = None,
) -> Items:
    """Apply alignment, groups and the overflow policy, in this order of thought:

    1. The capacity in tokens shrinks to what alignment can use (``Alignment.usable``), and that is the limit at which
       the policy drops or cuts: a piece of that length is aligned already.
    2. Pieces take their aligned length of the budget ``tokens``; ``samples`` and ``squares`` come from real lengths.
    3. Members of a group become one item, of the sum of what each takes.
    4. Items that exceed another budget, and groups that exceed any, are an error or dropped whole, counted by budget.

    Pure: no I/O.

    Args:
        groups: ``int64[num_samples]`` as ``as_groups`` checked them; with them the policy is ``error`` or ``drop``.

    Raises:
        OversizedSampleError: the policy is ``error``; names samples or a group, budget and numbers.
        SettingsError: an alignment above the capacity, an unknown budget, a policy that cannot cut a budget.
    """
    limit = alignment.usable(int(budgets.capacities[0]))
    usable = replace(budgets, capacities=np.concatenate([[limit], budgets.capacities[1:]]).astype(np.int64))
    if groups is not None:
        return _grouped(table, usable, policy, alignment, groups)
    pieces = apply_overflow(table.tokens, capacity=limit, policy=policy, unit=alignment.total)
    dropped = {"tokens": len(pieces.dropped)} if len(pieces.dropped) else {}
    sizes = usable.sizes(
        table, lengths=pieces.lengths, sample_ids=pieces.sample_ids, rounded=alignment.rounded(pieces.lengths)
    )
    if policy is Overflow.SPLIT and pieces.starts is not None and bool(pieces.starts.any()):
        stored = [name for name in usable.names[1:] if name in table.budgets]
        if stored:
            at = int(np.argmax(pieces.starts > 0))
            sample = at if pieces.sample_ids is None else int(pieces.sample_ids[at])
            raise SettingsError(
                f"{setting('overflow', 'split')} divides tokens, not {stored[0]}: of sample {sample} ({int(table.tokens[sample]):,} "
                f"tokens, capacity {limit:,}) nobody knows which segment takes them; choose drop or truncate"
            )
    over, counts = usable.oversized(sizes, sample_ids=pieces.sample_ids, policy=policy)
    if over is not None:
        ids = np.arange(len(over)) if pieces.sample_ids is None else pieces.sample_ids
        left_out = np.union1d(pieces.dropped, ids[over])
        pieces = Pieces(pieces.lengths[~over], ids[~over], None, left_out)
        sizes = np.ascontiguousarray(sizes[~over])
        dropped |= counts
    return Items(pieces, sizes, usable.capacities, None, dropped)


def _grouped(table: LengthTable, budgets: Budgets, policy: Overflow, alignment: Alignment, groups: Int64Array) -> Items:
    tokens = table.tokens
    rejected = tokens < 0
    broken = np.zeros(len(tokens), dtype=bool)
    if rejected.any():
        lost = np.unique(groups[rejected & (groups >= 0)])
        broken = ~rejected & np.isin(groups, lost)
    ids = np.flatnonzero(~rejected & ~broken)
    lengths = tokens[ids]
    sizes = budgets.sizes(table, lengths=lengths, sample_ids=ids, rounded=alignment.rounded(lengths))
    grouped = group_items(sizes, groups[ids])
    over, dropped = grouped.over(budgets, sizes=sizes, sample_ids=ids, policy=policy, unit=alignment.total)
    if over is not None:
        kept = np.sort(grouped.members[np.repeat(~over, np.diff(grouped.offsets))])
        ids, lengths, sizes = ids[kept], lengths[kept], sizes[kept]
        grouped = group_items(sizes, groups[ids])
    if broken.any():
        dropped = {**dropped, "group_mate_rejected": int(np.count_nonzero(broken))}
    present = np.zeros(len(tokens), dtype=bool)
    present[ids] = True
    left_out = np.flatnonzero(~present & ~rejected)
    return Items(Pieces(lengths, ids, None, left_out), grouped.sizes, budgets.capacities, grouped, dropped)

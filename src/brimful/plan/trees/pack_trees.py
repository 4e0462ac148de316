"""Packs of trees: from items and the prefixes that they share to segments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from brimful.base.ragged import offsets_of, positions_type, ranges
from brimful.base.typing import AnyIntArray, Int64Array
from brimful.base.wording import setting
from brimful.errors import SettingsError
from brimful.lengths.prefixes import Prefixes
from brimful.lengths.table import LengthTable
from brimful.plan.items import Items
from brimful.plan.ledger import Ledger
from brimful.plan.packing import Packing, PackResult
from brimful.plan.plan_settings import PlanSettings
from brimful.plan.policies.budgets import DERIVED
from brimful.plan.trees.bound import bound_of_trees
from brimful.plan.trees.forest import Forest
from brimful.plan.trees.segments import TreeSegments, segments_of
from brimful.plan.trees.subtree_fit import fragments_of

Pack: TypeAlias = Callable[[Items, PlanSettings], PackResult[Packing]]
"""The packing of items that share nothing."""


@dataclass(frozen=True, eq=False)
class PackedTrees:
    """Packs of a forest.

    Attributes:
        result: packs of leaves, with the bound and the outcome.
        rows: ``int[num_segments]``: the item of each segment.
        segments: of all packs.
        tokens_shared: tokens that samples have in addition to the ones in the packs.
    """

    result: PackResult[Packing]
    rows: AnyIntArray
    segments: TreeSegments
    tokens_shared: int

    def account(self, flat: Ledger) -> Ledger:
        """Return the account of the same samples in trees."""
        return replace(
            flat,
            tokens_packed=flat.tokens_packed - self.tokens_shared,
            tokens_shared=self.tokens_shared,
            segments=len(self.rows),
        )


def pack_trees(table: LengthTable, items: Items, settings: PlanSettings, pack: Pack) -> PackedTrees:
    """Pack items so that what they share is in few packs.

    Pure: no I/O.

    Args:
        table: lengths with prefixes.
        items: samples of the table.
        settings: capacity, budgets and seed.
        pack: packs items that share nothing, in the order of the seed.

    Raises:
        SettingsError: the table has no prefixes.
    """
    if table.prefixes is None:
        raise SettingsError(
            f"{setting('share', 'prefixes')} needs to know what samples share, and the lengths do "
            f"not say it: measure with {setting('share', 'prefixes')}"
        )
    forest, rows = forest_of(items, table.prefixes, list(settings.budgets or {}))
    fragments, loads = fragments_of(forest, items.capacities)
    sizes = loads[:, 0].astype(np.int32) if loads.shape[1] == 1 else loads
    result = pack(replace(items, sizes=sizes), settings)
    counts = fragments.sizes[result.packs.items]
    leaves = fragments.items[ranges(fragments.offsets[:-1][result.packs.items], counts)]
    packs = Packing(offsets_of(counts)[result.packs.offsets], leaves)
    segments = segments_of(forest, packs)
    bound = bound_of_trees(forest, items.capacities).packs
    tokens_shared = int(forest.depths[: forest.num_leaves, 0].sum() - segments.lengths.sum())
    return PackedTrees(
        replace(result, packs=packs, bound=bound),
        rows[segments.leaves].astype(positions_type(len(table))),
        segments,
        tokens_shared,
    )


def forest_of(items: Items, prefixes: Prefixes, budgets: list[str]) -> tuple[Forest, Int64Array]:
    """Return the forest of some items, and the item of each leaf.

    A budget that ``Prefixes.amounts`` does not have counts for each sample, as if it were not
    shared.

    Args:
        items: samples, whole or without their last tokens.
        prefixes: of all samples of the table.
        budgets: names of the budgets after the tokens.
    """
    item_of_sample = np.full(len(prefixes), -1, dtype=np.int64)
    item_of_sample[items.segments.ids()] = np.arange(len(items.segments.lengths))
    rows = item_of_sample[prefixes.order]
    places = np.flatnonzero(rows >= 0)
    rows = rows[places]
    sizes = items.sizes.astype(np.int64).reshape(len(items.sizes), -1)[rows]
    lengths = items.segments.lengths[rows].astype(np.int64)

    def between(column: AnyIntArray) -> Int64Array:
        """Return the least from each place to the one before it that is an item."""
        column = column.astype(np.int64)
        least = np.zeros(len(places), dtype=np.int64)
        if len(places) > 1:
            least[1:] = np.minimum.reduceat(column[: places[-1] + 1], places[:-1] + 1)
        return least

    measured = between(prefixes.shared)
    # What truncation cut off is not shared.
    tokens = np.minimum(measured, lengths)
    tokens[1:] = np.minimum(tokens[1:], lengths[:-1])
    shared = np.zeros_like(sizes)
    shared[:, 0] = tokens
    for column, name in enumerate(budgets, start=1):
        if name in prefixes.amounts:
            shared[:, column] = np.where(tokens == measured, between(prefixes.amounts[name]), 0)
        elif name in DERIVED and name != "samples":
            shared[:, column] = DERIVED[name](tokens)
    return Forest.of(sizes, shared), rows

"""Packs of trees: from items and the prefixes that they share to segments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from brimful.base.ragged import positions_type
from brimful.base.typing import AnyIntArray, Int64Array, Lengths
from brimful.base.wording import setting
from brimful.errors import SettingsError
from brimful.lengths.table import LengthTable
from brimful.plan.drawn import Pack
from brimful.plan.items import Items
from brimful.plan.ledger import Ledger
from brimful.plan.packing import Packing, PackResult
from brimful.plan.plan_settings import PlanSettings
from brimful.plan.policies.budgets import Budgets
from brimful.plan.policies.overflow import Overflow
from brimful.trees.plan.bound import bound_of_trees
from brimful.trees.plan.emptying import emptied
from brimful.trees.plan.forest import Forest
from brimful.trees.plan.plan_trees import PlanTrees
from brimful.trees.plan.segments import TreeSegments, loads_of_trees, packs_of, segments_of
from brimful.trees.plan.subtree_fit import fragments_of
from brimful.trees.prefixes import prefixes_of

_CHEAP = 128
"""Share of the capacity, as one in this number, up to which a trunk is cheap to repeat."""

_CLOSE_ENOUGH = 0.001
"""Distance from the bound, as a share of it, at which no other way is tried."""

_NEVER = 2**62


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

    @property
    def arrays(self) -> dict[str, Any]:
        """Fields of the ``Plan`` that segments decide."""
        segments = self.segments
        sharing = PlanTrees(segments.parents)
        return {"offsets": segments.offsets, "starts": segments.starts, "sharing": sharing}

    @property
    def lengths(self) -> Lengths:
        """``int32[num_segments]``, tokens of each segment."""
        return self.segments.lengths

    def account(self, flat: Ledger) -> Ledger:
        """Return the account of the same samples in trees."""
        return replace(
            flat,
            tokens_packed=flat.tokens_packed - self.tokens_shared,
            tokens_shared=self.tokens_shared,
            segments=len(self.rows),
        )


def check_settings(settings: PlanSettings) -> None:
    """Refuse what has no meaning if samples share their prefixes.

    Raises:
        SettingsError: names the settings.
    """
    share = setting("share", "prefixes")
    policy, alignment = settings.overflow_policy, settings.row_alignment
    for is_wrong, message in (
        (
            settings.algorithm != "auto",
            f"{share} packs trees of samples, and "
            f"{setting('algorithm', settings.algorithm)} packs samples one by one: use auto",
        ),
        (
            policy in (Overflow.SPLIT, Overflow.TRUNCATE_LEFT),
            f"{share} shares beginnings, which {setting('overflow', policy.value)} cuts off: "
            "use drop or truncate",
        ),
        (
            alignment.segment > 1,
            f"{share} makes segments that continue one another, and an alignment of "
            f"{alignment.segment} tokens pads each of them: align only the total",
        ),
        (
            settings.min_fill,
            f"{share} empties the emptiest packs anyway: leave {setting('min_fill')} out",
        ),
    ):
        if is_wrong:
            raise SettingsError(message)


def pack(table: LengthTable, items: Items, settings: PlanSettings, pack_flat: Pack) -> PackedTrees:
    """Pack items so that what they share is in few packs.

    Pure: no I/O.

    Args:
        table: lengths with prefixes.
        items: samples of the table.
        settings: capacity, budgets and seed.
        pack_flat: packs items that share nothing, in the order of the seed.

    Raises:
        SettingsError: the table has no prefixes.
    """
    if table.sharing is None:
        raise SettingsError(
            f"{setting('share', 'prefixes')} needs to know what samples share, and the lengths do "
            f"not say it: measure with {setting('share', 'prefixes')}"
        )
    forest, rows = forest_of(table, items, settings)

    def pack_loads(loads: Int64Array) -> PackResult[Packing]:
        sizes = loads if len(items.capacities) > 1 else loads.ravel().astype(np.int32)
        return pack_flat(replace(items, sizes=sizes), settings)

    if items.groups is None:
        bound = bound_of_trees(forest, items.capacities).packs
        forest = forest.without_crumbs()
        result = pack_forest(forest, items.capacities, pack_loads, bound=bound)
    else:
        groups = Packing(items.groups.offsets, np.arange(len(rows)))
        result = pack_loads(forest.loads(groups.offsets[:-1], groups.offsets[1:]))
        result = replace(result, packs=_leaves_of(groups, result.packs))
    outcome = replace(result.outcome, description=_described(forest, result.packs))
    segments = segments_of(forest, result.packs)
    tokens_shared = int(forest.depths[: forest.num_leaves, 0].sum() - segments.lengths.sum())
    rows = rows[segments.leaves].astype(positions_type(len(table)))
    return PackedTrees(replace(result, outcome=outcome), rows, segments, tokens_shared)


def _described(forest: Forest, packs: Packing) -> str:
    """Return words for the number of trees, and of the ones that had to be cut."""
    tree = np.cumsum(forest.gaps < 0) - 1
    pairs = tree[packs.items] * len(packs) + np.repeat(np.arange(len(packs)), packs.sizes)
    packs_of_tree = np.bincount(np.unique(pairs) // len(packs))
    num_trees = int(np.count_nonzero(np.bincount(tree) > 1))
    return f"{np.count_nonzero(packs_of_tree > 1):,} of {num_trees:,} trees in several packs"


def pack_forest(
    forest: Forest,
    capacities: Int64Array,
    pack: Callable[[Int64Array], PackResult[Packing]],
    *,
    bound: int,
) -> PackResult[Packing]:
    """Pack leaves in two ways, and return the one with fewer packs, of these the one with fewer
    tokens.

    Trees above the capacity are cut (``fragments_of``): only these, or also the ones with a short
    trunk, whose copies cost little and whose leaves fill packs. Then the emptiest packs are
    emptied.

    Args:
        forest: without crumbs; no leaf alone exceeds a capacity.
        capacities: ``int64[num_budgets]``, tokens first.
        bound: no plan has fewer packs.
        pack: packs items that share nothing, by their sizes, ``int64[num_items, num_budgets]``.

    Returns:
        Packs of leaves, ascending in each.
    """
    capacity = int(capacities[0])
    offers: list[tuple[int, int, PackResult[Packing]]] = []
    shortest = int(forest.depths[forest.num_leaves :, 0].min(initial=_NEVER))
    for cheap in (0, capacity // _CHEAP):
        if offers and (offers[0][0] <= bound * (1 + _CLOSE_ENOUGH) or shortest > cheap):
            break
        fragments, loads = fragments_of(forest, capacities, cheap=cheap)
        if offers and int(loads[:, 0].sum()) > offers[0][0] * capacity:
            break
        result = pack(loads)
        packs = _leaves_of(fragments, result.packs)
        if len(packs) > bound:
            packs = emptied(forest, packs, capacities)
        tokens = int(loads_of_trees(forest, packs)[:, 0].sum())
        offers.append((len(packs), tokens, replace(result, packs=packs, bound=bound)))
    return min(offers, key=lambda offer: offer[:2])[2]


def _leaves_of(fragments: Packing, packs: Packing) -> Packing:
    """Return packs of the leaves of fragments, ascending in each, by packs of fragments."""
    pack_of_fragment = np.empty(len(fragments), dtype=np.int64)
    pack_of_fragment[packs.items] = np.repeat(np.arange(len(packs)), packs.sizes)
    pack_of_leaf = np.empty(len(fragments.items), dtype=np.int64)
    pack_of_leaf[fragments.items] = np.repeat(pack_of_fragment, fragments.sizes)
    return packs_of(pack_of_leaf, len(packs))


def forest_of(
    table: LengthTable, items: Items, settings: PlanSettings
) -> tuple[Forest, Int64Array]:
    """Return the forest of some samples, and the row of each leaf in ``items.segments``.

    A budget that ``Prefixes.amounts`` does not have counts for each sample, as if it were not
    shared. Samples of groups share only within their group, and are side by side.

    Args:
        table: with prefixes.
        items: samples of the table, whole or without their last tokens, or groups of them.
        settings: with the budgets.
    """
    prefixes, segments = prefixes_of(table), items.segments
    ids = segments.ids()
    group = np.zeros(len(ids), dtype=np.int64)
    if items.groups is not None:
        sizes_of_groups = np.diff(items.groups.offsets)
        group[items.groups.members] = np.repeat(np.arange(len(items.groups)), sizes_of_groups)
    rows = np.lexsort((prefixes.order_index[ids], group))
    ids, lengths = ids[rows], segments.lengths[rows].astype(np.int64)
    budgets = Budgets.of(settings.usable, settings.budgets)
    sizes = budgets.sizes(table, lengths=lengths, sample_ids=ids, rounded=lengths)
    follows = np.flatnonzero(group[rows[1:]] == group[rows[:-1]]) + 1
    between = prefixes.between(ids[follows - 1], ids[follows])
    shared = np.zeros_like(sizes)
    common = prefixes.shared[between].astype(np.int64)
    # What truncation cut off is not shared.
    tokens = np.minimum(common, np.minimum(lengths[follows - 1], lengths[follows]))
    shared[follows, 0] = tokens
    # Neighbors that were cut to the same tokens are one path, which has at most the least amount of
    # any two: each still counts with its whole amount.
    is_whole = shared[:, 0] == lengths.max(initial=0)
    path = np.cumsum(~is_whole)[is_whole]
    for column, name in enumerate(budgets.names):
        if name in prefixes.amounts:
            shared[follows, column] = prefixes.amounts[name][between]
            least = np.full(len(ids), _NEVER)
            np.minimum.at(least, path, shared[is_whole, column])
            shared[is_whole, column] = least[path]
        elif name == "squares":
            shared[follows, column] = tokens**2
    return Forest.of(sizes, shared), rows

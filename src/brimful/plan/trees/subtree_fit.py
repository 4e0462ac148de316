"""Subtree best fit: trees that fit a pack stay whole, larger ones are cut from their leaves up."""

from __future__ import annotations

from bisect import bisect_left, insort

import numpy as np

from brimful.base.ragged import offsets_of, ranges
from brimful.base.typing import Int64Array
from brimful.plan.counts.counting_sort import decreasing_order
from brimful.plan.counts.histogram import Histogram
from brimful.plan.fit.best_fit_decreasing import best_fit_decreasing
from brimful.plan.packing import Packing
from brimful.plan.trees.forest import Forest
from brimful.plan.vector.pack_vectors import pack_vectors

_FEW = 200
"""Pieces of a trunk up to which they are placed one by one."""


def fragments_of(forest: Forest, capacities: Int64Array) -> tuple[Packing, Int64Array]:
    """Cut the trees that exceed a pack; the others are fragments as they are.

    At each trunk whose leaves do not fit one pack, what is below it is placed by best fit
    decreasing, in packs with the room that the path to the trunk leaves::

        capacity 10     trunk a b, and below it    c c c c   d d d   e e   f
        room 8          c c c c · d d d            e e · f
        fragments       a b and c c c c, d d d     a b and e e, f

    They go up as pieces of the next trunk.

    Pure: no I/O, no randomness.

    Args:
        forest: no leaf alone exceeds a capacity.
        capacities: ``int64[num_budgets]``.

    Returns:
        The leaves of each fragment, and the size of each, ``int64[num_fragments, num_budgets]``.

    Cost: O(n), and O(p·log p) for the p pieces of each trunk that is cut.
    """
    num_leaves, parents = forest.num_leaves, forest.parents
    num_nodes = len(parents)
    first, stop = np.arange(num_nodes), np.arange(1, num_nodes + 1)
    first[num_leaves:], stop[num_leaves:] = forest.first, forest.stop
    loads = forest.loads(first, stop)
    is_cut = np.asarray((loads > capacities).any(axis=1))
    assert not is_cut[:num_leaves].any(), "a leaf exceeds a capacity"
    # The largest subtrees that stay whole.
    whole = np.flatnonzero(~is_cut & ((parents < 0) | is_cut[parents]))
    trunks = np.flatnonzero(is_cut).tolist()
    pieces: dict[int, list[int]] = {trunk: [] for trunk in trunks}
    is_below_cut = parents[whole] >= 0
    for node, trunk in zip(
        whole[is_below_cut].tolist(), parents[whole[is_below_cut]].tolist(), strict=True
    ):
        pieces[trunk].append(node)
    further_loads: list[Int64Array] = []  # of fragments, whose numbers follow the nodes
    into: dict[int, int] = {}
    for trunk in trunks:
        members, upto, parent = pieces.pop(trunk), forest.depths[trunk], int(parents[trunk])
        sizes = np.array(
            [loads[n] if n < num_nodes else further_loads[n - num_nodes] for n in members]
        )
        sizes -= upto
        # Each branch takes the room of a fork, except the first one in a pack.
        sizes[:, 0] += [n >= num_nodes or bool(forest.is_branch[n]) for n in members]
        room = capacities - upto
        room[0] += 1
        for pack in _best_fit(sizes, room):
            load = upto + sizes[pack].sum(axis=0)
            load[0] -= bool(sizes[pack, 0].any())
            fragment = num_nodes + len(further_loads)
            further_loads.append(load)
            into.update((members[row], fragment) for row in pack)
            if parent >= 0:
                pieces[parent].append(fragment)
    # Each piece follows to the fragment that it ended in; a fragment has a larger number than its
    # pieces.
    final = np.arange(num_nodes + len(further_loads))
    for node in sorted(into, reverse=True):
        final[node] = final[into[node]]
    all_loads = np.concatenate([loads, np.array(further_loads).reshape(-1, loads.shape[1])])
    fragments, numbers = np.unique(final[whole], return_inverse=True)
    counts = (stop - first)[whole]
    order = np.argsort(numbers, kind="stable")
    leaves = ranges(first[whole[order]], counts[order])
    sizes = np.bincount(numbers, weights=counts).astype(np.int64)
    return Packing(offsets_of(sizes), leaves), all_loads[fragments]


def _best_fit(sizes: Int64Array, room: Int64Array) -> list[list[int]]:
    """Place pieces by best fit decreasing; several budgets, or many pieces, by the algorithms of
    samples.
    """
    empty = np.flatnonzero(sizes[:, 0] == 0).tolist() if sizes.shape[1] == 1 else []
    rows = np.flatnonzero(sizes[:, 0]) if empty else np.arange(len(sizes))
    packs: list[list[int]]
    if sizes.shape[1] > 1:
        packs = pack_vectors(sizes, capacities=room).packs.as_lists()
    elif len(rows) > _FEW:
        lengths = sizes[rows, 0]
        counts = Histogram.of(lengths)
        found = best_fit_decreasing(counts, capacity=int(room[0]))
        packs = [
            rows[p].tolist() for p in found.assign(decreasing_order(lengths, counts)).as_lists()
        ]
    else:
        packs = []
        rooms: list[tuple[int, int]] = []
        for row in rows[np.argsort(-sizes[rows, 0], kind="stable")].tolist():
            size = int(sizes[row, 0])
            place = bisect_left(rooms, (size, -1))
            if place == len(rooms):
                left, pack = int(room[0]), len(packs)
                packs.append([])
            else:
                left, pack = rooms.pop(place)
            packs[pack].append(row)
            insort(rooms, (left - size, pack))
    if empty:
        packs = packs or [[]]
        packs[0] += empty
    return packs

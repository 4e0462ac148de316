"""Subtree best fit: trees that fit a pack stay whole, larger ones are cut from their leaves up."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from brimful.base.compiling import compiled
from brimful.base.ragged import offsets_of, ranges
from brimful.base.typing import BoolArray, Int64Array
from brimful.plan.counts.counting_sort import decreasing_order
from brimful.plan.counts.histogram import Histogram
from brimful.plan.fit.best_fit_decreasing import best_fit_decreasing
from brimful.plan.packing import Packing
from brimful.planners.vector.pack_vectors import pack_vectors
from brimful.trees.plan.forest import Forest

_FEW = 256
"""Pieces of a trunk up to which they are placed one by one."""


class _Pieces(NamedTuple):
    """Subtrees that stay whole, by their node; a piece that others are merged to gets a number
    after all nodes. Compiled code reads and writes the arrays too.

    Each merge makes one of at least two, so there are at most twice as many pieces as nodes.
    """

    loads: Int64Array
    """``int64[2 * num_nodes, num_budgets]``: size of each piece, from the root."""
    owners: Int64Array
    """``int64[2 * num_nodes]``: the piece that each became part of, -1 for none."""
    latest: Int64Array
    """``int64[num_nodes]``: the first of the linked list of the pieces of each trunk, -1 for none."""
    earlier: Int64Array
    """``int64[2 * num_nodes]``: the next of the list."""

    @classmethod
    def empty(cls, num_nodes: int, num_budgets: int) -> _Pieces:
        """Return no pieces."""
        return cls(
            np.zeros((2 * num_nodes, num_budgets), dtype=np.int64),
            np.full(2 * num_nodes, -1, dtype=np.int64),
            np.full(num_nodes, -1, dtype=np.int64),
            np.full(2 * num_nodes, -1, dtype=np.int64),
        )

    def ends_of(self, subtrees: Int64Array) -> Int64Array:
        """Return the piece that each subtree ended in."""
        ends = subtrees
        while (moves := self.owners[ends] >= 0).any():
            ends = np.where(moves, self.owners[ends], ends)
        return ends


def fragments_of(
    forest: Forest, capacities: Int64Array, *, cheap: int = 0
) -> tuple[Packing, Int64Array]:
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
        cheap: trunks of at most this depth are cut too, into the subtrees below them.

    Returns:
        The leaves of each fragment, and the size of each, ``int64[num_fragments, num_budgets]``.

    Cost: O(n), and O(p·packs) for the p pieces of each trunk that exceeds a pack.
    """
    num_leaves, parents = forest.num_leaves, forest.parents
    num_nodes = len(parents)
    first, stop = np.arange(num_nodes), np.arange(1, num_nodes + 1)
    first[num_leaves:], stop[num_leaves:] = forest.first, forest.stop
    pieces = _Pieces.empty(num_nodes, len(capacities))
    pieces.loads[:num_nodes] = forest.loads(first, stop)
    is_large = np.asarray((pieces.loads[:num_nodes] > capacities).any(axis=1))
    assert not is_large[:num_leaves].any(), "a leaf exceeds a capacity"
    is_cut = is_large.copy()
    is_cut[num_leaves:] |= forest.depths[num_leaves:, 0] <= cheap
    # The largest subtrees that stay whole.
    subtrees = np.flatnonzero(~is_cut & ((parents < 0) | is_cut[parents]))
    if is_large.any():
        _merge_pieces(forest, capacities, subtrees, is_large, pieces)
    fragments, fragment_ids = np.unique(pieces.ends_of(subtrees), return_inverse=True)
    counts = (stop - first)[subtrees]
    order = np.argsort(fragment_ids, kind="stable")
    leaves = ranges(first[subtrees[order]], counts[order])
    sizes = np.bincount(fragment_ids, weights=counts).astype(np.int64)
    return Packing(offsets_of(sizes), leaves), pieces.loads[fragments]


def _merge_pieces(
    forest: Forest,
    capacities: Int64Array,
    subtrees: Int64Array,
    is_large: BoolArray,
    pieces: _Pieces,
) -> None:
    """Merge pieces at each large trunk, children before parents.

    Args:
        forest, capacities: see ``fragments_of``.
        subtrees: nodes that stay whole: the first pieces.
        is_large: ``bool[num_nodes]``: trunks that exceed a pack, and with them all above.
        pieces: loads of all nodes; what becomes of the subtrees is written into it.
    """
    parents, num_nodes = forest.parents, len(forest.parents)
    # A piece below a trunk that is cut and not large goes up to the first one that is.
    trunk_above = parents[subtrees]
    while (rises := (trunk_above >= 0) & ~is_large[trunk_above]).any():
        trunk_above = np.where(rises, parents[trunk_above], trunk_above)
    members_below = np.flatnonzero(trunk_above >= 0)
    order = members_below[np.argsort(trunk_above[members_below], kind="stable")]
    members, trunks = subtrees[order], trunk_above[order]
    is_last = np.append(trunks[1:] != trunks[:-1], True)
    pieces.earlier[members[1:]] = np.where(is_last[:-1], -1, members[:-1])
    pieces.latest[trunks[is_last]] = members[is_last]
    large = np.flatnonzero(is_large)
    merge = compiled(_merge_few, len(subtrees), sum_calls=True) or _merge_few
    index, num_pieces = 0, num_nodes
    while True:
        index, num_pieces = merge(
            large, index, parents, forest.depths, capacities, pieces, num_pieces
        )
        if index == len(large):
            return
        num_pieces = _merge_many(int(large[index]), forest, capacities, pieces, num_pieces)
        index += 1


def _merge_few(
    large: Int64Array,
    start: int,
    parents: Int64Array,
    depths: Int64Array,
    capacities: Int64Array,
    pieces: _Pieces,
    num_pieces: int,
) -> tuple[int, int]:
    """Merge the pieces of trunks until one has many; to be compiled.

    Returns:
        The place of this trunk in ``large``, and the number of pieces.
    """
    loads, owners, latest, earlier = pieces
    num_budgets = len(capacities)
    members = np.empty(_FEW, dtype=np.int64)
    pack_of = np.empty(_FEW, dtype=np.int64)
    rooms = np.empty((_FEW, num_budgets), dtype=np.int64)
    counts = np.empty(_FEW, dtype=np.int64)
    result_piece = np.empty(_FEW, dtype=np.int64)
    size = np.empty(num_budgets, dtype=np.int64)
    for index in range(start, len(large)):
        trunk = large[index]
        count = 0
        piece = latest[trunk]
        while piece >= 0 and count < _FEW:
            # Largest first, equal ones in the order of the list.
            slot = count
            while slot > 0 and loads[members[slot - 1], 0] < loads[piece, 0]:
                members[slot] = members[slot - 1]
                slot -= 1
            members[slot] = piece
            count += 1
            piece = earlier[piece]
        if piece >= 0:
            return index, num_pieces
        num_packs = 0
        for row in range(count):
            piece = members[row]
            for budget in range(num_budgets):
                size[budget] = loads[piece, budget] - depths[trunk, budget]
            # A branch takes the room of a fork, except the first of a pack.
            if size[0] > 0:
                size[0] += 1
            best = -1
            for pack in range(num_packs):
                fits = True
                for budget in range(num_budgets):
                    fits = fits and size[budget] <= rooms[pack, budget]
                if fits and (best < 0 or rooms[pack, 0] < rooms[best, 0]):
                    best = pack
            if best < 0:
                best = num_packs
                num_packs += 1
                for budget in range(num_budgets):
                    rooms[best, budget] = capacities[budget] - depths[trunk, budget]
                rooms[best, 0] += 1
                counts[best] = 0
            for budget in range(num_budgets):
                rooms[best, budget] -= size[budget]
            counts[best] += 1
            result_piece[best] = piece
            pack_of[row] = best
        for pack in range(num_packs):
            if counts[pack] == 1:
                continue
            result_piece[pack] = num_pieces
            for budget in range(num_budgets):
                loads[num_pieces, budget] = capacities[budget] - rooms[pack, budget]
            if rooms[pack, 0] > capacities[0] - depths[trunk, 0]:
                loads[num_pieces, 0] += 1  # no branch, and no room for a fork
            num_pieces += 1
        for row in range(count):
            if counts[pack_of[row]] > 1:
                owners[members[row]] = result_piece[pack_of[row]]
        parent = parents[trunk]
        if parent >= 0:
            for pack in range(num_packs):
                earlier[result_piece[pack]] = latest[parent]
                latest[parent] = result_piece[pack]
    return len(large), num_pieces


def _merge_many(
    trunk: int,
    forest: Forest,
    capacities: Int64Array,
    pieces: _Pieces,
    num_pieces: int,
) -> int:
    """Merge the pieces of a trunk with many by the algorithms of samples; return the number of
    pieces.
    """
    loads, owners, latest, earlier = pieces
    pieces_of_trunk = [int(latest[trunk])]
    while (piece := int(earlier[pieces_of_trunk[-1]])) >= 0:
        pieces_of_trunk.append(piece)
    members = np.array(pieces_of_trunk)
    room = capacities - forest.depths[trunk]
    sizes = loads[members] - forest.depths[trunk]
    sizes[:, 0] += sizes[:, 0] > 0
    room[0] += 1
    parent = int(forest.parents[trunk])
    for pack in _packs_of_pieces(sizes, room):
        result_piece = int(members[pack[0]])
        if len(pack) > 1:
            result_piece = num_pieces
            num_pieces += 1
            total = sizes[pack].sum(axis=0)
            total[0] -= total[0] > 0
            loads[result_piece] = forest.depths[trunk] + total
            owners[members[pack]] = result_piece
        if parent >= 0:
            earlier[result_piece], latest[parent] = latest[parent], result_piece
    return num_pieces


def _packs_of_pieces(sizes: Int64Array, room: Int64Array) -> list[list[int]]:
    if sizes.shape[1] > 1:
        return pack_vectors(sizes, capacities=room).packs.as_lists()
    tokens = sizes.ravel()
    rows = np.flatnonzero(tokens)
    lengths = tokens[rows]
    counts = Histogram.of(lengths)
    runs = best_fit_decreasing(counts, capacity=int(room[0]))
    packs = [rows[p].tolist() for p in runs.assign(decreasing_order(lengths, counts)).as_lists()]
    # Leaves that end where the trunk ends take nothing.
    packs[0] += np.flatnonzero(tokens == 0).tolist()
    return packs

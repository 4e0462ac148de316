"""Packs of a window of samples: how they are packed, and which of them leave."""

from __future__ import annotations

import numpy as np

from brimful.base.typing import AnyIntArray, BoolArray, Int64Array, Lengths
from brimful.plan.algorithms import ALGORITHMS
from brimful.plan.counts.counting_sort import decreasing_order
from brimful.plan.fit.any_fit import next_fit_upper_bound
from brimful.plan.packing import Packing


def pack_window(lengths: Lengths, slack: Int64Array, *, algorithm: str, capacity: int) -> Packing:
    """Pack positions in the window; decreasing algorithms first place the ones that might be
    due.
    """
    rule = ALGORITHMS[algorithm].window_rule
    assert rule is not None
    pack, longest_first = rule
    if not longest_first:
        return pack(lengths, capacity=capacity)
    order = decreasing_order(lengths)
    is_due = slack < next_fit_upper_bound(lengths, capacity=capacity)
    if is_due.any():
        due_rows = is_due[order]
        order = np.concatenate([order[due_rows], order[~due_rows]])
    packing = pack(lengths[order], capacity=capacity)
    return Packing(packing.offsets, order[packing.items])


def choose_packs(
    loads: Int64Array, slack: Int64Array, packing: Packing, oldest: AnyIntArray, *, full_load: int
) -> BoolArray:
    """Choose the packs that leave: full packs, the fullest until half of the segments have left,
    and due packs.
    """
    fullest_first = np.lexsort((oldest, -loads))
    num_segments = np.cumsum(packing.sizes[fullest_first])
    leaves: BoolArray = loads >= full_load
    leaves[fullest_first[: int(np.searchsorted(num_segments, -(-len(slack) // 2))) + 1]] = True
    leaves |= np.logical_or.reduceat((slack < len(packing))[packing.items], packing.offsets[:-1])
    return leaves

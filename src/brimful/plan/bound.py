"""How many packs no plan can do without."""

from __future__ import annotations

import numpy as np

from brimful.plan.histogram import Histogram

__all__ = ["lower_bound"]


def lower_bound(items: Histogram, *, capacity: int) -> int:
    """A number of packs that no plan of these items can go below.

    The bound L2 of Martello and Toth (1990): for each threshold k up to half the capacity, items longer than
    ``capacity - k`` need a pack each, so do those longer than half, and what the rest of at least k does not find
    room for beside them needs more. Never below total ÷ capacity.

    >>> lower_bound(Histogram.of(np.array([5, 5, 5])), capacity=8)  # 15 would fit two packs of 8; three items do not
    3
    """
    if len(items.lengths) == 0:
        return 0
    number = np.concatenate([[0], np.cumsum(items.counts)])
    amount = np.concatenate([[0], np.cumsum(items.lengths * items.counts)])
    half = capacity // 2
    k = np.concatenate([[0], items.lengths[items.lengths <= half]])  # the bound changes at lengths only
    below_k = np.searchsorted(items.lengths, k, side="left")
    upto_half = int(np.searchsorted(items.lengths, half, side="right"))
    upto_rest = np.searchsorted(items.lengths, capacity - k, side="right")
    alone = number[-1] - number[upto_rest]
    large = number[upto_rest] - number[upto_half]
    beside = large * capacity - (amount[upto_rest] - amount[upto_half])
    small = amount[upto_half] - amount[below_k]
    more = np.maximum(0, -((beside - small) // capacity))
    return int(max((alone + large + more).max(), -(-int(amount[-1]) // capacity)))

"""How many packs no plan can do without."""

from __future__ import annotations

import numpy as np

from brimful.typing import Int64Array

__all__ = ["lower_bound"]


def lower_bound(counts: Int64Array, *, capacity: int) -> int:
    """A number of packs that no plan of these items can go below.

    The bound L2 of Martello and Toth (1990): for each threshold k up to half the capacity, items longer than
    ``capacity - k`` need a pack each, so do those longer than half, and what the rest does not find room for
    beside them needs more. Never below total ÷ capacity.

    >>> counts = np.bincount([5, 5, 5], minlength=9)
    >>> lower_bound(counts, capacity=8)  # 15 tokens would fit into two packs of 8; three items of 5 do not
    3
    """
    number = np.concatenate([[0], np.cumsum(counts)])  # number[i]: items shorter than i
    amount = np.concatenate([[0], np.cumsum(counts * np.arange(len(counts)))])
    k = np.arange(capacity // 2 + 1)
    alone = number[-1] - number[capacity - k + 1]
    half = capacity // 2
    large = number[capacity - k + 1] - number[half + 1]
    large_amount = amount[capacity - k + 1] - amount[half + 1]
    small_amount = amount[half + 1] - amount[k]
    beside = large * capacity - large_amount
    more = np.maximum(0, -((beside - small_amount) // capacity))
    return int(max((alone + large + more).max(), -(-int(amount[-1]) // capacity)))

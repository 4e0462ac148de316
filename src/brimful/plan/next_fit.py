"""Next fit: samples in their order, a new pack when the next does not fit."""

from __future__ import annotations

import numpy as np

from brimful.plan.packing import Packing
from brimful.typing import AnyIntArray

__all__ = ["next_fit"]


def next_fit(lengths: AnyIntArray, *, capacity: int) -> Packing:
    """Keep one pack open; close it when the next item does not fit. The order of the items is kept.

    ::

        capacity 7     3        3        5        6        1        1
        pack 0       3 ------ 3 3
        pack 1                         5
        pack 2                                  6 ------ 6 1               fill 19/28
        pack 3                                                    1

    Pure: no I/O, no randomness.

    Args:
        lengths: ``int[num_items]``, each in [1, capacity].
        capacity: most that a pack holds.

    Cost: O(packs·log items). Source: Johnson (1973).
    """
    ends = np.cumsum(lengths, dtype=np.int64)
    offsets = [0]
    filled = 0
    total = len(lengths)
    while offsets[-1] < total:
        stop = int(np.searchsorted(ends, filled + capacity, side="right"))
        filled = int(ends[stop - 1])
        offsets.append(stop)
    return Packing(np.array(offsets, dtype=np.int64), np.arange(total, dtype=np.int32 if total < 2**31 else np.int64))

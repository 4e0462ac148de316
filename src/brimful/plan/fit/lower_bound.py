"""Lower bound on the number of packs."""

import numpy as np

from brimful.plan.counts.histogram import Histogram


def lower_bound(items: Histogram, *, capacity: int) -> int:
    """Return a lower bound on the number of packs of any plan of these items.

    The bound L2 of Martello and Toth (1990). For a threshold k up to half the capacity C, let

    * N1 be the items longer than C - k: no item of k or more tokens fits into their packs,
    * N2 the other items longer than C / 2: one pack each,
    * N3 the items from k to C / 2: they fill the room that N2 leaves, and the rest needs further packs.

    Then L(k) = |N1| + |N2| + max(0, ⌈(tokens(N3) - room left by N2) / C⌉), and the bound is the maximum over k, never
    below tokens ÷ C.

    >>> lower_bound(Histogram.of(np.array([5, 5, 5])), capacity=8)  # 15 would fit two packs of 8; three items do not
    3
    """
    if len(items.lengths) == 0:
        return 0
    counts = np.append(0, np.cumsum(items.counts))  # number of items shorter than each length, and of all items
    totals = np.append(0, np.cumsum(items.lengths * items.counts))  # their tokens
    half = capacity // 2
    # The bound changes only at thresholds that are lengths.
    up_to_half = int(np.searchsorted(items.lengths, half, side="right"))
    threshold = np.concatenate([[0], items.lengths[:up_to_half]])
    below = np.arange(-1, up_to_half)
    below[0] = 0
    # Searching in ascending order is several times as fast: each search begins at the result of the previous one.
    up_to_large = np.searchsorted(items.lengths, (capacity - threshold)[::-1], side="right")[::-1]
    num_alone = counts[-1] - counts[up_to_large]
    num_large = counts[up_to_large] - counts[up_to_half]
    room_beside_large = num_large * capacity - (totals[up_to_large] - totals[up_to_half])
    small_tokens = totals[up_to_half] - totals[below]
    num_small = np.maximum(0, -((room_beside_large - small_tokens) // capacity))
    return int((num_alone + num_large + num_small).max())

"""Items to search packs for, and the fewest packs by trying all groupings."""

from functools import cache

import numpy as np

from brimful.plan.counts.histogram import Histogram


def histogram(counts):
    keys = sorted(counts)
    return Histogram(np.array(keys, dtype=np.int64), np.array([counts[key] for key in keys], dtype=np.int64))


def fewest_packs(lengths, capacity):
    """By trying all groupings: of each set of items, the fewest packs and the least filled last pack."""

    @cache
    def best(items):
        if items == 0:
            return 0, capacity
        return min(
            (packs, load + length) if load + length <= capacity else (packs + 1, length)
            for at, length in enumerate(lengths)
            if items >> at & 1
            for packs, load in [best(items & ~(1 << at))]
        )

    return best((1 << len(lengths)) - 1)[0]


HARD_FOR_DECREASING = {51: 6, 27: 6, 26: 6, 23: 12}
"""Johnson's case for 11/9: 51 + 26 + 23 and 27 + 27 + 23 + 23 are 100, decreasing algorithms see 51 + 27 first."""


def gap(result):
    """Packs above the bound; 0 means optimal."""
    return result.packs.num_packs - result.bound

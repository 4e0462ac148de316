"""Pairs of items in one pack that two packings of the same items have in common."""

import numpy as np

from brimful.plan.packing import Packing

__all__ = ["co_packing_overlap"]


def co_packing_overlap(first: Packing, second: Packing) -> float:
    """Return the share of pairs that share a pack in one packing and also do in another; 0 without pairs.

    Two epochs of the same packs give 1. Chance gives about segments of a pack ÷ all segments.

    >>> packs = Packing(np.array([0, 3, 5]), np.array([0, 1, 2, 3, 4]))
    >>> co_packing_overlap(packs, Packing(np.array([0, 2, 5]), np.array([0, 1, 2, 3, 4])))
    0.5
    """
    num_items = max(int(first.items.max(initial=-1)), int(second.items.max(initial=-1))) + 1
    # The pack of each item in the second packing; a missing item gets a pack of its own there.
    pack_of = len(second) + np.arange(num_items)
    pack_of[second.items] = np.repeat(np.arange(len(second)), second.sizes)
    num_pairs = int((first.sizes * (first.sizes - 1)).sum())
    packs = np.repeat(np.arange(len(first)), first.sizes)
    _, together = np.unique(packs * (len(second) + num_items) + pack_of[first.items], return_counts=True)
    return int((together * (together - 1)).sum()) / num_pairs if num_pairs else 0.0

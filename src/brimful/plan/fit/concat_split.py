"""Concat and split: all samples concatenated, cut where a pack is full."""

import numpy as np

from brimful.base.ragged import offsets_of, positions_type
from brimful.base.typing import AnyIntArray
from brimful.plan.packing import Packing


def concat_split(lengths: AnyIntArray, *, capacity: int) -> Packing:
    """Pack the segments of a stream of tokens that was cut every ``capacity`` tokens (``policies.overflow.cut_stream``).

    ::

        capacity 4     5        2        1        6
        stream       00000    11       2        333333
        pack 0       0000
        pack 1           0    11       2
        pack 2                                  3333
        pack 3                                      33       fill 14/16

    Every pack but the last is exactly full. For documents, not for chats: a sample continues in the next pack without
    its earlier tokens. Every token is packed once, in order, however long the samples are.

    Pure: no I/O, no randomness.

    Args:
        lengths: ``int[num_segments]``, in the order of the stream; no segment crosses the end of a pack.
        capacity: tokens of a pack, from 1 to 2**31 - 1.

    Returns:
        Packs and segments in the order of the stream.

    Cost: O(n), in NumPy. Source: Brown et al. (2020) train on such sequences; Ding et al., "Fewer truncations improve
    language modeling" (2024), call it concatenate and split, and study the effect of the cuts.

    >>> concat_split(np.array([4, 1, 2, 1, 4, 2]), capacity=4).as_lists()
    [[0], [1, 2, 3], [4], [5]]
    """
    last_tokens = np.cumsum(lengths, dtype=np.int64) - 1
    offsets = offsets_of(np.bincount(last_tokens // capacity))
    return Packing(offsets, np.arange(len(lengths), dtype=positions_type(len(lengths))))

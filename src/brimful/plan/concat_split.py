"""Concat and split: all samples one behind the other, cut where a pack is full."""

from __future__ import annotations

import numpy as np

from brimful.plan.overflow import Pieces
from brimful.plan.packing import Packing
from brimful.typing import AnyIntArray

__all__ = ["concat_split"]


def concat_split(lengths: AnyIntArray, *, capacity: int) -> tuple[Pieces, Packing]:
    """Cut the stream of all tokens every ``capacity`` tokens. Every pack but the last is exactly full.

    ::

        capacity 4     5        2        1        6
        stream       00000    11       2        333333
        pack 0       0000
        pack 1           0    11       2
        pack 2                                  3333
        pack 3                                      33       fill 14/16

    For documents, not for chats: a sample goes on in the next pack without what came before. Every token comes out
    once, in order, however long the samples are.

    Pure: no I/O, no randomness.

    Args:
        lengths: ``int[num_samples]``; any length from 1 on; samples of negative length (rejected) are left out.
        capacity: what a pack holds, from 1 to 2**31 - 1.

    Returns:
        The pieces in the order of the stream, each with its sample and where it begins there, and the packs, which
        hold them in turn.

    Cost: O(n + pieces), in NumPy. Source: Brown et al. (2020) train on such sequences; Ding et al., "Fewer truncations
    improve language modeling" (2024), call it concatenate and split, and say what the cuts do.

    >>> pieces, packing = concat_split(np.array([5, 2, 1, 6]), capacity=4)
    >>> pieces.sample_ids.tolist(), pieces.starts.tolist(), pieces.lengths.tolist()
    ([0, 0, 1, 2, 3, 3], [0, 4, 0, 0, 0, 4], [4, 1, 2, 1, 4, 2])
    >>> packing.as_lists()
    [[0], [1, 2, 3], [4], [5]]
    """
    ids = np.flatnonzero(np.asarray(lengths) > 0)
    ends = np.cumsum(lengths[ids], dtype=np.int64)
    begins = ends - lengths[ids]
    first_pack = begins // capacity
    parts = (ends - 1) // capacity - first_pack + 1
    # Pieces are numbered by the pack they are in: each sample has one in each pack from its first on.
    pack = np.arange(int(parts.sum())) + np.repeat(first_pack - (np.cumsum(parts) - parts), parts)
    begin = np.repeat(begins, parts)
    starts = np.maximum(pack * capacity - begin, 0)
    stops = np.minimum((pack + 1) * capacity, np.repeat(ends, parts)) - begin
    pieces = Pieces(
        lengths=(stops - starts).astype(np.int32),
        sample_ids=np.repeat(ids, parts),
        starts=starts.astype(np.int32),
        dropped=np.empty(0, dtype=np.int64),
    )
    offsets = np.zeros(int(pack[-1]) + 2 if len(pack) else 1, dtype=np.int64)
    np.cumsum(np.bincount(pack), out=offsets[1:])
    return pieces, Packing(offsets, np.arange(len(pack), dtype=np.int32 if len(pack) < 2**31 else np.int64))

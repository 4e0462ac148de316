"""Rules of segments of trees in depth-first order: rows of their parents, ends of samples."""

from __future__ import annotations

import numpy as np

from brimful.base.typing import AnyIntArray, BoolArray, Int64Array


def segments_above(parents: AnyIntArray, offsets: AnyIntArray) -> Int64Array:
    """Return the row of the segment that each segment of several packs continues, -1 for none:
    ``int64[num_segments]``.

    Args:
        parents: ``int[num_segments]``, counted from the first segment of the pack; -1 for a root.
        offsets: ``int64[num_packs + 1]``, the segments of each pack.

    >>> segments_above(np.array([-1, 0, -1, 0, 1]), np.array([0, 2, 5])).tolist()
    [-1, 0, -1, 2, 3]
    """
    begins = np.repeat(offsets[:-1], np.diff(offsets))
    return np.where(parents >= 0, begins + parents, -1)


def ends_sample(parents: AnyIntArray, sample_ids: AnyIntArray, lengths: AnyIntArray) -> BoolArray:
    """Return whether a sample ends with each segment: ``bool[num_segments]``.

    A segment has the id of the sample that ends with it. If none does, it has the id of its first
    child, which is the next segment.

    Args:
        parents: the row of the segment that each continues, -1 for a root.
        sample_ids, lengths: of each segment, in depth-first order.

    >>> ends_sample(np.array([-1, 0, 0]), np.array([7, 7, 3]), np.array([4, 2, 3])).tolist()
    [False, True, True]
    """
    is_end = np.ones(len(parents), dtype=np.bool_)
    next_is_child = parents[1:] == np.arange(len(parents) - 1)
    is_end[:-1] = ~(next_is_child & (sample_ids[1:] == sample_ids[:-1]) & (lengths[1:] > 0))
    return is_end

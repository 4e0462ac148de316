"""The stream of all tokens, cut into the segments of full packs."""

import numpy as np

from brimful.plan.policies.overflow import Overflow, Segments, apply_overflow
from brimful.ragged import ranges
from brimful.typing import Lengths


def cut_stream(lengths: Lengths, *, capacity: int, policy: Overflow) -> Segments:
    """Cut the stream of all tokens every ``capacity`` tokens.

    Args:
        lengths: ``int[num_samples]``; samples of negative length (rejected) are left out.
        capacity: tokens of a pack, from 1 to 2**31 - 1.
        policy: first applied to longer samples; ``split`` keeps every token of every sample.

    Returns:
        Segments in the order of the stream, each within one pack.

    >>> segments = cut_stream(np.array([5, 2, 1, 6]), capacity=4, policy=Overflow.SPLIT)
    >>> segments.sample_ids.tolist(), segments.starts.tolist(), segments.lengths.tolist()
    ([0, 0, 1, 2, 3, 3], [0, 4, 0, 0, 0, 4], [4, 1, 2, 1, 4, 2])
    """
    if policy is Overflow.SPLIT:
        ids = np.flatnonzero(lengths > 0)
        samples = Segments(lengths[ids], ids, None, np.empty(0, dtype=np.int64))
    else:
        samples = apply_overflow(lengths, capacity=capacity, policy=policy)
    ends = np.cumsum(samples.lengths, dtype=np.int64)
    begins = ends - samples.lengths
    first_pack = begins // capacity
    packs = (ends - 1) // capacity - first_pack + 1
    # A sample has one segment in each pack that it reaches into.
    pack = ranges(first_pack, packs)
    begin, end = np.repeat(begins, packs), np.repeat(ends, packs)
    starts = np.maximum(pack * capacity - begin, 0)
    stops = np.minimum((pack + 1) * capacity, end) - begin
    sample_starts = 0 if samples.starts is None else np.repeat(samples.starts, packs)
    return Segments(
        lengths=(stops - starts).astype(np.int32),
        sample_ids=np.repeat(samples.ids(), packs),
        starts=(starts + sample_starts).astype(np.int32),
        dropped_ids=samples.dropped_ids,
    )

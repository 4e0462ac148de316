"""Segments of both samples of each row of preferences or KTO in a packed batch."""

from collections.abc import Sequence

import numpy as np

from brimful.base.typing import AnyIntArray, Int64Array
from brimful.errors import CollateError

_FIX = "its packs were planned without their groups, or a batch takes samples apart"


def pair_segments(sample_ids: AnyIntArray | Sequence[int]) -> Int64Array:
    """Return the segments of each pair: ``int64[num_pairs, 2]``, the even sample first, in order of the even samples.

    Row ``n`` of a source is samples ``2n`` and ``2n + 1``: the chosen and the rejected answer of preferences; an answer
    and its mismatch of KTO, the answer first if it is desirable.

    Pure: no I/O.

    Args:
        sample_ids: ``int64[num_segments]``, sample of each segment: ``PackedBatch.sample_ids``.

    Raises:
        CollateError: a sample without its mate, or a sample that occurs twice; names the sample.

    >>> pair_segments([6, 7, 3, 2]).tolist()
    [[0, 1], [3, 2]]
    """
    ids = np.array(sample_ids, dtype=np.int64)
    # An empty place has no samples and no targets: its segments are paired in their order.
    num_empty = int(np.count_nonzero(ids < 0))
    ids[ids < 0] = np.arange(num_empty) - 2 * num_empty
    chosen = np.flatnonzero(ids % 2 == 0)
    order = np.argsort(ids, kind="stable")
    ordered = ids[order]
    twice = np.flatnonzero(ordered[1:] == ordered[:-1])
    if len(twice):
        raise CollateError(
            f"sample {int(ordered[twice[0]])} is in this micro-batch twice, and a row has each of its samples once: {_FIX}"
        )
    mates = ids ^ 1
    is_alone = ~np.isin(mates, ids)
    if is_alone.any():
        segment = int(np.argmax(is_alone))
        raise CollateError(
            f"sample {int(ids[segment])} is in a micro-batch without sample {int(mates[segment])}, the other one of row "
            f"{int(ids[segment]) // 2} of preferences or KTO: {_FIX}"
        )
    rejected = order[np.searchsorted(ordered, ids[chosen] + 1)]
    return np.stack([chosen, rejected], axis=1).astype(np.int64)

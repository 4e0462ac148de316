"""Where tokens of a batch lie. Boundaries are written here, once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from brimful.collate.batch import PackedBatch
from brimful.errors import CollateError
from brimful.shards import Pack
from brimful.typing import IGNORE_INDEX

__all__ = ["lay_out", "segment_index"]


def lay_out(packs: Sequence[Pack], *, pad_to: int | None, pad_token_id: int) -> PackedBatch:
    """Flatten packs into one row and, if asked, fill it up to a fixed length.

    ::

        packs         a a a a | b b          pad_to 8
        input_ids     a a a a   b b   0 0
        position_ids  0 1 2 3   0 1   0 1
        cu_seqlens    0         4     6   8        the padding is a segment of its own

    The packs are not changed.

    Args:
        packs: at least one.
        pad_to: length of the row; None for as long as the packs are.
        pad_token_id: what stands in the padding.

    Raises:
        CollateError: no packs, or ``pad_to`` is less than they hold.
    """
    if not packs:
        raise CollateError("a batch needs at least one pack and got none")
    total = sum(len(pack.input_ids) for pack in packs)
    size = total if pad_to is None else pad_to
    if size < total:
        names = ", ".join(str(sample_id) for pack in packs for sample_id in pack.sample_ids[:3].tolist())
        raise CollateError(
            f"pad_to is {size:,} and the packs hold {total:,} tokens (samples {names}…): raise pad_to to the "
            f"capacity of the plan times the packs of a micro-batch"
        )
    segments = sum(len(pack.sample_ids) for pack in packs)
    boundaries = np.empty(segments + 1 + (size > total), dtype=np.int32)
    input_ids = np.empty(size, dtype=np.int64)
    labels = np.empty(size, dtype=np.int64)
    at = place = 0
    for pack in packs:
        stop = at + len(pack.input_ids)
        input_ids[at:stop] = pack.input_ids
        labels[at:stop] = IGNORE_INDEX
        np.copyto(labels[at:stop], pack.input_ids, where=pack.loss_mask)
        count = len(pack.sample_ids)
        np.add(pack.cu_seqlens[:-1], at, out=boundaries[place : place + count])
        at, place = stop, place + count
    boundaries[place] = total
    if size > total:
        boundaries[place + 1] = size
        input_ids[total:] = pad_token_id
        labels[total:] = IGNORE_INDEX
    # The first token of a segment has nothing before it that may predict it, whatever the pack says.
    labels[boundaries[: place + 1][boundaries[: place + 1] < size]] = IGNORE_INDEX
    position_ids = np.arange(size, dtype=np.int64)
    position_ids -= np.repeat(boundaries[:-1], boundaries[1:] - boundaries[:-1])
    return PackedBatch(
        input_ids=input_ids,
        labels=labels,
        position_ids=position_ids,
        cu_seqlens=boundaries,
        num_segments=segments,
        sample_ids=packs[0].sample_ids if len(packs) == 1 else np.concatenate([pack.sample_ids for pack in packs]),
        num_loss_tokens=int(np.count_nonzero(labels != IGNORE_INDEX)),
    )


def segment_index(batch: PackedBatch) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """``int32[T]``: number of the segment that each token belongs to; the padding has a number of its own."""
    lengths = batch.lengths
    return np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)

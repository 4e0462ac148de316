"""Many packs as flat columns: the form in which a shard is built."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from brimful.shards.pack import Pack
from brimful.typing import Lengths, LossMask, Offsets, SampleIds, TokenIds

__all__ = ["PackRows"]


@dataclass(frozen=True)
class PackRows:
    """Packs one behind the other.

    Attributes:
        input_ids: ``int32[num_tokens]`` of all packs.
        loss_mask: ``bool[num_tokens]``; false on the first token of every segment.
        lengths: ``int32[num_segments]``.
        sample_ids: ``int64[num_segments]``.
        starts: ``int32[num_segments]``.
        segments: ``int64[num_packs + 1]``, first segment of each pack, and the end.
        tokens: ``int64[num_packs + 1]``, first token of each pack, and the end.
    """

    input_ids: TokenIds
    loss_mask: LossMask
    lengths: Lengths
    sample_ids: SampleIds
    starts: Lengths
    segments: Offsets
    tokens: Offsets

    @classmethod
    def of_segments(
        cls,
        input_ids: TokenIds,
        loss_mask: LossMask,
        lengths: Lengths,
        sample_ids: SampleIds,
        starts: Lengths,
        segments: Offsets,
    ) -> PackRows:
        """From the segments in their order; takes the label of the first token of each away, in place.

        >>> rows = PackRows.of_segments(np.array([5, 6, 7], np.int32), np.ones(3, bool), np.array([2, 1], np.int32),
        ...                             np.array([4, 2]), np.zeros(2, np.int32), np.array([0, 2]))
        >>> rows.loss_mask.tolist(), rows.tokens.tolist()
        ([False, True, False], [0, 3])
        """
        ends = np.zeros(len(lengths) + 1, dtype=np.int64)
        np.cumsum(lengths, out=ends[1:])
        assert ends[-1] == len(input_ids)
        loss_mask[ends[:-1]] = False
        return cls(input_ids, loss_mask, lengths, sample_ids, starts, segments, ends[segments])

    @classmethod
    def of_packs(cls, packs: Sequence[Pack]) -> PackRows:
        """From packs in memory."""
        return cls.of_segments(
            np.concatenate([pack.input_ids for pack in packs]),
            np.concatenate([pack.loss_mask for pack in packs]),
            np.concatenate([np.diff(pack.cu_seqlens) for pack in packs]),
            np.concatenate([pack.sample_ids for pack in packs]),
            np.concatenate([pack.starts for pack in packs]),
            np.cumsum([0, *(pack.num_segments for pack in packs)]),
        )

    def __len__(self) -> int:
        return len(self.segments) - 1

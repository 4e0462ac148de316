"""Many packs as flat columns: the form in which a shard is built."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from brimful.ragged import offsets_of
from brimful.typing import Lengths, LossMask, Offsets, SampleIds, TokenIds


@dataclass(frozen=True)
class PackRows:
    """Packs one behind the other. Building one clears the loss mask on the first token of every segment, in place.

    Attributes:
        input_ids: ``int32[num_tokens]`` of all packs.
        loss_mask: ``bool[num_tokens]``; false on the first token of every segment, which nothing may predict.
        lengths: ``int32[num_segments]``.
        sample_ids: ``int64[num_segments]``.
        starts: ``int32[num_segments]``.
        segments: ``int64[num_packs + 1]``, first segment of each pack, and the end.

    >>> import numpy as np
    >>> rows = PackRows(np.array([5, 6, 7], np.int32), np.ones(3, bool), np.array([2, 1], np.int32),
    ...                 np.array([4, 2]), np.zeros(2, np.int32), np.array([0, 2]))
    >>> rows.loss_mask.tolist(), rows.tokens.tolist()
    ([False, True, False], [0, 3])
    """

    input_ids: TokenIds
    loss_mask: LossMask
    lengths: Lengths
    sample_ids: SampleIds
    starts: Lengths
    segments: Offsets

    def __post_init__(self) -> None:
        assert self._token_offsets[-1] == len(self.input_ids)
        # A token is predicted from those before it in its segment, and the first has none.
        self.loss_mask[self._token_offsets[:-1]] = False

    @cached_property
    def _token_offsets(self) -> Offsets:
        """``int64[num_segments + 1]``, first token of each segment, and the end."""
        return offsets_of(self.lengths)

    @property
    def tokens(self) -> Offsets:
        """``int64[num_packs + 1]``, first token of each pack, and the end."""
        return self._token_offsets[self.segments]

    def __len__(self) -> int:
        return len(self.segments) - 1

"""One batch, before anybody's dialect: NumPy arrays, boundaries in one place."""

from __future__ import annotations

from dataclasses import dataclass

from brimful.typing import CuSeqlens, Int32Array, Int64Array, Labels, SampleIds

__all__ = ["PackedBatch"]


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """Packs flattened into one row of T tokens.

    Attributes:
        input_ids: ``int64[T]``, padding tokens at the end.
        labels: ``int64[T]``, not shifted; ``IGNORE_INDEX`` on padding and on the first token of every segment.
        position_ids: ``int64[T]``, from 0 in each segment, and in the padding.
        cu_seqlens: ``int32[S + 1]``: the only home of boundaries. The padding is one explicit last segment.
        num_segments: real segments; ``S`` is one more where there is padding.
        sample_ids: ``int64[num_segments]``.
        num_loss_tokens: targets in the batch.
    """

    input_ids: Int64Array
    labels: Labels
    position_ids: Int64Array
    cu_seqlens: CuSeqlens
    num_segments: int
    sample_ids: SampleIds
    num_loss_tokens: int

    @property
    def lengths(self) -> Int32Array:
        """``int32[S]``: tokens of each segment, the padding included."""
        return self.cu_seqlens[1:] - self.cu_seqlens[:-1]

    @property
    def max_seqlen(self) -> int:
        """Longest segment, the padding included."""
        return int(self.lengths.max())

    @property
    def num_padding(self) -> int:
        """Padding tokens."""
        return int(self.cu_seqlens[-1] - self.cu_seqlens[self.num_segments])

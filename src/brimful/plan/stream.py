"""What a planner of streams gives: packs as they leave, and the account until now."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np

from brimful.typing import Lengths, Offsets, SampleIds

__all__ = ["StreamLedger", "StreamPacks"]


@dataclass(frozen=True)
class StreamPacks:
    """Packs that left the planner, in order: pack ``i`` is the segments ``offsets[i] … offsets[i + 1] - 1``.

    Attributes:
        offsets: ``int64[num_packs + 1]``.
        sample_ids: ``int64[num_segments]``, as they were given to ``add``.
        starts: ``int32[num_segments]``, first token of the sample in the segment; 0 unless cut.
        lengths: ``int32[num_segments]``, tokens.
    """

    offsets: Offsets
    sample_ids: SampleIds
    starts: Lengths
    lengths: Lengths

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __iter__(self) -> Iterator[tuple[SampleIds, Lengths, Lengths]]:
        """Of each pack: sample ids, starts, lengths."""
        for a, b in zip(self.offsets[:-1].tolist(), self.offsets[1:].tolist(), strict=True):
            yield self.sample_ids[a:b], self.starts[a:b], self.lengths[a:b]

    def as_lists(self) -> list[list[int]]:
        """Sample ids of each pack, for small examples."""
        return [sample_ids.tolist() for sample_ids, _, _ in self]

    @classmethod
    def of_parts(cls, parts: list[StreamPacks]) -> StreamPacks:
        """One behind the other."""
        offsets = np.zeros(1 + sum(len(part) for part in parts), dtype=np.int64)
        np.cumsum(np.concatenate([[0], *(np.diff(part.offsets) for part in parts)])[1:], out=offsets[1:])
        return cls(
            offsets,
            np.concatenate([np.empty(0, dtype=np.int64), *(part.sample_ids for part in parts)]),
            np.concatenate([np.empty(0, dtype=np.int32), *(part.starts for part in parts)]),
            np.concatenate([np.empty(0, dtype=np.int32), *(part.lengths for part in parts)]),
        )


@dataclass(frozen=True)
class StreamLedger:
    """Where every sample and token of a stream went until now: in = emitted + waiting + what the policy cost.

    Segments are samples, or the pieces of a sample that was split.
    """

    samples_in: int = 0
    tokens_in: int = 0
    samples_rejected: int = 0
    samples_dropped: int = 0
    tokens_dropped: int = 0
    samples_truncated: int = 0
    tokens_truncated: int = 0
    samples_split: int = 0
    segments: int = 0
    packs_emitted: int = 0
    segments_emitted: int = 0
    tokens_emitted: int = 0
    segments_waiting: int = 0
    tokens_waiting: int = 0

    def __post_init__(self) -> None:
        tokens = self.tokens_emitted + self.tokens_waiting + self.tokens_dropped + self.tokens_truncated
        assert tokens == self.tokens_in, f"{tokens} tokens accounted for, {self.tokens_in} came in"
        segments = self.segments_emitted + self.segments_waiting
        assert segments == self.segments, f"{segments} segments accounted for, {self.segments} came in"
        samples = self.samples_rejected + self.samples_dropped + self.segments
        assert self.samples_split or samples == self.samples_in, f"{samples} samples of {self.samples_in}"

    def as_dict(self) -> dict[str, int]:
        """For JSON."""
        return asdict(self)

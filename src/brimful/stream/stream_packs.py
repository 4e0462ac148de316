"""Packs that left a planner of a stream, and the account of all samples so far."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np

from brimful.base.ragged import offsets_of
from brimful.base.typing import Lengths, Offsets, SampleIds


@dataclass(frozen=True)
class StreamPacks:
    """Packs that left the planner, in order: pack ``i`` has the segments
    ``offsets[i] … offsets[i + 1] - 1``.

    Attributes:
        offsets: ``int64[num_packs + 1]``.
        sample_ids: ``int64[num_segments]``, as given to ``add``.
        starts: ``int32[num_segments]``, first token of the sample in the segment; 0 unless cut. In
            trees the depth of the segment.
        lengths: ``int32[num_segments]``, tokens.
        parents: ``int32[num_segments]``, an earlier segment, counted from the first of the pack, or
            -1, as in a ``Plan``; None without trees.
    """

    offsets: Offsets
    sample_ids: SampleIds
    starts: Lengths
    lengths: Lengths
    parents: Lengths | None = None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __iter__(self) -> Iterator[tuple[SampleIds, Lengths, Lengths]]:
        """Yield sample ids, starts and lengths of each pack."""
        for first, end in zip(self.offsets[:-1].tolist(), self.offsets[1:].tolist(), strict=True):
            yield self.sample_ids[first:end], self.starts[first:end], self.lengths[first:end]

    def as_lists(self) -> list[list[int]]:
        """Return the sample ids of each pack, for small examples."""
        return [sample_ids.tolist() for sample_ids, _, _ in self]

    @classmethod
    def joined(cls, groups: list[StreamPacks]) -> StreamPacks:
        """Concatenate the packs of several parts."""
        return cls(
            offsets_of(
                np.concatenate(
                    [np.empty(0, dtype=np.int64), *(np.diff(group.offsets) for group in groups)]
                )
            ),
            np.concatenate([np.empty(0, dtype=np.int64), *(group.sample_ids for group in groups)]),
            np.concatenate([np.empty(0, dtype=np.int32), *(group.starts for group in groups)]),
            np.concatenate([np.empty(0, dtype=np.int32), *(group.lengths for group in groups)]),
            np.concatenate([group.parents for group in groups if group.parents is not None])
            if any(group.parents is not None for group in groups)
            else None,
        )


@dataclass(frozen=True)
class StreamLedger:
    """Account of a stream so far: in = emitted + waiting + losses to the overflow policy.

    Segments are samples, or the pieces of a sample that was split. In trees a shared token is
    emitted once, and ``tokens_shared`` are the others.
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
    tokens_shared: int = 0

    def __post_init__(self) -> None:
        tokens = (
            self.tokens_emitted + self.tokens_waiting + self.tokens_dropped + self.tokens_truncated
        ) + self.tokens_shared
        assert tokens == self.tokens_in, f"{tokens} tokens accounted for, {self.tokens_in} came in"
        segments = self.segments_emitted + self.segments_waiting
        assert segments == self.segments, (
            f"{segments} segments accounted for, {self.segments} came in"
        )
        samples = self.samples_rejected + self.samples_dropped + self.segments
        assert self.samples_split or samples == self.samples_in, (
            f"{samples} samples of {self.samples_in}"
        )

    def as_dict(self) -> dict[str, int]:
        """Return the account for JSON; shared tokens only if there are any."""
        record = asdict(self)
        if not self.tokens_shared:
            del record["tokens_shared"]
        return record

"""Targets of the loss in each sample, and the number of them that remain when a sample is cut.

The first token of a segment is not a target, even in the middle of a sample: no token before it could
predict it. So a document of ``n`` tokens has ``n - 1``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from brimful.base.ragged import offsets_of, ranges
from brimful.base.tables import Ragged
from brimful.base.typing import AnyIntArray, Int32Array, Int64Array, Lengths, LossMask

_ROWS_AT_ONCE = 1 << 16
"""Rows whose targets are counted together: the temporary memory is some megabytes."""


class Targets:
    """Targets of all samples, as runs of tokens.

    Args:
        counts: ``int32[num_samples]``, targets of each sample when packed whole.
        runs: ``int32``; row ``i`` is ``[start, end, start, end, …]`` of sample ``i``, ascending. None: every token is a
            target.

    >>> masks = [np.array([False, True, True, False, True]), np.array([True, True, True]), np.array([False, False])]
    >>> masks = Ragged(np.concatenate(masks), offsets_of([5, 3, 2]))
    >>> targets = Targets.of_runs(runs_of_masks(masks))
    >>> targets.counts.tolist()
    [3, 2, 0]
    >>> targets.within(np.array([0, 0]), np.array([0, 2]), np.array([2, 3])).tolist()  # 0 1 | 2 3 4
    [1, 1]
    """

    def __init__(self, counts: Int32Array, runs: Ragged | None) -> None:
        self.counts = counts
        self.runs = runs

    @classmethod
    def of_all_tokens(cls, tokens: Lengths) -> Targets:
        """Return the targets of samples in which every token is a target.

        Args:
            tokens: ``int32[num_samples]``, negative for rejected samples, which have none.
        """
        return cls(np.maximum(tokens - 1, 0), None)

    @classmethod
    def of_runs(cls, runs: Ragged) -> Targets:
        """Count the targets in the runs of each sample."""
        counts = np.empty(len(runs), dtype=np.int32)
        for begin in range(0, len(runs), _ROWS_AT_ONCE):
            offsets = np.asarray(runs.offsets[begin : begin + _ROWS_AT_ONCE + 1])
            values = runs.values[int(offsets[0]) : int(offsets[-1])]
            # Token 0 is not a target, so no run counts from before token 1.
            sizes = values[1::2] - np.maximum(values[::2], 1)
            totals = offsets_of(np.maximum(sizes, 0))
            edges = (offsets - offsets[0]) // 2
            counts[begin : begin + _ROWS_AT_ONCE] = totals[edges[1:]] - totals[edges[:-1]]
        return cls(counts, runs)

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def total(self) -> int:
        """Number of targets of all samples packed whole."""
        return int(self.counts.sum(dtype=np.int64))

    def within(self, sample_ids: AnyIntArray, starts: AnyIntArray, lengths: AnyIntArray) -> Int64Array:
        """Count the targets in segments of samples.

        Args:
            sample_ids, starts, lengths: ``int[num_segments]``, as in a plan.

        Returns:
            ``int64[num_segments]``.
        """
        if self.runs is None:
            return np.asarray(lengths, dtype=np.int64) - 1
        # One pair for each segment and each run of its sample.
        edges = np.asarray(self.runs.offsets) // 2
        first_runs = edges[sample_ids]
        num_runs = edges[np.asarray(sample_ids) + 1] - first_runs
        segment = np.repeat(np.arange(len(num_runs)), num_runs)
        run = ranges(first_runs, num_runs)
        # The targets of a pair lie in both, after the first token of the segment.
        begin = np.asarray(starts, dtype=np.int64)
        low = np.maximum(self.runs.values[::2][run], begin[segment] + 1)
        high = np.minimum(self.runs.values[1::2][run], (begin + lengths)[segment])
        return np.bincount(segment, weights=np.maximum(high - low, 0), minlength=len(num_runs)).astype(np.int64)


def runs_of_masks(masks: Ragged) -> Ragged:
    """Return the runs of targets in each mask: ``[start, end, start, end, …]``, ascending."""
    values, offsets = masks.values, masks.offsets
    # The neighbors of token i are elements i and i + 2. Beyond its mask they count as not targets: no run leaves its
    # mask.
    neighbours = np.zeros(len(values) + 2, dtype=bool)
    neighbours[1:-1] = values
    previous_is_target, next_is_target = neighbours[:-2].copy(), neighbours[2:]
    has_tokens = offsets[1:] > offsets[:-1]
    previous_is_target[offsets[:-1][has_tokens]] = False
    next_is_target[offsets[1:][has_tokens] - 1] = False
    starts = np.flatnonzero(values > previous_is_target)
    ends = np.flatnonzero(values > next_is_target) + 1
    owners = np.searchsorted(offsets, starts, side="right") - 1
    edges = np.stack([starts, ends], axis=1) - offsets[owners][:, None]
    num_runs = np.bincount(owners, minlength=len(offsets) - 1)
    return Ragged(edges.reshape(-1).astype(np.int32), offsets_of(2 * num_runs))


def mask_of_runs(runs: AnyIntArray, num_tokens: int) -> LossMask:
    """Return the mask of one sample from its runs of targets.

    >>> mask_of_runs(np.array([1, 3]), 4).tolist()
    [False, True, True, False]
    """
    mask = np.zeros(num_tokens, dtype=bool)
    for start, end in zip(runs[::2].tolist(), runs[1::2].tolist(), strict=True):
        mask[start:end] = True
    return mask


def joined_rows(parts: Sequence[Ragged]) -> Ragged:
    """Concatenate the rows of several ragged columns of ``int32``."""
    values = np.empty(sum(int(part.offsets[-1] - part.offsets[0]) for part in parts), dtype=np.int32)
    offsets = np.zeros(sum(map(len, parts)) + 1, dtype=np.int64)
    num_rows = num_values = 0
    for part in parts:
        first, end = int(part.offsets[0]), int(part.offsets[-1])
        offsets[num_rows + 1 : num_rows + len(part) + 1] = part.offsets[1:]
        offsets[num_rows + 1 : num_rows + len(part) + 1] += num_values - first
        values[num_values : num_values + end - first] = part.values[first:end]
        num_rows, num_values = num_rows + len(part), num_values + end - first
    return Ragged(values, offsets)

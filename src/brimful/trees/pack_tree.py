"""Trees of segments: samples of a pack that share their beginnings.

A sample is a path of segments, from a root to the segment that ends it::

    row          a b c c | x x | y y y | z         segments 0 1 2 3
    parents      -1        0     0       2         sample 7: 0 1    sample 3: 0 2    sample 5: 0 2 3
    starts       0         4     4       7         depth of the first token of each

Segments are in depth-first order, so a subtree is one range of the row. Token ``k`` is visible to
itself and to every later token of the subtree of its segment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from brimful.base.ragged import offsets_of, ranges
from brimful.base.sharing import ShareMode
from brimful.base.tables import Ragged
from brimful.base.typing import (
    AnyArray,
    AnyIntArray,
    BoolArray,
    Float64Array,
    Int32Array,
    Int64Array,
    LossMask,
)

SHARD_COLUMNS = ("parents", "spans", "span_sizes")
"""Columns of trees in a shard."""

_NO_SPANS = np.zeros(0, dtype=np.int32)


class TargetRanges(NamedTuple):
    """Ranges ``[begin, end)`` of a row, each of targets of one sample, in the order of samples."""

    samples: Int64Array
    """``int64[num_ranges]``: the number of the sample."""
    starts: Int64Array
    ends: Int64Array

    def sums(self, weights: AnyArray, num_tokens: int) -> Float64Array:
        """Return the sum of the weights of the samples that train each token: ``float64[T]``.

        Args:
            weights: ``[num_samples]``.
            num_tokens: T, tokens of the row.

        >>> ranges = TargetRanges(np.array([0, 1]), np.array([1, 2]), np.array([3, 4]))
        >>> ranges.sums(np.array([1, 2]), 4).tolist()
        [0.0, 1.0, 3.0, 2.0]
        """
        of_ranges, size = weights[self.samples], num_tokens + 1
        changes = np.bincount(self.starts, of_ranges, size) - np.bincount(
            self.ends, of_ranges, size
        )
        sums: Float64Array = np.cumsum(changes[:-1])
        return sums


@dataclass(frozen=True, slots=True, eq=False)
class PackTree:
    """Tree of the segments of a pack, and the targets of each of its samples.

    Samples are in the order of the segments that end them (``ends``): the targets of a shared token
    may differ between the samples that share it.

    Attributes:
        parents: ``int32[num_segments]``: an earlier segment of the pack; -1 for a root.
        ends: ``int32[num_samples]``, ascending: the segment that ends each sample.
        spans: ``int32[2 * num_spans]``: ``[begin, end, begin, end, …]``, the targets of all
            samples, counted in tokens of the sample. The first token of a sample is never a target.
        span_sizes: ``int32[num_samples]``, spans of each sample.
    """

    parents: Int32Array
    ends: Int32Array
    spans: Int32Array
    span_sizes: Int32Array
    kind: ClassVar[ShareMode] = ShareMode.PREFIXES

    @property
    def columns(self) -> dict[str, AnyArray]:
        """Columns of a shard, in the order in which they enter the checksum of a row."""
        return {name: getattr(self, name) for name in SHARD_COLUMNS}

    def __str__(self) -> str:
        return f"a tree of {self.num_samples} samples"

    @property
    def num_samples(self) -> int:
        """Samples of the pack."""
        return len(self.ends)

    @property
    def num_targets(self) -> int:
        """Targets of all samples."""
        return int((self.spans[1::2] - self.spans[::2]).sum())

    def paths(self) -> Ragged:
        """Return the segments of each sample, from its root: ``int64``, one row for each sample.

        >>> tree = PackTree(np.array([-1, 0, 0, 2]), np.array([1, 2, 3]), _NO_SPANS, np.zeros(3, int))
        >>> [tree.paths().row(sample).tolist() for sample in range(3)]
        [[0, 1], [0, 2], [0, 2, 3]]
        """
        level = self.ends.astype(np.int64)
        levels = [level]
        while (level := np.where(level >= 0, self.parents[level], -1)).max(initial=-1) >= 0:
            levels.append(level)
        upward = np.stack(levels[::-1], axis=1)
        is_segment = upward >= 0
        return Ragged(upward[is_segment], offsets_of(is_segment.sum(axis=1)))

    def positions(self, cu_seqlens: AnyIntArray) -> Ragged:
        """Return the place in the row of each token of each sample: ``int64``, one row for each
        sample.

        Args:
            cu_seqlens: ``int[num_segments + 1]``, where each segment begins, and the end.

        >>> tree = PackTree(np.array([-1, 0, 0]), np.array([1, 2]), _NO_SPANS, np.zeros(2, int))
        >>> [tree.positions(np.array([0, 3, 5, 6])).row(sample).tolist() for sample in range(2)]
        [[0, 1, 2, 3, 4], [0, 1, 2, 5]]
        """
        paths = self.paths()
        sizes = np.diff(cu_seqlens)[paths.values]
        tokens = offsets_of(sizes)
        return Ragged(ranges(cu_seqlens[:-1][paths.values], sizes), tokens[paths.offsets])

    def target_positions(self, positions: Ragged) -> Ragged:
        """Return the place in the row of each target of each sample, given its ``positions``:
        ``int64``, one row for each sample.
        """
        starts, ends = self.spans.reshape(-1, 2).T.astype(np.int64)
        first = np.repeat(positions.offsets[:-1], self.span_sizes)
        sizes = ends - starts
        spans = offsets_of(self.span_sizes)
        return Ragged(positions.values[ranges(first + starts, sizes)], offsets_of(sizes)[spans])

    def target_ranges(self, cu_seqlens: AnyIntArray) -> TargetRanges:
        """Return the targets of each sample as ranges of the row.

        It costs a few operations for each segment and span, and none for each token.

        >>> tree = PackTree(np.array([-1, 0, 0]), np.array([1, 2]), np.array([1, 4, 3, 4]), np.array([1, 1]))
        >>> [numbers.tolist() for numbers in tree.target_ranges(np.array([0, 3, 5, 6]))]
        [[0, 0, 1], [1, 3, 5], [3, 4, 6]]
        """
        starts, ends = self.spans.reshape(-1, 2).T.astype(np.int64)
        samples = np.repeat(np.arange(self.num_samples), self.span_sizes)
        paths = self.paths()
        segments = paths.values
        tokens = offsets_of(np.diff(cu_seqlens)[segments])
        # Depths of all samples as one ascending line, so that one search finds the segments of all
        # spans.
        first_tokens = tokens[paths.offsets[:-1]]
        line = tokens[:-1]
        starts += first_tokens[samples]
        ends += first_tokens[samples]
        first = np.searchsorted(line, starts, side="right") - 1
        sizes = np.searchsorted(line, ends - 1, side="right") - first
        pieces = ranges(first, sizes)
        span = np.repeat(np.arange(len(samples)), sizes)
        shift = cu_seqlens[segments[pieces]] - line[pieces]
        return TargetRanges(
            samples[span],
            np.maximum(starts[span], line[pieces]) + shift,
            np.minimum(ends[span], tokens[1:][pieces]) + shift,
        )

    def subtree_ends(self) -> Int64Array:
        """Return the segment after the last of each subtree: ``int64[num_segments]``.

        >>> PackTree(np.array([-1, 0, 0, 2, -1]), _NO_SPANS, _NO_SPANS, _NO_SPANS).subtree_ends().tolist()
        [4, 2, 4, 4, 5]
        """
        parents = self.parents.tolist()
        ends = list(range(1, len(parents) + 1))
        # The -1 of a root names the last segment, whose end is the largest.
        for segment, parent in reversed([*enumerate(parents)]):
            ends[parent] = max(ends[parent], ends[segment])
        return np.array(ends, dtype=np.int64)

    def samples_through(self, segments: AnyIntArray) -> Int64Array:
        """Return the samples whose paths have any of the segments, ascending: their numbers in
        ``ends``.

        >>> tree = PackTree(np.array([-1, 0, 0, 2, 2]), np.array([1, 3, 4]), _NO_SPANS, np.zeros(3, int))
        >>> tree.samples_through(np.array([2])).tolist()
        [1, 2]
        """
        starts, ends = np.searchsorted(self.ends, [segments, self.subtree_ends()[segments]])
        return np.unique(ranges(starts, ends - starts))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PackTree) and all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in self.__slots__
        )

    def without_targets(self, samples: AnyIntArray | None = None) -> PackTree:
        """Return the same tree without the targets of some samples; of all if None.

        >>> tree = PackTree(np.array([-1, 0]), np.array([0, 1]), np.array([1, 3, 2, 4, 5, 6]), np.array([1, 2]))
        >>> tree.without_targets(np.array([0])).spans.tolist()
        [2, 4, 5, 6]
        """
        sizes = self.span_sizes.copy()
        sizes[slice(None) if samples is None else samples] = 0
        is_kept = np.repeat(sizes == self.span_sizes, 2 * self.span_sizes)
        return PackTree(self.parents, self.ends, self.spans[is_kept], sizes)


def tree_of(item: Any) -> PackTree:
    """Return the tree of a pack, or the trees of a row, that has one."""
    assert isinstance(item.sharing, PackTree)
    return item.sharing


def segments_above(parents: AnyIntArray, offsets: AnyIntArray) -> Int64Array:
    """Return the row of the segment that each segment of several packs continues, -1 for none:
    ``int64[num_segments]``.

    Args:
        parents: ``int[num_segments]``, counted from the first segment of the pack; -1 for a root.
        offsets: ``int64[num_packs + 1]``, the segments of each pack.

    >>> segments_above(np.array([-1, 0, -1, 0, 1]), np.array([0, 2, 5])).tolist()
    [-1, 0, -1, 2, 3]
    """
    starts = np.repeat(offsets[:-1], np.diff(offsets))
    return np.where(parents >= 0, starts + parents, -1)


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


def ends_of(parents: AnyIntArray, sample_ids: AnyIntArray, lengths: AnyIntArray) -> Int32Array:
    """Return the segments that end a sample, ascending: ``int32[num_samples]``.

    Args:
        parents, sample_ids, lengths: of each segment, in depth-first order.

    >>> ends_of(np.array([-1, 0, 0]), np.array([7, 7, 3]), np.array([4, 2, 3])).tolist()
    [1, 2]
    """
    return np.flatnonzero(ends_sample(parents, sample_ids, lengths)).astype(np.int32)


def spans_of(masks: Sequence[LossMask]) -> tuple[Int32Array, Int32Array]:
    """Return the ``spans`` and ``span_sizes`` of samples, given the targets of each.

    >>> spans, sizes = spans_of([np.array([True, False, True, True]), np.array([True, False])])
    >>> spans.tolist(), sizes.tolist()
    ([2, 4], [1, 0])
    """
    offsets = offsets_of([len(mask) for mask in masks])
    is_target = np.concatenate([np.zeros(0, dtype=np.bool_), *masks])
    # No token predicts the first of a sample; so no span goes on from one sample to the next.
    is_target[offsets[:-1]] = False
    edges = np.flatnonzero(np.diff(is_target, prepend=False, append=False))
    # A span that ends with its sample ends where the next one begins: both edges are of its begin.
    samples = np.repeat(np.searchsorted(offsets, edges[::2], side="right") - 1, 2)
    sizes = np.bincount(samples[::2], minlength=len(masks))
    return (edges - offsets[samples]).astype(np.int32), sizes.astype(np.int32)

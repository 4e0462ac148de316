"""Forked trees: each branch repeats the last token of its trunk, so that every token has at most one
label.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from brimful.base.ragged import offsets_of, ranges
from brimful.base.typing import IGNORE_INDEX, Float32Array, Int32Array, Int64Array
from brimful.base.wording import setting
from brimful.collate.batch import PackedBatch
from brimful.collate.extras import PackExtras
from brimful.errors import CollateError
from brimful.store.shards import Pack
from brimful.trees.pack_tree import PackTree, tree_of


class Fork(NamedTuple):
    """A pack in which each branch repeats the last token of its trunk."""

    pack: Pack
    positions: Int64Array
    """``int64[num_tokens]``: the place of each token in the pack that was forked."""
    segments: Int64Array
    """``int64[num_segments]``: the segment of each in the pack that was forked."""


def forked(pack: Pack) -> Pack:
    """Return the fork of a pack of trees, see ``fork_of``."""
    return fork_of(pack).pack


def fork_of(pack: Pack) -> Fork:
    """Return a pack of trees in which each branch of a trunk repeats the last token of the trunk.

    ::

        row     a b c | d e | f            the last c predicts d and f
        fork    a b | c d e | c f          each c predicts one token

    A trunk with one branch keeps its tokens, since one token follows it. A sample that ends with a
    trunk of several branches ends after the repeated token of the first, which is a segment of its
    own then. Samples keep their order, tokens and targets.

    Raises:
        CollateError: an attachment ends with a trunk of several branches.

    >>> from brimful.testing.toys import toy_tree
    >>> pack = forked(toy_tree([[5, 6, 7], [5, 6, 8], [5, 6]]))
    >>> pack.input_ids.tolist(), pack.cu_seqlens.tolist(), pack.sharing.parents.tolist(), pack.sharing.ends.tolist()
    ([5, 6, 7, 6, 8], [0, 1, 2, 3, 5], [-1, 0, 1, 0], [1, 2, 3])
    """
    tree = tree_of(pack)
    parents, segment_starts = tree.parents.tolist(), pack.cu_seqlens.tolist()
    lengths = np.diff(pack.cu_seqlens).tolist()
    num_branches = [0] * len(parents)
    for segment, parent in enumerate(parents):
        if parent >= 0 and lengths[segment]:
            num_branches[parent] += 1
    forks = [count > 1 for count in num_branches]
    for item in pack.attachments:
        if forks[item.segment] and item.start + item.length == segment_starts[item.segment + 1]:
            raise CollateError(
                f"sample {int(pack.sample_ids[item.segment])}: {item.title} ends where its samples "
                f"part, and a branch cannot repeat a part of it: set {setting('branch', 'index')}"
            )
    ends = set(tree.ends.tolist())
    segments = _ForkSegments()
    # The new segment that branches of a trunk follow, and the one that its first branch and its
    # empty ones follow.
    trunk_of, joint_of = [-1] * len(parents), [-1] * len(parents)
    is_first = [True] * len(parents)
    new_ends = []
    for segment, parent in enumerate(parents):
        start, stop = segment_starts[segment], segment_starts[segment + 1] - forks[segment]
        new_parent, repeated = -1, -1
        if parent >= 0:
            # The first branch goes on after the joint, where a sample has ended.
            at_joint = not lengths[segment] or is_first[parent]
            new_parent = joint_of[parent] if at_joint else trunk_of[parent]
            if forks[parent] and lengths[segment] and not (is_first[parent] and parent in ends):
                repeated = segment_starts[parent + 1] - 1
            if lengths[segment]:
                is_first[parent] = False
        end = new_parent
        if not forks[segment] or stop > start or repeated >= 0:
            end = segments.add(segment, new_parent, repeated, start, stop)
        trunk_of[segment] = joint_of[segment] = end
        if forks[segment] and segment in ends:
            joint_of[segment] = segments.add(segment, end, -1, stop, stop + 1)
        if segment in ends:
            new_ends.append(joint_of[segment])
    return segments.fork(pack, tree, np.array(new_ends, dtype=np.int32))


class _ForkSegments:
    """Segments of a fork, in depth-first order."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, int, int, int, int]] = []

    def add(self, segment: int, parent: int, repeated: int, start: int, stop: int) -> int:
        """Add a segment, and return its number.

        Args:
            segment: the segment of the pack that it comes from.
            parent: a segment of the fork; -1 for a root.
            repeated: place of the token before its own; -1 for none.
            begin, stop: places of its own tokens.
        """
        self._rows.append((segment, parent, repeated, start, stop))
        return len(self._rows) - 1

    def fork(self, pack: Pack, tree: PackTree, ends: Int32Array) -> Fork:
        """Return the fork of these segments, whose samples end with ``ends``."""
        segments, parents, repeated, segment_starts, stops = np.array(self._rows, dtype=np.int64).T
        # Two ranges for each segment: the repeated token, if any, and its own tokens.
        is_repeated = repeated >= 0
        sizes = np.stack([is_repeated, stops - segment_starts], axis=1)
        positions = ranges(np.stack([repeated, segment_starts], axis=1).ravel(), sizes.ravel())
        cu_seqlens = offsets_of(sizes.sum(axis=1)).astype(np.int32)
        starts = pack.starts[segments] + (segment_starts - pack.cu_seqlens[segments]) - is_repeated
        # A segment that ends no sample has the id of the next, which is its first branch.
        next_end = np.searchsorted(ends, np.arange(len(segments)))
        sample_ids = pack.sample_ids[tree.ends][np.minimum(next_end, len(ends) - 1)]
        position_of, segment_of = _first_of(positions), _first_of(segments)
        attachments = [
            replace(item, start=int(position_of[item.start]), segment=int(segment_of[item.segment]))
            for item in pack.attachments
        ]
        new_tree = replace(tree, parents=parents.astype(np.int32), ends=ends)
        return Fork(
            Pack(
                pack.input_ids[positions],
                pack.loss_mask[positions],
                cu_seqlens,
                sample_ids,
                starts.astype(np.int32),
                tuple(attachments),
                new_tree,
            ),
            positions,
            segments,
        )


def _first_of(values: Int64Array) -> Int64Array:
    """Return the index of the first occurrence of each number from 0 to the largest."""
    first = np.zeros(int(values.max(initial=-1)) + 1, dtype=np.int64)
    first[values[::-1]] = np.arange(len(values))[::-1]
    return first


def with_single_labels(batch: PackedBatch) -> PackedBatch:
    """Leave the label of a repeated token to its first copy in a row of forks.

    The first copy follows the token that predicts it. The arrays of the batch are changed.
    """
    first, copies = _copies(batch)
    labels = batch.labels
    is_target = labels[copies] != IGNORE_INDEX
    labels[first[is_target]] = labels[copies[is_target]]
    labels[copies] = IGNORE_INDEX
    return batch


def on_first_copies(batch: PackedBatch, values: Float32Array) -> Float32Array:
    """Return values of targets of a row of forks, ``float32[T]``, with the sum of all copies of a
    token at the first, and 0 at the others.
    """
    first, copies = _copies(batch)
    sums = values.copy()
    np.add.at(sums, first, values[copies])
    sums[copies] = 0
    return sums


def _copies(batch: PackedBatch) -> tuple[Int64Array, Int64Array]:
    """Return the place of the first copy, and the place of the copy, for each copy of a repeated
    token that is not the first.
    """
    parents = tree_of(batch).parents
    (segments,) = np.nonzero((batch.lengths > 0) & (parents >= 0))
    first = batch.cu_seqlens[parents[segments] + 1]
    copies = batch.cu_seqlens[segments]
    is_copy = first != copies
    return first[is_copy], copies[is_copy]


def forked_features(
    packs: Sequence[Pack], extras: Sequence[PackExtras | None] | None
) -> tuple[list[Pack], list[PackExtras | None] | None]:
    """Return the forks of packs of trees, with their extras; packs that are not all trees
    unchanged.

    Raises:
        CollateError: see ``fork_of``.
    """
    if any(pack.sharing is None for pack in packs):
        return list(packs), None if extras is None else list(extras)
    forks = [fork_of(pack) for pack in packs]
    if extras is None:
        return [fork.pack for fork in forks], None
    triples = zip(packs, forks, extras, strict=True)
    return [fork.pack for fork in forks], [
        extra and _forked_extras(pack, fork, extra) for pack, fork, extra in triples
    ]


def _forked_extras(pack: Pack, fork: Fork, extras: PackExtras) -> PackExtras:
    """Return the extras of a pack for its fork."""
    positions, segments, segment_of = fork.positions, fork.segments, _first_of(fork.segments)
    no_loss = extras.no_loss
    if no_loss is not None:
        no_loss = tree_of(fork.pack).ends[tree_of(pack).samples_through(no_loss)]
    return PackExtras(
        None if extras.loss_weights is None else extras.loss_weights[positions],
        None if extras.source_ids is None else extras.source_ids[segments],
        None if extras.rope_positions is None else extras.rope_positions[:, positions],
        tuple(
            replace(item, segments=segment_of[item.segments].astype(np.int32))
            for item in extras.attached
        ),
        no_loss,
        tuple(replace(column, values=column.values[positions]) for column in extras.columns),
    )

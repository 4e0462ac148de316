"""Packs of trees: made of samples, taken apart again, and compared with their canonical form, which
every reader relies on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from brimful.base.ragged import offsets_of
from brimful.base.typing import AnyArray, Lengths, LossMask, SampleIds, TokenIds
from brimful.base.wording import counted
from brimful.store.shards.pack import Pack, placed_attachments
from brimful.trees.pack_tree import PackTree, ends_of, spans_of, tree_of
from brimful.trees.plan.plan_trees import PlanTrees


def of_shard(columns: Sequence[AnyArray], sample_ids: AnyArray, lengths: AnyArray) -> PackTree:
    """Return the tree of a stored pack from its ``SHARD_COLUMNS``."""
    parents, spans, span_sizes = columns
    return PackTree(parents, ends_of(parents, sample_ids, lengths), spans, span_sizes)


def assemble(
    ids: Sequence[TokenIds],
    masks: Sequence[LossMask],
    sample_ids: SampleIds,
    lengths: Lengths,
    sharing: PlanTrees,
    rows: slice,
    attachments: Sequence[Sequence[Any]] | None = None,
) -> Pack:
    """Return the pack of some rows of a plan; see ``assemble_tree``."""
    return assemble_tree(ids, masks, sample_ids, lengths, sharing.parents[rows], attachments)


def flat(pack: Pack) -> Pack:
    """Return the samples of a tree one after the other, each whole.

    >>> ids, masks = [np.array([5, 6, 7]), np.array([5, 6, 8])], [np.ones(3, bool)] * 2
    >>> pack = assemble_tree([ids[0], *ids], [masks[0], *masks], [0, 0, 1], [2, 1, 1], [-1, 0, 0])
    >>> len(pack), pack.flat().input_ids.tolist(), pack.flat().sample_ids.tolist()
    (4, [5, 6, 7, 5, 6, 8], [0, 1])
    """
    tree = tree_of(pack)
    positions, paths = tree.positions(pack.cu_seqlens), tree.paths()
    loss_mask = np.zeros(len(positions.values), dtype=np.bool_)
    indices = replace(positions, values=np.arange(len(positions.values)))
    loss_mask[tree.target_positions(indices).values] = True
    attachments = [
        replace(item, start=int(indices.row(sample)[depth]), segment=sample)
        for sample in range(tree.num_samples)
        for segment in paths.row(sample).tolist()
        for item in pack.attachments
        if item.segment == segment
        for depth in [item.start - pack.cu_seqlens[segment] + pack.starts[segment]]
    ]
    return Pack(
        pack.input_ids[positions.values],
        loss_mask,
        positions.offsets.astype(np.int32),
        pack.sample_ids[tree.ends],
        np.zeros(tree.num_samples, dtype=np.int32),
        tuple(attachments),
    )


def assemble_tree(
    ids: Sequence[TokenIds],
    masks: Sequence[LossMask],
    sample_ids: Sequence[int] | SampleIds,
    lengths: Sequence[int] | Lengths,
    parents: Sequence[int] | Lengths,
    attachments: Sequence[Sequence[Any]] | None = None,
) -> Pack:
    """Assemble the pack of samples that share their beginnings, segment by segment in depth-first
    order.

    Args:
        ids, masks, attachments: of the whole sample that each segment is a part of.
        sample_ids: of the sample that ends with the segment; of the next segment if none does.
        lengths: tokens of each segment.
        parents: an earlier segment, or -1.

    Raises:
        CollateError: a segment holds only a part of an attachment.

    >>> ids, masks = [np.array([5, 6, 7]), np.array([5, 6, 8])], [np.ones(3, bool)] * 2
    >>> pack = assemble_tree([ids[0], *ids], [masks[0], *masks], [0, 0, 1], [2, 1, 1], [-1, 0, 0])
    >>> pack.input_ids.tolist(), pack.starts.tolist(), pack.loss_mask.tolist()
    ([5, 6, 7, 8], [0, 2, 2], [False, True, True, True])
    """
    sample_ids = np.asarray(sample_ids, dtype=np.int64)
    lengths, parents = np.asarray(lengths, dtype=np.int32), np.asarray(parents, dtype=np.int32)
    stops = lengths.tolist()
    for segment, parent in enumerate(parents.tolist()):
        if parent >= 0:
            stops[segment] += stops[parent]
    starts = np.array(stops, dtype=np.int32) - lengths
    cuts = [slice(start, stop) for start, stop in zip(starts.tolist(), stops, strict=True)]
    cu_seqlens = offsets_of(lengths).astype(np.int32)
    ends = ends_of(parents, sample_ids, lengths)
    spans = spans_of([masks[segment][: stops[segment]] for segment in ends.tolist()])
    tree = PackTree(parents, ends, *spans)
    loss_mask = np.zeros(int(cu_seqlens[-1]), dtype=np.bool_)
    loss_mask[tree.target_positions(tree.positions(cu_seqlens)).values] = True
    return Pack(
        np.concatenate([one[cut] for one, cut in zip(ids, cuts, strict=True)]).astype(np.int32),
        loss_mask,
        cu_seqlens,
        sample_ids,
        starts,
        placed_attachments(attachments, sample_ids, starts, cu_seqlens),
        tree,
    )


def fault(pack: Pack) -> str:
    """Return the first fault of the tree of a pack, in words; empty if it is in canonical form.

    ::

        parents   -1 0 1 0     earlier segments, in depth-first order: subtrees are contiguous
        starts     0 3 5 3     depths: a branch begins where its trunk ends
        spans      within the sample, in rising order, and their union is the loss mask

    >>> from dataclasses import replace
    >>> from brimful.testing.toys import toy_tree
    >>> pack = toy_tree([[5, 6, 7], [5, 6, 8]])
    >>> fault(pack), fault(replace(pack, starts=np.array([0, 2, 0])))
    ('', 'segment 2 begins at depth 0 instead of 2')
    """
    tree = tree_of(pack)
    return _fault_of_segments(pack, tree) or _fault_of_samples(pack, tree)


def _fault_of_segments(pack: Pack, tree: PackTree) -> str:
    """Return the first fault of parents, depths and lengths."""
    if len(tree.parents) != pack.num_segments:
        return f"it has {len(tree.parents)} parents for {counted(pack.num_segments, 'segment')}"
    lengths = np.diff(pack.cu_seqlens).tolist()
    stops: list[int] = []
    path: list[int] = []  # segments whose subtrees are not complete
    trunks_with_branch: set[int] = set()
    for segment, (parent, start) in enumerate(
        zip(tree.parents.tolist(), pack.starts.tolist(), strict=True)
    ):
        if not -1 <= parent < segment:
            return f"segment {segment} continues segment {parent}, which is not before it"
        while path and path[-1] != parent:
            path.pop()
        if parent >= 0 and not path:
            return (
                f"segment {segment} continues segment {parent}, whose subtree has ended: segments "
                "are not in depth-first order"
            )
        depth = stops[parent] if path else 0
        if start != depth:
            return f"segment {segment} begins at depth {start} instead of {depth}"
        if path and not lengths[parent]:
            return f"segment {segment} continues segment {parent}, which is empty"
        if not lengths[segment] and (not path or parent in trunks_with_branch):
            return f"segment {segment} is empty, and stands at a root or after a branch"
        if lengths[segment]:
            trunks_with_branch.add(parent)
        stops.append(start + lengths[segment])
        path.append(segment)
    return ""


def _fault_of_samples(pack: Pack, tree: PackTree) -> str:
    """Return the first fault of samples and targets, in a pack whose segments have none."""
    names = pack.sample_ids[tree.ends].tolist()
    for index, name in enumerate(names):
        if name in names[:index]:
            return f"sample {name} ends twice"
    if len(tree.span_sizes) != len(names) or 2 * int(tree.span_sizes.sum()) != len(tree.spans):
        return f"it has targets of {len(tree.span_sizes)} samples and holds {len(names)}"
    positions, edges = tree.positions(pack.cu_seqlens), 2 * offsets_of(tree.span_sizes)
    for name, length, first, end in zip(
        names,
        np.diff(positions.offsets).tolist(),
        edges[:-1].tolist(),
        edges[1:].tolist(),
        strict=True,
    ):
        spans = tree.spans[first:end]
        if len(spans) and (spans[0] < 1 or (np.diff(spans) <= 0).any() or spans[-1] > length):
            return (
                f"sample {name} has {counted(length, 'token')}, and its targets are "
                f"{spans.tolist()}"
            )
    is_target = np.zeros(len(pack), dtype=np.bool_)
    is_target[tree.target_positions(positions).values] = True
    if not np.array_equal(is_target, pack.loss_mask):
        position = int(np.flatnonzero(is_target != pack.loss_mask)[0])
        pair = ("a sample", "the loss mask")
        has, lacks = pair if is_target[position] else pair[::-1]
        return f"token {position} is a target of {has}, and not of {lacks}"
    return ""

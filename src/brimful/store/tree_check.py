"""Canonical form of a pack of trees, which every reader relies on."""

import numpy as np

from brimful.base.ragged import offsets_of
from brimful.base.wording import counted
from brimful.store.shards import Pack, PackTree


def tree_fault(pack: Pack) -> str:
    """Return the first fault of the tree of a pack, in words; empty if it is in canonical form.

    ::

        parents   -1 0 1 0     earlier segments, in depth-first order: subtrees are contiguous
        starts     0 3 5 3     depths: a branch begins where its trunk ends
        spans      within the sample, in rising order, and their union is the loss mask

    >>> from dataclasses import replace
    >>> from brimful.testing.toys import toy_tree
    >>> pack = toy_tree([[5, 6, 7], [5, 6, 8]])
    >>> tree_fault(pack), tree_fault(replace(pack, starts=np.array([0, 2, 0])))
    ('', 'segment 2 begins at depth 0 instead of 2')
    """
    tree = pack.tree
    assert tree is not None
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
    places, edges = tree.places(pack.cu_seqlens), 2 * offsets_of(tree.span_sizes)
    for name, length, begin, end in zip(
        names,
        np.diff(places.offsets).tolist(),
        edges[:-1].tolist(),
        edges[1:].tolist(),
        strict=True,
    ):
        spans = tree.spans[begin:end]
        if len(spans) and (spans[0] < 1 or (np.diff(spans) <= 0).any() or spans[-1] > length):
            return (
                f"sample {name} has {counted(length, 'token')}, and its targets are "
                f"{spans.tolist()}"
            )
    is_target = np.zeros(len(pack), dtype=np.bool_)
    is_target[tree.target_places(places).values] = True
    if not np.array_equal(is_target, pack.loss_mask):
        place = int(np.flatnonzero(is_target != pack.loss_mask)[0])
        pair = ("a sample", "the loss mask")
        has, lacks = pair if is_target[place] else pair[::-1]
        return f"token {place} is a target of {has}, and not of {lacks}"
    return ""

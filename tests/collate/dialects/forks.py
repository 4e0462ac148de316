"""Rows of trees in which each branch repeats the last token of its trunk, made slowly and token by token; and how a
reader finds the samples in them."""

from collections import Counter
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from brimful.collate import Padding, lay_out
from brimful.store.shards import Pack, PackTree
from brimful.store.shards.tree import spans_of

SAMPLES = st.lists(
    st.lists(st.integers(1, 3), min_size=1, max_size=8).flatmap(
        lambda tokens: st.tuples(st.just(tokens), st.lists(st.booleans(), min_size=len(tokens), max_size=len(tokens)))
    ),
    min_size=1,
    max_size=10,
)
"""Samples with targets, of which many share and some are equal."""


def forked(samples, *, to=None):
    """The row of some samples, with padding, and the samples in the order in which they end.

    A node is a token and the one after it, so each has one next token, and each sample ends in a leaf.
    """
    segments, leaves = [], []  # (tokens, parent, depth)

    def grow(members, depth, parent):
        tokens, start = [], depth
        while True:
            following = [tuple(samples[member][0][depth : depth + 2]) for member in members]
            tokens.append(following[0][0])
            depth += 1
            keys = list(dict.fromkeys(tuple(samples[member][0][depth : depth + 2]) for member in members))
            if len(keys) != 1 or keys == [()]:
                break
        number = len(segments)
        segments.append((tokens, parent, start))
        for key in keys:
            inside = [member for member in members if tuple(samples[member][0][depth : depth + 2]) == key]
            if key:
                grow(inside, depth, number)
            else:
                leaves.append((number, inside[0]))
                for member in inside[1:]:
                    leaves.append((len(segments), member))
                    segments.append(([], number, depth))

    for key in dict.fromkeys(tuple(tokens[:2]) for tokens, _ in samples):
        grow([number for number, (tokens, _) in enumerate(samples) if tuple(tokens[:2]) == key], 0, -1)
    order = [member for _, member in leaves]
    parents = np.array([parent for _, parent, _ in segments], dtype=np.int32)
    ends = np.array([segment for segment, _ in leaves], dtype=np.int32)
    masks = [np.array(samples[member][1]) for member in order]
    tree = PackTree(parents, ends, *spans_of(masks))
    sizes = [len(tokens) for tokens, _, _ in segments]
    cu_seqlens = np.cumsum([0, *sizes]).astype(np.int32)
    sample_ids = np.zeros(len(segments), dtype=np.int64)
    for segment, member in reversed(leaves):
        while segment >= 0:
            sample_ids[segment] = member
            segment = int(parents[segment])
    pack = Pack(
        np.array([token for tokens, _, _ in segments for token in tokens], dtype=np.int32),
        np.zeros(sum(sizes), dtype=np.bool_),
        cu_seqlens,
        sample_ids,
        np.array([depth for _, _, depth in segments], dtype=np.int32),
        tree=tree,
    )
    batch = lay_out([pack], padding=Padding(to=to))
    # The label of a place is at the first token that it predicts, with the weights of all that train it.
    first: dict[int, int] = {}
    weights: dict[int, int] = {}
    places = tree.places(cu_seqlens)
    for sample, mask in enumerate(masks):
        row = places.row(sample).tolist()
        for before, place, is_target in zip(row, row[1:], mask[1:].tolist(), strict=False):
            first[before] = min(first.get(before, place), place)
            weights[before] = weights.get(before, 0) + is_target
    labels = np.full_like(batch.labels, -100)
    loss_weights = np.zeros(len(labels), dtype=np.float32)
    for before, place in first.items():
        if weights[before]:
            labels[place], loss_weights[place] = batch.input_ids[place], weights[before]
    return replace(batch, labels=labels, loss_weights=loss_weights), [samples[member] for member in order]


def terms_of(samples):
    """What samples train, each with how often: the tokens before a target, and the target."""
    return Counter(
        (tuple(tokens[:depth]), tokens[depth])
        for tokens, mask in samples
        for depth in range(1, len(tokens))
        if mask[depth]
    )


def terms_read(tokens, positions, is_visible, targets):
    """The same, as a model reads a row.

    Args:
        tokens, positions: of the row.
        is_visible: of pairs of a query and a key.
        targets: weights by the place that predicts and the target.
    """
    found: Counter[tuple[tuple[int, ...], int]] = Counter()
    for (place, target), weight in targets.items():
        seen = [key for key in range(len(tokens)) if is_visible(place, key)]
        assert [positions[key] for key in seen] == list(range(len(seen)))
        found[tuple(tokens[key] for key in seen), target] += weight
    return found

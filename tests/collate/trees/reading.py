"""Slow readers of rows of trees: what each place sees, and what the row trains, in tokens of samples."""

from collections import Counter
from itertools import pairwise


def contexts(batch):
    """Return the places on the path of each place, itself included, from the parents alone."""
    rows = []
    parents = batch.tree.parents.tolist()
    edges = batch.cu_seqlens.tolist()
    for segment, (begin, end) in enumerate(pairwise(edges)):
        trunk, parent = [], parents[segment]
        while parent >= 0:
            trunk = [*range(edges[parent], edges[parent + 1]), *trunk]
            parent = parents[parent]
        rows += [[*trunk, *range(begin, place + 1)] for place in range(begin, end)]
    return rows


def trained(samples):
    """Return how often each token is trained, by the tokens before it: ``(tokens, mask)`` of each sample."""
    return Counter(
        tuple(tokens[: depth + 1]) for tokens, mask in samples for depth in range(1, len(tokens)) if mask[depth]
    )


def trained_in(batch, predictions):
    """Return the same of a row: ``(place that predicts, target, weight)`` of each prediction."""
    ids, paths = batch.input_ids.tolist(), contexts(batch)
    weights = Counter()
    for place, target, weight in predictions:
        weights[(*(ids[seen] for seen in paths[place]), target)] += weight
    return weights

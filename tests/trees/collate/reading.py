"""Slow readers of rows of trees: what each place sees, and what the row trains, in tokens of samples."""

from collections import Counter
from itertools import pairwise

import numpy as np


def contexts(batch):
    """Return the places on the path of each place, itself included, from the parents alone."""
    rows = []
    parents = batch.sharing.parents.tolist()
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


def forest(seed, *, roots=2, depth=4):
    """Return samples that part up to ``depth`` times, and their targets; some end where others go on, and one is there twice."""
    rng = np.random.default_rng(seed)
    samples = []

    def grow(trunk, levels):
        trunk = [*trunk, *rng.integers(1, 100, rng.integers(2, 6)).tolist()]
        if levels == 0 or rng.random() < 0.3:
            samples.append(trunk)
        if levels:
            for _ in range(rng.integers(1, 4)):
                grow(trunk, levels - 1)

    for _ in range(roots):
        grow([], depth)
    samples.append(samples[0])
    return samples, [(rng.random(len(sample)) < 0.8).tolist() for sample in samples]

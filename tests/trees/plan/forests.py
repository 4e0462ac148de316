"""Random samples that share their beginnings, and slow references of what trees of them are."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import combinations, groupby

import numpy as np
from hypothesis import strategies as st

from brimful import LengthTable
from brimful.trees.plan.forest import Forest
from brimful.trees.prefixes import Prefixes

STRETCH = 12
"""Tokens of a letter: crumbs are below 16 tokens, so that trunks of one letter are crumbs where they pay."""

words = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=7), min_size=1, max_size=12)
"""Samples of letters, of which many share a beginning."""


def _drawn_words(seed, num_letters=4, longest=6, count=12):
    draw = np.random.default_rng(seed)
    return [draw.integers(0, num_letters, size).tolist() for size in draw.integers(1, longest + 1, count)]


wide_words = st.integers(0, 2**16).map(_drawn_words)
"""Twelve samples of letters, with up to four branches at a trunk: Hypothesis itself draws few of such a size."""

many_words = words | st.integers(0, 2**16).map(lambda seed: _drawn_words(seed, 3, 5, 40))
"""The same and forty samples, of which some are equal."""


def stretched(words_of_letters, stretch=STRETCH):
    """Samples with several tokens for each letter."""
    return [[letter for letter in word for _ in range(stretch)] for word in words_of_letters]


def table_of(samples, *, least=1, **budgets):
    """The length table of samples, with what they share; ``amounts`` of a budget are per shared token."""
    order = sorted(range(len(samples)), key=lambda sample: (list(samples[sample]), sample))
    shared = [0] * len(samples)
    for place in range(1, len(samples)):
        common = common_of(samples[order[place - 1]], samples[order[place]])
        shared[place] = common if common >= least else 0
    prefixes = Prefixes(
        np.array(order, dtype=np.int64),
        np.array(shared, dtype=np.int32),
        least,
        {name: np.array(shared, dtype=np.int32) * factor for name, factor in budgets.items()},
    )
    tokens = np.array([len(sample) for sample in samples], dtype=np.int32)
    return LengthTable(
        {"tokens": tokens, **{name: tokens * factor for name, factor in budgets.items()}}, sharing=prefixes
    )


def common_of(one, other):
    """Tokens with which both begin."""
    pairs = zip(one, other, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def size_of(samples):
    """Tokens of the union of the paths, and one for each branch after the first at a token."""
    tokens, branches = set(), {}
    for sample in samples:
        for end in range(1, len(sample) + 1):
            tokens.add(tuple(sample[:end]))
    for path in tokens:
        branches.setdefault(path[:-1], set()).add(path)
    return len(tokens), sum(len(paths) - 1 for path, paths in branches.items() if path)


@dataclass
class Node:
    """A leaf, or a trunk with what is below it: leaves that end with it, and then its branches."""

    leaves: list[int]
    depth: int
    children: list[Node]


def trees_of(samples, leaves, depth=0):
    """The trees of some leaves of sorted samples that share ``depth`` tokens."""
    ended = [leaf for leaf in leaves if len(samples[leaf]) == depth]
    nodes = [Node([leaf], depth, []) for leaf in ended]
    for _, group in groupby(leaves[len(ended) :], key=lambda leaf: samples[leaf][depth]):
        below = list(group)
        common = min(common_of(samples[below[0]], samples[leaf]) for leaf in below)
        children = trees_of(samples, below, common) if len(below) > 1 else []
        nodes.append(Node(below, common, children))
    return nodes


def amounts(depth):
    """What the first tokens of a path take of two budgets: tokens, and squares."""
    return np.array([depth, depth**2])


OF_SAMPLE = np.array([0, 7])
"""What each sample takes in addition, even one of which all tokens are shared."""


def load_of(samples):
    """What a pack of some samples takes of both budgets, with the room of forks."""
    distinct, forks = size_of([tuple(sample) for sample in samples])
    depths = [len(path) for path in {tuple(sample[:end]) for sample in samples for end in range(1, len(sample) + 1)}]
    return np.array([distinct + forks, sum(2 * depth - 1 for depth in depths)]) + len(samples) * OF_SAMPLE


def forest_of_both(samples):
    """The forest of sorted samples with both budgets."""
    shared = [0, *(common_of(samples[leaf - 1], samples[leaf]) for leaf in range(1, len(samples)))]
    sizes = [amounts(len(sample)) + OF_SAMPLE for sample in samples]
    return Forest.of(np.array(sizes), np.array([amounts(depth) for depth in shared]))


def optimum_of(samples, capacity):
    """Fewest packs of at most seven samples, by trying all."""

    @cache
    def fits(members):
        return sum(size_of([samples[member] for member in members])) <= capacity

    @cache
    def fewest(members):
        if not members:
            return 0
        first, rest = members[0], members[1:]
        best = len(members)
        for count in range(len(rest) + 1):
            for others in combinations(rest, count):
                if fits((first, *others)):
                    best = min(best, 1 + fewest(tuple(m for m in rest if m not in others)))
        return best

    return fewest(tuple(range(len(samples))))


def paths_of(plan):
    """Samples of each pack with their segments, by walking up from each segment that ends one."""
    packs = []
    for begin, end in zip(plan.offsets[:-1].tolist(), plan.offsets[1:].tolist(), strict=True):
        packs.append({})
        parents = plan.sharing.parents[begin:end].tolist()
        for segment in np.flatnonzero(plan.ends_sample[begin:end]).tolist():
            path, above = [], segment
            while above >= 0:
                path.append(begin + above)
                above = parents[above]
            packs[-1][int(plan.sample_ids[begin + segment])] = path[::-1]
    return packs

"""Random samples that share their beginnings, and slow references of what trees of them are."""

from __future__ import annotations

from functools import cache
from itertools import combinations

import numpy as np
from hypothesis import strategies as st

from brimful import LengthTable
from brimful.trees.prefixes import Prefixes

STRETCH = 12
"""Tokens of a letter: crumbs are below 16 tokens, so that trunks of one letter are crumbs where they pay."""

words = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=7), min_size=1, max_size=12)
"""Samples of letters, of which many share a beginning."""


def _drawn_words(seed):
    draw = np.random.default_rng(seed)
    return [draw.integers(0, 4, size).tolist() for size in draw.integers(1, 7, 12)]


wide_words = st.integers(0, 2**16).map(_drawn_words)
"""Twelve samples of letters, with up to four branches at a trunk: Hypothesis itself draws few of such a size."""


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

"""Samples of a step that share prefixes, and what a set of them takes, counted token by token."""

import numpy as np

from brimful import CostModel

UNIT = 20
"""Tokens of a symbol: segments of fewer than 16 tokens may be joined with others."""

COST = CostModel(linear=300, quadratic=1, tile=1)


def forest_of_samples(seed, *, samples=None, symbols=6):
    """Samples with prefixes at any depth, exact duplicates, and samples that end where others go on."""
    generator = np.random.default_rng(seed)
    samples = samples or int(generator.integers(1, 60))
    made: list[np.ndarray] = []
    while len(made) < samples:
        row = generator.integers(0, 3, int(generator.integers(1, symbols)))
        if made and generator.random() < 0.6:
            other = made[int(generator.integers(len(made)))]
            row = np.concatenate([other[: int(generator.integers(len(other) + 1))], row])[:symbols]
        made.append(row)
    return [np.repeat(row, UNIT).astype(np.int32) for row in made]


def counted(ids, members):
    """Tokens, branches after the first of each trunk, and cost of the distinct prefixes of some samples."""
    prefixes = {tuple(ids[member][:end].tolist()) for member in members for end in range(1, len(ids[member]) + 1)}
    children: dict[tuple[int, ...], int] = {}
    for prefix in prefixes:
        children[prefix[:-1]] = children.get(prefix[:-1], 0) + 1
    forks = sum(number - 1 for trunk, number in children.items() if trunk)
    depths = np.array([len(prefix) for prefix in prefixes], dtype=float)
    cost = (COST.linear + COST.quadratic * (2 * depths - 1)).sum()
    return len(prefixes), forks, cost


def rollouts(prompts, answers, *, prompt, answer, seed, longest=32_768):
    """Lengths of answers to prompts, lognormal, and the prefixes that they share."""
    from brimful.trees.prefixes import Prefixes

    generator = np.random.default_rng(seed)
    trunks = np.clip(generator.lognormal(np.log(prompt), 0.5, prompts), 64, longest // 2).astype(np.int64)
    lengths = generator.lognormal(np.log(answer), 0.6, (prompts, answers)).astype(np.int64)
    lengths = np.clip(lengths, 16, longest - trunks[:, None]) + trunks[:, None]
    shared = np.repeat(trunks, answers).astype(np.int32)
    shared[::answers] = 0
    return lengths.ravel(), Prefixes(np.arange(prompts * answers), shared)

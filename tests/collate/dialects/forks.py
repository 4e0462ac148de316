"""Rows of trees in the words of other projects: how they are made, and how a reader finds the samples in them."""

from collections import Counter

from hypothesis import strategies as st

from brimful import PackCollator
from brimful.testing.toys import toy_tree
from brimful.trees.pack_tree import tree_of

SAMPLES = st.lists(
    st.lists(st.integers(1, 3), min_size=1, max_size=8).flatmap(
        lambda tokens: st.tuples(st.just(tokens), st.lists(st.booleans(), min_size=len(tokens), max_size=len(tokens)))
    ),
    min_size=1,
    max_size=10,
)
"""Samples with targets, of which many share and some are equal; no token is the one of the padding."""


def batch_of(dialect, samples, **options):
    """The batch of one tree of some samples, and the samples in the order in which they end."""
    pack = toy_tree(*zip(*samples, strict=True))
    order = pack.sample_ids[tree_of(pack).ends].tolist()
    return PackCollator(dialect=dialect, **options)([pack]), [samples[sample] for sample in order]


def untrained(samples):
    """The same samples without targets."""
    return [(tokens, [False] * len(tokens)) for tokens, _ in samples]


def trained_by(ids, positions, is_visible, predictions):
    """How often a row trains each token, by the tokens before it.

    Args:
        ids, positions: of the row.
        is_visible: of a query and a key, by their places.
        predictions: ``(place that predicts, target, weight)``.
    """
    weights: Counter[tuple[int, ...]] = Counter()
    for place, target, weight in predictions:
        seen = [key for key in range(len(ids)) if is_visible(place, key)]
        assert [positions[key] for key in seen] == list(range(len(seen)))
        weights[(*(ids[key] for key in seen), target)] += weight
    return weights

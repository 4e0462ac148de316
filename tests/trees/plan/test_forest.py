"""The forest of samples: trunks that are crumbs, and sizes that are sums over neighbors."""

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from brimful.trees.plan.forest import CRUMB
from tests.trees.plan.forests import forest_of_both, load_of, many_words, stretched, trees_of, wide_words, words


def without_crumbs(node):
    """The branches of a trunk, where each that is a crumb is replaced by its own; leaves that end with it too."""
    branches = []
    for child in map(without_crumbs, node.children):
        own = [branch for branch in child.children if branch.depth > child.depth]
        repeated = (len(own) - 1) * (child.depth - node.depth)
        branches += child.children if own == child.children and own and repeated < CRUMB else [child]
    node.children = branches
    return node


def shared_in(node, shared):
    """What the neighbors below a trunk share, written at the second of both."""
    for one in node.leaves[1:]:
        shared[one] = max(shared[one], node.depth)
    for child in node.children:
        shared_in(child, shared)


@given(many_words, st.sampled_from([1, 2, 3, 4, 5, 7, 8, 15, 16, 17]))
@example([[0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 0, 2], [0, 0, 0, 3], [0, 0, 1], [0, 1]], 4)
def test_a_trunk_is_repeated_where_that_costs_less_than_a_segment(letters, stretch):
    """Its branches then begin with it; a trunk in which a sample ends stays, and so does the first of a tree."""
    samples = sorted(stretched(letters, stretch))
    shared = np.zeros(len(samples), dtype=int)
    for tree in trees_of(samples, range(len(samples))):
        shared_in(without_crumbs(tree), shared)
    forest = forest_of_both(samples).without_crumbs()
    assert forest.depths_of(forest.gaps).tolist() == np.stack([shared, shared**2], axis=1).tolist()


@given(words | wide_words, st.integers(1, 3))
def test_a_range_of_leaves_takes_its_union_and_its_forks(letters, stretch):
    """In every budget: a fork takes a token of room, for the form of the loss in which branches repeat one."""
    samples = sorted(stretched(letters, stretch))
    forest = forest_of_both(samples)
    for first in range(len(samples)):
        for stop in range(first + 1, len(samples) + 1):
            (load,) = forest.loads(np.array([first]), np.array([stop]))
            assert load.tolist() == load_of(samples[first:stop]).tolist()

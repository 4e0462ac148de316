"""The bound of a forest: as its docstring says, on trees that are walked node by node."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from brimful.trees.plan.bound import bound_of_trees
from tests.trees.plan.forests import OF_SAMPLE, amounts, forest_of_both, many_words, stretched, trees_of


def least_copies(node, above, capacities):
    """Copies of a node, and what the nodes below it take, and it with them, in all packs."""
    own = amounts(node.depth) - amounts(above) + OF_SAMPLE * (not node.children)
    copies, below = 1, np.zeros(2, dtype=int)
    for child in node.children:
        number, total = least_copies(child, node.depth, capacities)
        copies, below = max(copies, number), below + total
    for room, load in zip(capacities - amounts(node.depth), below, strict=True):
        copies = max(copies, -(-load // room) if load else 1)
    return copies, below + copies * own


@given(many_words, st.integers(1, 3), st.sampled_from([0, 1, 2, 5, 40, 400]), st.sampled_from([0, 1, 9, 3_000]))
def test_each_trunk_has_as_many_copies_as_what_is_below_it_needs(letters, stretch, more, more_squares):
    """A report says how far a plan is from its bound: one that is too low blames the plan, one too high praises it."""
    samples = sorted(stretched(letters, stretch))
    capacities = amounts(max(map(len, samples))) + OF_SAMPLE + [more, more_squares]
    found = [least_copies(tree, 0, capacities) for tree in trees_of(samples, range(len(samples)))]
    total = sum(load for _, load in found)
    packs = max(*(copies for copies, _ in found), *(-(-total // capacities)))
    assert bound_of_trees(forest_of_both(samples), capacities) == (packs, total[0])

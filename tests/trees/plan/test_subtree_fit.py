"""Subtree best fit: the pieces of each trunk placed one by one, in slow words."""

from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.trees.plan import subtree_fit
from brimful.trees.plan.subtree_fit import fragments_of
from tests.trees.plan.forests import OF_SAMPLE, amounts, forest_of_both, load_of, many_words, stretched, trees_of


class SlowFragments:
    """Fragments of sorted samples: ``(leaves, load)`` of each, the load in the first budgets."""

    def __init__(self, samples, capacities, cheap):
        self.samples, self.capacities, self.cheap = samples, capacities, cheap
        self.fragments = [piece for tree in trees_of(samples, range(len(samples))) for piece in self.pieces_of(tree)]

    def load(self, node):
        return load_of([self.samples[leaf] for leaf in node.leaves])[: len(self.capacities)]

    def is_large(self, node):
        return (self.load(node) > self.capacities).any()

    def whole_below(self, node):
        """The largest subtrees that stay whole and rise to a trunk, leaves and then trunks, and the large ones."""
        leaves, trunks, large = [], [], []
        for child in node.children:
            if self.is_large(child):
                large.append(child)
            elif child.children and child.depth <= self.cheap:
                for found, more in zip((leaves, trunks, large), self.whole_below(child), strict=True):
                    found += more
            else:
                (trunks if child.children else leaves).append(child)
        return leaves, trunks, large

    def pieces_of(self, node):
        """What a tree is cut into."""
        if not self.is_large(node):
            if not node.children or node.depth > self.cheap:
                return [(node.leaves, self.load(node))]
            return [piece for child in node.children for piece in self.pieces_of(child)]
        leaves, trunks, large = self.whole_below(node)
        pieces = [(one.leaves, self.load(one)) for one in (*leaves, *trunks)]
        for child in large:
            pieces += self.pieces_of(child)
        depth = amounts(node.depth)[: len(self.capacities)]
        fork = np.array([1, 0])[: len(self.capacities)]
        packs = []
        # The largest first, of equal ones the latest.
        pieces.reverse()
        for leaves, load in sorted(pieces, key=lambda piece: -piece[1][0]):
            size = load - depth + fork * (load[0] > depth[0])
            ways = [pack for pack in packs if (size <= pack["room"]).all()]
            if ways:
                pack = min(ways, key=lambda pack: pack["room"][0])
            else:
                packs.append(pack := {"room": self.capacities - depth + fork, "pieces": []})
            pack["room"] = pack["room"] - size
            pack["pieces"].append((leaves, load))
        return [self.merged(pack, depth, fork) if len(pack["pieces"]) > 1 else pack["pieces"][0] for pack in packs]

    def merged(self, pack, depth, fork):
        """What pieces take together, at most: below a trunk that is cut as cheap they may share more."""
        taken = self.capacities - pack["room"]
        leaves = sorted(leaf for leaves, _ in pack["pieces"] for leaf in leaves)
        return leaves, taken if taken[0] >= depth[0] else taken + fork


@pytest.mark.parametrize("num_budgets", [1, 2])
@given(many_words, st.sampled_from([1, 3]), st.integers(0, 40), st.integers(0, 900), st.sampled_from([0, 3, 6]))
def test_large_trees_are_cut_from_their_leaves_up(num_budgets, letters, stretch, more, more_squares, cheap):
    """Equal leaves and sizes of all fragments: others would still be right, and fill packs worse. A trunk with many
    pieces is cut as samples are packed: into fragments of the same sizes, for one budget.
    """
    samples = sorted(stretched(letters, stretch))
    capacities = (amounts(max(map(len, samples))) + OF_SAMPLE + [more, more_squares])[:num_budgets]
    forest = forest_of_both(samples)
    if num_budgets == 1:
        forest = type(forest)(forest.depths[:, :1], forest.parents, forest.gaps, forest.first, forest.stop)
    packs, loads = fragments_of(forest, capacities, cheap=cheap)
    found = [(sorted(leaves), load) for leaves, load in zip(packs.as_lists(), loads.tolist(), strict=True)]
    expected = SlowFragments(samples, capacities, cheap).fragments
    assert sorted(found) == sorted((list(leaves), load.tolist()) for leaves, load in expected)
    with mock.patch.object(subtree_fit, "_FEW", 1):
        packs, many = fragments_of(forest, capacities, cheap=cheap)
    assert num_budgets > 1 or sorted(many.tolist()) == sorted(loads.tolist())
    assert sorted(packs.items.tolist()) == list(range(len(samples)))
    for leaves, load in zip(packs.as_lists(), many, strict=True):
        assert (load_of([samples[leaf] for leaf in leaves])[:num_budgets] <= load).all()
        assert (load <= capacities).all()

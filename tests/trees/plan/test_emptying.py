"""Emptying: step by step as described, in slow words, on packs that are drawn."""

from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.trees.plan import emptying
from brimful.trees.plan.emptying import emptied
from brimful.trees.plan.segments import packs_of
from tests.trees.plan.forests import OF_SAMPLE, amounts, common_of, forest_of_both, load_of, many_words, stretched


def slowly_emptied(samples, packs, capacities, attempts):
    """Packs after the emptiest were emptied until some in a row could not be; None for one that was."""
    loads = [load_of([samples[leaf] for leaf in pack]) for pack in packs]
    packs, waiting, failures = list(packs), set(range(len(packs))), 0
    while waiting and failures < attempts:
        emptiest = min(waiting, key=lambda pack: (loads[pack][0], pack))
        waiting.remove(emptiest)
        before = list(packs), list(loads)
        leaves, packs[emptiest] = packs[emptiest], None
        for leaf in sorted(leaves, key=lambda leaf: -len(samples[leaf])):
            ways = []
            for number, pack in enumerate(packs):
                if pack is not None:
                    common = max(common_of(samples[leaf], samples[other]) for other in pack)
                    added = amounts(len(samples[leaf])) + OF_SAMPLE - amounts(common) + [common > 0, 0]
                    if (loads[number] + added <= capacities).all():
                        ways.append((added[0], -loads[number][0], number, added))
            if not ways:
                packs, loads = before
                failures += 1
                break
            _, _, best, added = min(ways, key=lambda way: way[:3])
            packs[best], loads[best] = sorted([*packs[best], leaf]), loads[best] + added
        else:
            failures, waiting = 0, waiting - {emptiest}
    return packs


@given(many_words, st.data(), st.integers(0, 60), st.integers(0, 2_000), st.sampled_from([1, 2, 3, 8]))
def test_leaves_of_the_emptiest_packs_go_where_they_add_least(letters, data, more, more_squares, attempts):
    """One budget too many or a pack too few, and the step of a training run has other samples than the plan says."""
    samples = sorted(stretched(letters, 3))
    numbers = data.draw(st.lists(st.integers(0, 9), min_size=len(samples), max_size=len(samples)))
    pack = np.unique(numbers, return_inverse=True)[1]
    packs = packs_of(pack, int(pack.max()) + 1)
    lists = packs.as_lists()
    fullest = np.max([load_of([samples[leaf] for leaf in one]) for one in lists], axis=0)
    capacities = fullest + np.array([more, more_squares])
    at_once = data.draw(st.sampled_from([2, 3, 256]))
    # Packs of neighboring trees form a part.
    expected = [None] * len(lists)
    order = sorted(range(len(lists)), key=lambda one: lists[one][0])
    num_parts = -(-len(lists) // at_once)
    for part in range(num_parts):
        members = sorted(one for rank, one in enumerate(order) if rank * num_parts // len(lists) == part)
        result = slowly_emptied(samples, [lists[one] for one in members], capacities, attempts)
        for one, leaves in zip(members, result, strict=True):
            expected[one] = leaves
    with mock.patch.multiple(emptying, _ATTEMPTS=attempts, _AT_ONCE=at_once):
        found = emptied(forest_of_both(samples), packs, capacities).as_lists()
    assert found == [leaves for leaves in expected if leaves is not None]


@pytest.mark.parametrize(("attempts", "expected"), [(1, [[0], [1, 2], [3], [4]]), (2, [[0], [1, 3], [2, 4]])])
def test_it_ends_when_some_packs_in_a_row_cannot_be_emptied(attempts, expected):
    """Packs of 5, 3 + 3, 7 and 7 tokens in a capacity of 10: the first fits nowhere, the second fills the last two."""
    samples = [[letter] * length for letter, length in enumerate([5, 3, 3, 7, 7])]
    with mock.patch.object(emptying, "_ATTEMPTS", attempts):
        found = emptied(forest_of_both(samples), packs_of(np.array([0, 1, 1, 2, 3]), 4), np.array([10, 1_000]))
    assert found.as_lists() == expected

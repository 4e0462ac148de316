"""Overflow policies: the tokens that survive, and the words for those who chose none."""

import pytest

from brimful import plan_packs
from brimful.errors import OversizedSampleError
from tests.plan.contents import segments_of


def test_the_way_out_of_an_oversized_sample_is_one():
    """With an alignment of 8 the length itself would be refused again."""
    with pytest.raises(OversizedSampleError, match=r"capacity of 16 tokens, in multiples of 8.*capacity=24"):
        plan_packs([20], capacity=20, alignment=8)
    assert plan_packs([20], capacity=24, alignment=8).num_packs == 1


@pytest.mark.parametrize(
    ("policy", "segments"),
    [
        ("drop", [(0, 0, 3)]),
        ("truncate", [(0, 0, 3), (1, 0, 4)]),
        ("truncate_left", [(0, 0, 3), (1, 6, 4)]),
        ("split", [(0, 0, 3), (1, 0, 4), (1, 4, 4), (1, 8, 2)]),
    ],
)
def test_each_overflow_policy_on_one_long_sample(policy, segments):
    """The policies differ in which tokens survive; a wrong start would train on the wrong end."""
    assert segments_of(plan_packs([3, 10], capacity=4, overflow=policy)) == segments


def test_oversized_error_names_samples_lengths_and_ways_out():
    """The message is the interface: ids, lengths, limit, flags."""
    with pytest.raises(
        OversizedSampleError, match=r"1 of 2 samples .* capacity of 4 tokens: sample 1 \(10\)"
    ) as caught:
        plan_packs([3, 10], capacity=4)
    assert 'overflow="drop", truncate, truncate_left or split, or capacity=10' in str(caught.value)

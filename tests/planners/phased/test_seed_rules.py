"""Rules that choose seeds."""

import numpy as np
import pytest

from brimful.planners.phased import (
    CapacityRatio,
    Half,
    Lengths,
    Seeded,
    SizeRange,
    TopN,
)
from brimful.planners.phased.phase import Phase, SeedRule
from tests.planners.phased.instances import histogram


@pytest.mark.parametrize(
    ("rule", "seeds"),
    [
        (Half(), [5, 6, 9]),
        (Half(6), [6, 9]),
        (Half("mean"), [5, 6, 9]),
        (TopN(2), [6, 9]),
        (TopN(9), [2, 3, 5, 6, 9]),
        (SizeRange(), [5, 6, 9]),
        (SizeRange(3, 5), [3, 5]),
        (CapacityRatio(), [3, 5, 6, 9]),
        (CapacityRatio(0.2, 0.5), [2, 3, 5]),
        (Lengths((3, 4, 9)), [3, 9]),
    ],
)
def test_which_lengths_are_seeds(rule, seeds):
    """Each rule on 2 3 5 6 9 at capacity 10: bounds are included, and decimals mean what they say."""
    lengths = np.array([2, 3, 5, 6, 9])
    assert lengths[rule.choose(lengths, capacity=10)].tolist() == seeds


def test_capacity_ratio_chooses_seeds_and_leaves_min_fill_alone():
    """5 + 3 is 80 %: kept from 0.8 on, not because the seeds may be 30 % long."""
    items = histogram({5: 1, 1: 3})
    assert Seeded(CapacityRatio(0.5, 0.6), min_fill=0.95).place(items, capacity=10).packs == []
    assert Seeded(CapacityRatio(0.5, 0.6), min_fill=0.8).place(items, capacity=10).packs == [(((5, 1), (1, 3)), 1)]


@pytest.mark.parametrize("kind", [Phase, SeedRule])
def test_a_kind_without_its_work_is_refused(kind):
    """A phase of one's own that forgets its method would pack nothing, and leave that to the next one."""
    with pytest.raises(TypeError, match="abstract"):
        kind()

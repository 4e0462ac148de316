"""First fit decreasing on worked examples of existing packers."""

from brimful import plan_packs
from tests.plan.contents import lengths_of


def test_forks_worked_example_needs_two_packs():
    """70 30 30 30 20 at 100 by first fit decreasing, from an existing packer's own test."""
    assert plan_packs([70, 30, 30, 30, 20], capacity=100, algorithm="first_fit_decreasing").num_packs == 2


def test_five_samples_by_first_fit_decreasing():
    """70, 30, 30, 30, 20 at 100: two packs, from a packing producer's own test."""
    assert lengths_of(plan_packs([70, 30, 30, 30, 20], capacity=100, algorithm="ffd", seed=None)) == [
        [70, 30],
        [30, 30, 20],
    ]

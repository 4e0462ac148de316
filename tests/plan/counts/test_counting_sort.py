"""The order of lengths, longest first."""

from brimful import plan_packs
from tests.plan.contents import ids_of


def test_capacity_over_sixty_four_thousand_takes_two_radix_passes():
    """Lengths of more than 16 bits go through the other sort."""
    lengths = [70_000, 131_072, 5, 61_072, 1]
    plan = plan_packs(lengths, capacity=131_072, seed=None)
    assert ids_of(plan) == [[1], [0, 3], [2, 4]]

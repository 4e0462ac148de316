"""Whole packs from fractional solutions."""

from brimful.plan.counts.histogram import Histogram
from brimful.planners.optimal.rounding import fix_whole_packs, substitute_lengths
from brimful.planners.patterns import load_of, pattern_of
from tests.plan.frozen import digest_of


def _random_rounding(chance):
    """Patterns of a few lengths, some with more copies than there are items, with packs in fractions."""
    items = Histogram.of(chance.numbers(1, chance.of(6, 30), chance.number(1, 40)))
    lengths = items.lengths.tolist()
    patterns = [
        pattern_of(lengths, chance.numbers(0, len(lengths), chance.number(1, 5)).tolist())
        for _ in range(chance.of(6, 40))
    ]
    most = chance.of(4, 30)
    solution = {pattern: chance.number(1, most) / chance.of(4, 8, 10) for pattern in patterns}
    packs, others = fix_whole_packs(items, solution, chance.of(0.025, 0.1, 0.5))
    assert max(map(load_of, packs)) <= max(map(load_of, solution))
    return [list(packs.items()), others.lengths.tolist(), others.counts.tolist(), substitute_lengths(patterns, others)]


def test_random_solutions_are_rounded_as_they_were():
    """Places without an item of their length take a shorter one; another choice costs packs that only long searches show."""
    assert digest_of(_random_rounding, 400) == "6df3c427d12d75ff"

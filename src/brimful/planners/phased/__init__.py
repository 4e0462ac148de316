"""Packing in phases that a user chooses: powers of two, then seeds by one rule after another, then
the finish.

::

    items ─► powers_of_two ─► half(…) ─► top_n(…) ─► … ─► finish ─► packs
                 │                │           │               │
                 └─ full packs    └─ packs    └─ packs        └─ all remaining items

Each phase takes counts of lengths, makes packs from some of the items and passes on the remaining
counts. ``powers_of_two`` and ``seed_and_fill`` are phases, ``phase`` has ``Finish``, the last one,
and the rules that choose seeds. ``recipe`` reads them from text and runs them.
"""

from brimful.planners.phased.phase import (
    CapacityRatio,
    Finish,
    Half,
    Lengths,
    Phase,
    Placed,
    SeedRule,
    SizeRange,
    TopN,
)
from brimful.planners.phased.powers_of_two import PowersOfTwo
from brimful.planners.phased.recipe import Phased, Recipe, pack_counts, recipe_of
from brimful.planners.phased.seed_and_fill import Seeded

__all__ = [
    "CapacityRatio",
    "Finish",
    "Half",
    "Lengths",
    "Phase",
    "Phased",
    "Placed",
    "PowersOfTwo",
    "Recipe",
    "SeedRule",
    "Seeded",
    "SizeRange",
    "TopN",
    "pack_counts",
    "recipe_of",
]

"""Packs made in phases that a user chooses: powers of two, then seeds by one rule after another, then the finish.

::

    items ─► powers_of_two ─► half(…) ─► top_n(…) ─► … ─► finish ─► packs
                 │                │           │               │
                 └─ full packs    └─ packs    └─ packs        └─ everything that is left

Each phase takes counts of lengths, makes packs of some of the items and hands on the counts that remain. One file per
phase: ``powers_of_two``, ``seeded`` (``seeds`` says which lengths are seeds), ``finish``; ``recipe`` runs them.
"""

from __future__ import annotations

from brimful.plan.phases.finish import Finish
from brimful.plan.phases.phase import Phase, Placed
from brimful.plan.phases.powers_of_two import PowersOfTwo
from brimful.plan.phases.recipe import Phased, PhaseReport, Recipe
from brimful.plan.phases.seeded import Seeded
from brimful.plan.phases.seeds import CapacityRatio, Half, Lengths, SeedRule, SizeRange, TopN

__all__ = [
    "CapacityRatio",
    "Finish",
    "Half",
    "Lengths",
    "Phase",
    "PhaseReport",
    "Phased",
    "Placed",
    "PowersOfTwo",
    "Recipe",
    "SeedRule",
    "Seeded",
    "SizeRange",
    "TopN",
]

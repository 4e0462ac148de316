"""Lengths to packs: ``plan_packs`` and the ``Plan`` it makes. Pure, but for ``store``.

One file per algorithm. The decreasing ones work on counts of lengths (``histogram``), the others on the
lengths in their order.
"""

from __future__ import annotations

from brimful.plan.overflow import Overflow
from brimful.plan.plan import Plan, Segment
from brimful.plan.planner import ALGORITHMS, plan_packs

__all__ = ["ALGORITHMS", "Overflow", "Plan", "Segment", "plan_packs"]

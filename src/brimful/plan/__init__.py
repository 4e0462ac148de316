"""Lengths to packs: ``plan_packs`` and the ``Plan`` it makes. Pure, but for ``store``.

One file per algorithm. The decreasing ones work on counts of lengths (``histogram``), the others on the
lengths in their order.
"""

from __future__ import annotations

from brimful.plan.alignment import Alignment
from brimful.plan.lookahead import Lookahead
from brimful.plan.overflow import Overflow
from brimful.plan.plan import Plan, Segment
from brimful.plan.planner import plan_packs
from brimful.plan.schedule import CostModel, Tail, pack_costs, schedule_packs
from brimful.plan.settings import ALGORITHMS
from brimful.plan.stream import StreamPacks

__all__ = [
    "ALGORITHMS",
    "Alignment",
    "CostModel",
    "Lookahead",
    "Overflow",
    "Plan",
    "Segment",
    "StreamPacks",
    "Tail",
    "pack_costs",
    "plan_packs",
    "schedule_packs",
]

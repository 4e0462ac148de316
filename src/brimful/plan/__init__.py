"""Lengths to packs: ``plan_packs`` and the ``Plan`` it makes. Pure, except for ``saved``.

::

    LengthTable ─► Items ──────► PackResult ──────────────► Plan ─► Schedule
      planner      items         algorithms   order/        plan    schedule/
      plan_        policies/     fit/ counts/             ledger
      settings                                             saved/

``algorithms`` is the one table of all algorithms; each has its own file. The decreasing ones work
on counts of lengths (``counts``), the others on the lengths in their order.
"""

from brimful.plan.algorithms import ALGORITHMS
from brimful.plan.packing import PlanOutcome
from brimful.plan.plan import Plan
from brimful.plan.plan_settings import PlanSettings
from brimful.plan.planner import plan_packs, plan_with
from brimful.plan.policies.budgets import Alignment
from brimful.plan.policies.overflow import NoTarget, Overflow
from brimful.plan.saved.planned_packs import Segment
from brimful.plan.schedule import CostModel, Tail, pack_costs, schedule_packs

__all__ = [
    "ALGORITHMS",
    "Alignment",
    "CostModel",
    "NoTarget",
    "Overflow",
    "Plan",
    "PlanOutcome",
    "PlanSettings",
    "Segment",
    "Tail",
    "pack_costs",
    "plan_packs",
    "plan_with",
    "schedule_packs",
]

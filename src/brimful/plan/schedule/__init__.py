"""Packs to steps and ranks, balanced by the cost of each pack."""

from brimful.plan.schedule.balance import Barrier, imbalance, quantise
from brimful.plan.schedule.cost_model import CostModel, pack_costs, pack_squares
from brimful.plan.schedule.schedule import DEFAULT_WINDOW_STEPS, Tail, schedule_packs

__all__ = [
    "DEFAULT_WINDOW_STEPS",
    "Barrier",
    "CostModel",
    "Tail",
    "imbalance",
    "pack_costs",
    "pack_squares",
    "quantise",
    "schedule_packs",
]

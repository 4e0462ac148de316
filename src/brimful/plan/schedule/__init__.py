"""Assignment of packs to steps and ranks, balanced by the cost of each pack."""

from brimful.plan.schedule.balance import Barrier, imbalance, quantize
from brimful.plan.schedule.cost_model import Component, CostModel
from brimful.plan.schedule.pack_costs import pack_component_costs, pack_costs, pack_squares
from brimful.plan.schedule.schedule import (
    DEFAULT_WINDOW_STEPS,
    Shape,
    Tail,
    resized_schedule,
    schedule_packs,
)

__all__ = [
    "DEFAULT_WINDOW_STEPS",
    "Barrier",
    "CostModel",
    "Component",
    "Shape",
    "Tail",
    "imbalance",
    "pack_costs",
    "pack_component_costs",
    "pack_squares",
    "quantize",
    "resized_schedule",
    "schedule_packs",
]

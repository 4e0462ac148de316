"""Plans of one step: samples that arrive together, divided among ranks and micro-batches within a millisecond.

::

    lengths ─► StepItems ─► spread ────────► StepPlan
    planner    step_items   levels  fill     step_plan  loss_weights
"""

from brimful.plan.step.loss_weights import LossMean, loss_weights
from brimful.plan.step.planner import plan_step
from brimful.plan.step.step_items import GroupsShare
from brimful.plan.step.step_plan import StepPlan

__all__ = ["GroupsShare", "LossMean", "StepPlan", "loss_weights", "plan_step"]

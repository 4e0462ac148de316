"""Planning of one step: samples that arrive together, divided among ranks and micro-batches within a millisecond.

::

    lengths ─► StepItems ─► spread ────────────────────────────────► StepPlan
    planner    step_items   levels  fill                             step_plan  loss_weights
               groups:      ranks_of_groups  within_ranks  exchange  by_micro_batch

``context_parallel`` shares long samples among ranks; ``warm_up`` loads the compiled code.
"""

from brimful.plan.step.context_parallel import plan_context_parallel
from brimful.plan.step.context_parallel_plan import ContextParallelPlan
from brimful.plan.step.loss_weights import LossMean, loss_weights
from brimful.plan.step.planner import plan_step
from brimful.plan.step.step_items import GroupsShare
from brimful.plan.step.step_plan import StepPlan
from brimful.plan.step.warm_up import warm_up

__all__ = [
    "ContextParallelPlan",
    "GroupsShare",
    "LossMean",
    "StepPlan",
    "loss_weights",
    "plan_context_parallel",
    "plan_step",
    "warm_up",
]

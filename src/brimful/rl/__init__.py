"""Steps of reinforcement learning: samples that arrive together, planned within a millisecond,
packed and restored.

::

    lengths ─► StepItems ───► search ──────────────► spread ─────────────────► StepPlan ─► packs ─► batches ─► each sample again
    step_planner  step_items  step_search             spread_samples  levels    step_plan   step_packs          step_packs
                              item_search             within_ranks
                              step_trees              spread_trees

``context_parallel`` shares long samples among ranks, ``context_parallel_split`` cuts the rows of a
batch for ranks that share it, ``warm_up`` loads the compiled code, and ``compat`` has the planning
functions of trainers under their own names.
"""

from brimful.rl.context_parallel import plan_context_parallel
from brimful.rl.context_parallel_split import (
    ContextParallelLayout,
    ContextParallelShard,
    context_parallel_indices,
    gather_from_context_parallel,
    split_for_context_parallel,
)
from brimful.rl.step_items import GroupsShare
from brimful.rl.step_packs import (
    RestoredTokens,
    SampleColumn,
    pack_step,
    restore_index,
    restore_tokens,
)
from brimful.rl.step_plan import (
    ContextParallelPlan,
    LossMean,
    StepPlan,
    StepTrees,
    loss_weights,
)
from brimful.rl.step_planner import plan_step, warm_up
from brimful.rl.step_trees import find_step_prefixes

__all__ = [
    "ContextParallelLayout",
    "ContextParallelPlan",
    "ContextParallelShard",
    "GroupsShare",
    "LossMean",
    "RestoredTokens",
    "SampleColumn",
    "StepPlan",
    "StepTrees",
    "context_parallel_indices",
    "find_step_prefixes",
    "gather_from_context_parallel",
    "loss_weights",
    "pack_step",
    "plan_context_parallel",
    "plan_step",
    "restore_index",
    "restore_tokens",
    "split_for_context_parallel",
    "warm_up",
]

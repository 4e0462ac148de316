"""Loading of compiled planning code before it is needed."""

import numpy as np

from brimful.base.compiling import warming_up
from brimful.plan.planner import plan_packs
from brimful.rl.context_parallel import plan_context_parallel
from brimful.rl.step_planner import plan_step

_NUM_SAMPLES = 64
"""Number of samples in the plans: enough to reach every loop."""


def warm_up() -> bool:
    """Load the compiled code of ``plan_step``, ``plan_context_parallel`` and ``plan_packs``; compile it the first time.

    This takes some seconds on a new machine and half a second later; without this call, the first training step pays
    for it. After this call, plans of any size run compiled in this process. Without numba nothing is loaded, and plans
    are the same.

    Returns:
        True if compiled code is available.

    >>> warm_up()  # doctest: +SKIP
    True
    """
    with warming_up() as has_compiler:
        # Some samples cost more than the mean, so that slices are filled to their level.
        lengths = np.r_[np.full(3, 64), np.arange(_NUM_SAMPLES) % 7 + 8]
        for barrier in ("micro_batch", "step"):
            plan_step(lengths, capacity=64, dp_world_size=2, cost=lengths.astype(np.float64) ** 2, barrier=barrier)
        groups = np.arange(len(lengths)) // 2
        plan_step(lengths, capacity=64, dp_world_size=2, cost=lengths.astype(np.float64) ** 2, groups=groups)
        plan_step(lengths, capacity=64, dp_world_size=2, budgets={"samples": 16})
        plan_context_parallel(lengths, max_tokens_per_rank=64, world_size=4)
        for dtype in (np.int32, np.int64):
            plan_packs(lengths.astype(dtype), capacity=64)
    return has_compiler

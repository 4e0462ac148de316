"""Execution of tasks in this process, in several, or on a cluster; independent of packing."""

from brimful.base.execute.execution import (
    LOCAL,
    Engine,
    Execution,
    ExecutionLike,
    Resources,
    as_execution,
    available_cores,
)
from brimful.base.execute.run_tasks import run_tasks

__all__ = [
    "LOCAL",
    "Engine",
    "Execution",
    "ExecutionLike",
    "Resources",
    "as_execution",
    "available_cores",
    "run_tasks",
]

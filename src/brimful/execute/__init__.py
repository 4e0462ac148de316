"""Runs tasks in this process or in several; knows nothing of packing."""

from brimful.execute.local import available_cores, run_tasks

__all__ = ["available_cores", "run_tasks"]

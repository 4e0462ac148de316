"""Tasks of a job, run by the engine of its execution."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TypeVar

from brimful.execute.execution import LOCAL, Execution
from brimful.execute.local import available_cores, run_locally

Context = TypeVar("Context")
Task = TypeVar("Task")
Result = TypeVar("Result")


def _stay_silent(_text: str) -> None: ...


def run_tasks(
    function: Callable[[Context, Task], Result],
    tasks: Sequence[Task],
    *,
    context: Context,
    num_proc: int | None,
    threads: int = 1,
    preload: Mapping[str, Mapping[str, str]] | None = None,
    execution: Execution = LOCAL,
    shared: Sequence[str | os.PathLike[str]] = (),
    say: Callable[[str], None] = _stay_silent,
) -> Generator[tuple[Task, Result], None, None]:
    """Run ``function(context, task)`` for every task; yield each with its result as it is done, in any order.

    Args:
        function: importable by name; the first exception it raises is raised here and ends the job.
        tasks: the second argument of each call; ``str(task)`` names it in messages.
        context: the first argument of all calls; sent to each process once.
        num_proc: processes, or workers of a cluster; all cores if None. One process runs everything here.
        threads: with one process, tasks at a time, for tasks that wait for a disk or for code outside Python.
        preload: modules that processes need, with the environment variables that each reads.
        execution: its engine runs the tasks. Shares are up to the caller, which knows all tasks.
        shared: directories through which tasks exchange results; every machine must see them.
        say: shows the user a line about workers.

    Raises:
        TaskFailedError: a worker process died (most often: out of memory); on a cluster, repeatedly at one task.
        SettingsError: no cluster runs, or one of its machines does not see a shared directory.
    """
    if execution.is_local:
        cores = available_cores() if num_proc is None else num_proc
        return run_locally(function, tasks, context=context, num_proc=cores, threads=threads, preload=preload)
    from brimful.execute.ray import run_on_ray

    return run_on_ray(function, tasks, context=context, num_proc=num_proc, shared=shared, say=say)

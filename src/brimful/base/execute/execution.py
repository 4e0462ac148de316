"""Settings of a job's tasks: their engine, the tasks that one call does, and the means to do
them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TypeAlias, TypeVar

from brimful.base.arguments import option
from brimful.base.checks import check_type, choice_of
from brimful.base.progress import Progress
from brimful.base.wording import setting
from brimful.errors import SettingsError, UnfinishedSharesError

Task = TypeVar("Task")


class Engine(str, Enum):
    """Runners of tasks."""

    LOCAL = "local"
    """Processes of this machine."""
    RAY = "ray"
    """Workers of a running Ray cluster."""


@dataclass(frozen=True)
class Execution:
    """Settings of where tasks run; they never change a byte of the result.

    Tasks write their results to directories or stores that all machines see, complete and under
    names derived from their content. So a task that runs twice, or is killed, changes nothing, and
    each task of a Slurm array does its share independently.

    Attributes:
        engine: ``local`` or ``ray``.
        task_index: number of the share that this call does, from 0; None does everything.
        num_tasks: number of shares of the job.

    Raises:
        SettingsError: a share that does not exist, or a share on Ray, which distributes tasks
            itself.

    >>> Execution(task_index=1, num_tasks=3).share(["a", "b", "c", "d", "e"])
    ['b', 'e']
    """

    engine: Engine = option(
        Engine.LOCAL, "Where the work runs: processes of this machine, or the running Ray cluster."
    )
    task_index: int | None = option(
        None,
        "Do one share of the job, from 0, for a Slurm array; the share that finishes last joins "
        "them.",
        "N",
    )
    num_tasks: int | None = option(None, "Shares of the job.", "N")

    def __post_init__(self) -> None:
        object.__setattr__(self, "engine", choice_of(Engine, self.engine, argument="engine"))
        for name in ("task_index", "num_tasks"):
            check_type(name, getattr(self, name), (int, type(None)), "a whole number")
        if (self.task_index is None) != (self.num_tasks is None):
            absent, present = (
                ("task_index", "num_tasks")
                if self.task_index is None
                else ("num_tasks", "task_index")
            )
            raise SettingsError(f"{setting(present)} goes with {setting(absent)}: give both")
        if self.task_index is None or self.num_tasks is None:
            return
        if self.num_tasks < 1:
            raise SettingsError(
                f"{setting('num_tasks')} must be at least 1 and is {self.num_tasks}"
            )
        if not 0 <= self.task_index < self.num_tasks:
            raise SettingsError(
                f"{setting('task_index')} must be 0 to {self.num_tasks - 1} and is "
                f"{self.task_index} (a Slurm array counts from 0 with array=0-{self.num_tasks - 1})"
            )
        if self.engine is not Engine.LOCAL:
            raise SettingsError(
                f"{setting('task_index')} is a share of a job for processes of this machine, and "
                f"{setting('engine', self.engine.value)} distributes tasks itself: leave one out"
            )

    @property
    def is_local(self) -> bool:
        """True if tasks run on this machine."""
        return self.engine is Engine.LOCAL

    @property
    def is_share(self) -> bool:
        """True if other calls do the rest of the job."""
        return self.num_tasks is not None

    def share(self, tasks: Sequence[Task]) -> list[Task]:
        """Return the tasks of this call: every ``num_tasks``-th of all tasks, whether done or
        not.
        """
        return list(tasks[self.task_index or 0 :: self.num_tasks or 1])

    def check_all_done(self, num_done: int, num_total: int, unit: str, missing: str = "") -> None:
        """Check that all shares are done, so that this call may join them; ``missing`` names the
        missing ones.

        Raises:
            UnfinishedSharesError: this share is done, others are not.
        """
        if num_done < num_total:
            raise UnfinishedSharesError(
                f"share {self.task_index} of {self.num_tasks} is done; {num_done:,} of "
                f"{num_total:,} {unit} exist{f', and {missing} missing' if missing else ''}. The "
                "call that finishes last joins them, or the same call without "
                f"{setting('task_index')} and {setting('num_tasks')}"
            )


ExecutionLike: TypeAlias = Execution | Engine | str
"""An execution, or the name of an engine."""

LOCAL = Execution()


def as_execution(execution: ExecutionLike) -> Execution:
    """Return the execution itself, or an execution for the engine of that name.

    >>> as_execution("ray").engine.value
    'ray'
    """
    check_type(
        "execution",
        execution,
        (Execution, str),
        "an Execution, or the name of an engine: local or ray",
    )
    return execution if isinstance(execution, Execution) else Execution(engine=execution)  # type: ignore[arg-type]


def available_cores() -> int:
    """Return the number of cores this process may use, which in a container or under Slurm may be
    fewer than exist.
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass(frozen=True)
class Resources:
    """Means of a job.

    Attributes:
        num_proc: processes, or workers of a cluster; all cores if None.
        execution: of its tasks.
        progress: reports them.
    """

    num_proc: int | None = None
    execution: Execution = LOCAL
    progress: Progress = field(default_factory=Progress)

    def for_work(self, *, is_small: bool) -> Resources:
        """Return the means for a part of the job: one process on this machine if the work is
        small.
        """
        if self.num_proc is not None or not self.execution.is_local:
            return self
        return replace(self, num_proc=1 if is_small else available_cores())

"""Tasks on this machine: in this process, or in several.

Tasks must be independent and safe to run twice: a job that is killed runs the missing ones again. Worker
processes start fresh (``forkserver``), so threads and GPU contexts of the caller cannot harm them, and end
when their parent dies, however it dies.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from brimful.checks import check_type
from brimful.errors import SettingsError
from brimful.execute.workers import Workers
from brimful.messages import setting

__all__ = ["available_cores", "run_tasks"]

Context = TypeVar("Context")
Task = TypeVar("Task")
Result = TypeVar("Result")

_TASKS_AHEAD = 2
"""Tasks queued per process: enough that none waits, few enough that an error stops the job soon."""

_BREATH = 0.5
"""Seconds after which a wait looks up: locks of some systems (Windows) are not interrupted by Ctrl-C."""

_FAREWELL = 1.0
"""Seconds in which worker processes that were killed are gone."""


def available_cores() -> int:
    """Cores this process may use (which in a container or under Slurm are fewer than the machine has)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run_tasks(
    function: Callable[[Context, Task], Result],
    tasks: Sequence[Task],
    *,
    context: Context,
    num_proc: int,
    threads: int = 1,
) -> Generator[tuple[Task, Result], None, None]:
    """Run ``function(context, task)`` for every task; yield each with its result as it is done, in any order.

    Args:
        function: importable by name; the first exception it raises is raised here and ends the job.
        tasks: what differs from call to call.
        context: what does not; sent to each process once.
        num_proc: processes; 1 runs everything here.
        threads: with one process, tasks at a time: for those that wait for a disk, or for code outside Python.

    Raises:
        TaskFailedError: a worker process died (most often: out of memory).
    """
    check_type("num_proc", num_proc, int, "a whole number")
    if num_proc < 1:
        raise SettingsError(f"{setting('num_proc')} must be at least 1 and is {num_proc}")
    if num_proc > 1 and len(tasks) > 1:
        yield from _by_processes(function, tasks, context, min(num_proc, len(tasks)))
    elif threads > 1 and len(tasks) > 1:
        yield from _by_threads(lambda: nullcontext(partial(function, context)), tasks, min(threads, len(tasks)))
    else:
        for task in tasks:
            yield task, function(context, task)


def _by_processes(
    function: Callable[[Any, Any], Any], tasks: Sequence[Any], context: Any, num_proc: int
) -> Generator[tuple[Any, Any], None, None]:
    workers = Workers(function, context)
    yield from _by_threads(workers.hire, tasks, num_proc, end=workers.end)


def _by_threads(
    hire: Callable[[], AbstractContextManager[Callable[[Any], Any]]],
    tasks: Sequence[Any],
    num_threads: int,
    end: Callable[[], None] | None = None,
) -> Generator[tuple[Any, Any], None, None]:
    """Share tasks among threads, each of which hires somebody to do them; the caller only waits.

    Threads of our own and not of ``concurrent.futures``: its are joined when the interpreter ends, whatever they do.

    Args:
        hire: entered once in each thread; gives what does a task.
        end: makes those that were hired stop in the middle of a task; without it each finishes its own.
    """
    orders: SimpleQueue[tuple[Any] | None] = SimpleQueue()
    answers: SimpleQueue[tuple[Any, Any, BaseException | None]] = SimpleQueue()
    stopped = threading.Event()
    threads = [
        threading.Thread(target=_labour, args=(hire, orders, answers, stopped), daemon=True) for _ in range(num_threads)
    ]
    remaining = iter(tasks)
    try:
        for task in itertools.islice(remaining, num_threads * _TASKS_AHEAD):
            orders.put((task,))
        for thread in threads:
            thread.start()
        for _ in tasks:
            task, result, error = _next(answers)
            if error is not None:
                raise error
            for following in itertools.islice(remaining, 1):
                orders.put((following,))
            yield task, result
    finally:
        stopped.set()
        if end is not None:
            end()
        for _ in threads:
            orders.put(None)
        until = time.monotonic() + _FAREWELL
        for thread in threads:
            if thread.ident is not None:
                thread.join(None if end is None else max(0.0, until - time.monotonic()))


def _next(answers: SimpleQueue[Any]) -> Any:
    while True:
        try:
            return answers.get(timeout=_BREATH)
        except Empty:
            continue


def _labour(
    hire: Callable[[], AbstractContextManager[Callable[[Any], Any]]],
    orders: SimpleQueue[tuple[Any] | None],
    answers: SimpleQueue[tuple[Any, Any, BaseException | None]],
    stopped: threading.Event,
) -> None:
    try:
        with hire() as work:
            while (order := orders.get()) is not None and not stopped.is_set():
                answers.put((order[0], work(order[0]), None))
    except BaseException as error:
        answers.put((None, None, error))

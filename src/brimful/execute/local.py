"""Tasks on this machine: in this process, or in several.

Tasks must be independent and safe to run twice: a job that is killed runs the missing ones again. Worker
processes start fresh (``forkserver``), so threads and GPU contexts of the caller cannot harm them, and end
when their parent dies, however it dies.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from brimful.arguments import check_type
from brimful.errors import SettingsError, TaskFailedError
from brimful.words import setting

__all__ = ["available_cores", "run_tasks"]

Context = TypeVar("Context")
Task = TypeVar("Task")
Result = TypeVar("Result")

_TASKS_AHEAD = 2
"""Tasks queued per process: enough that none waits, few enough that an error stops the job soon."""

_worker_function: Callable[[Any, Any], Any]
_worker_context: Any


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
) -> Iterator[tuple[Task, Result]]:
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
        yield from _run_in_processes(function, tasks, context, min(num_proc, len(tasks)))
    elif threads > 1 and len(tasks) > 1:
        pool = ThreadPoolExecutor(min(threads, len(tasks)))
        try:
            yield from _run_in_pool(pool, lambda task: function(context, task), tasks, threads)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    else:
        for task in tasks:
            yield task, function(context, task)


def _run_in_pool(
    pool: Executor, work: Callable[[Any], Any], tasks: Sequence[Any], at_once: int
) -> Iterator[tuple[Any, Any]]:
    remaining = iter(tasks)
    running: dict[Future[Any], Any] = {}
    while True:
        for task in remaining:
            running[pool.submit(work, task)] = task
            if len(running) >= at_once * _TASKS_AHEAD:
                break
        if not running:
            return
        done, _ = wait(running, return_when=FIRST_COMPLETED)
        for future in done:
            task = running.pop(future)
            yield task, future.result()


def _run_in_processes(
    function: Callable[[Any, Any], Any], tasks: Sequence[Any], context: Any, num_proc: int
) -> Iterator[tuple[Any, Any]]:
    pool = ProcessPoolExecutor(
        num_proc, mp_context=_fresh_processes(), initializer=_start_worker, initargs=(function, context)
    )
    try:
        yield from _run_in_pool(pool, _work, tasks, num_proc)
    except BrokenProcessPool as error:
        raise TaskFailedError(
            f"a worker process died before it answered: most often memory ran out (try a smaller {setting('num_proc')}), or a "
            "script starts the job without `if __name__ == '__main__':`; what was finished is kept, run it again"
        ) from error
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _fresh_processes() -> Any:
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["brimful.execute.preload"])
    return context


def _start_worker(function: Callable[[Any, Any], Any], context: Any) -> None:
    global _worker_function, _worker_context
    _worker_function, _worker_context = function, context
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one process a core already; threads on top only get in the way
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work(task: Any) -> Any:
    return _worker_function(_worker_context, task)

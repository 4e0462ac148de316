"""Tasks of a job, run by the engine of its execution: in this process, in several, or on a cluster.

Tasks must be independent and safe to run twice: a job that was killed runs its unfinished tasks
again. Worker processes start fresh (``forkserver``), so threads and GPU contexts of the caller
cannot harm them, and end when their parent dies, even by SIGKILL.
"""

import contextlib
import gc
import itertools
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias, TypeVar

from brimful.base.checks import setting_number
from brimful.base.execute.execution import Resources, available_cores
from brimful.base.execute.serving import OBJECTS_BETWEEN_COLLECTIONS
from brimful.base.execute.workers import Workers
from brimful.base.typing import AnyPath
from brimful.base.wings import ENGINES, loaded

Context = TypeVar("Context")
Task = TypeVar("Task")
Result = TypeVar("Result")
Hire: TypeAlias = Callable[[], AbstractContextManager[Callable[[Any], Any]]]

_TASKS_AHEAD = 2
"""Tasks queued per process: enough that no process waits, few enough that an error stops the job
soon.
"""

_WAIT_SECONDS = 0.5
"""Seconds of one wait for an answer: on some systems (Windows), Ctrl-C does not interrupt locks."""

_MAX_END_SECONDS = 1.0
"""Seconds to wait for killed worker processes to end."""


@contextlib.contextmanager
def rare_collections() -> Iterator[None]:
    """Collect garbage rarely within a block; a process that collects more rarely, or never, is not
    changed.

    >>> before = gc.get_threshold()
    >>> with rare_collections():
    ...     gc.get_threshold()[0] >= OBJECTS_BETWEEN_COLLECTIONS or gc.get_threshold()[0] == 0
    True
    >>> gc.get_threshold() == before
    True
    """
    thresholds = gc.get_threshold()
    if not 0 < thresholds[0] < OBJECTS_BETWEEN_COLLECTIONS:
        yield
        return
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


def run_tasks(
    function: Callable[[Context, Task], Result],
    tasks: Sequence[Task],
    *,
    context: Context,
    resources: Resources,
    threads: int = 1,
    preload: Mapping[str, Mapping[str, str]] | None = None,
    shared: Sequence[AnyPath] = (),
) -> Generator[tuple[Task, Result], None, None]:
    """Run ``function(context, task)`` for every task; yield each with its result as it is done, in
    any order.

    Args:
        function: importable by name; the first exception it raises is raised here and ends the job.
        tasks: the second argument of each call; ``str(task)`` names it in messages.
        context: the first argument of all calls; sent to each process once.
        resources: one process runs everything here. Shares are up to the caller, which knows all
            tasks.
        threads: with one process, tasks at a time, for tasks that wait for a disk or for code
            outside Python.
        preload: modules that processes need, with the environment variables that each reads.
        shared: directories through which tasks exchange results; every machine must see them.

    Raises:
        TaskFailedError: a worker process died (most often: out of memory); on a cluster, repeatedly
            at one task.
        SettingsError: no cluster runs, or one of its machines does not see a shared directory.
    """
    if resources.num_proc is not None:
        setting_number("num_proc", resources.num_proc, minimum=1)
    if not resources.execution.is_local:
        run = loaded(ENGINES[resources.execution.engine])
        yield from run(function, tasks, context, resources, shared)
        return
    num_proc = available_cores() if resources.num_proc is None else resources.num_proc
    if num_proc > 1 and len(tasks) > 1:
        workers = Workers(function, context, preload)
        yield from _by_threads(workers.hire, tasks, min(num_proc, len(tasks)), end=workers.end)
    elif threads > 1 and len(tasks) > 1:
        yield from _by_threads(
            lambda: nullcontext(partial(function, context)), tasks, min(threads, len(tasks))
        )
    else:
        for task in tasks:
            with rare_collections():
                result = function(context, task)
            yield task, result


def _by_threads(
    hire: Hire, tasks: Sequence[Any], num_threads: int, end: Callable[[], None] | None = None
) -> Generator[tuple[Any, Any], None, None]:
    """Distribute tasks to threads, each of which hires a worker; the caller only waits.

    The threads are not from ``concurrent.futures``, which joins its threads when the interpreter
    ends, even busy ones.

    Args:
        hire: entered once in each thread; gives the function that does a task.
        end: stops the workers in the middle of a task; without it, each worker finishes its task.
    """
    orders: SimpleQueue[tuple[Any] | None] = SimpleQueue()
    answers: SimpleQueue[tuple[Any, Any, BaseException | None]] = SimpleQueue()
    stop_event = threading.Event()
    threads = [
        threading.Thread(target=_do_tasks, args=(hire, orders, answers, stop_event), daemon=True)
        for _ in range(num_threads)
    ]
    task_iterator = iter(tasks)
    try:
        for task in itertools.islice(task_iterator, num_threads * _TASKS_AHEAD):
            orders.put((task,))
        for thread in threads:
            thread.start()
        for _ in tasks:
            answer = None
            while answer is None:
                with contextlib.suppress(Empty):
                    answer = answers.get(timeout=_WAIT_SECONDS)
            task, result, error = answer
            if error is not None:
                raise error
            # One task follows each answer, so that few are queued when an error stops the job.
            for next_task in itertools.islice(task_iterator, 1):
                orders.put((next_task,))
            yield task, result
    finally:
        # Also reached after an error or a closed generator: queued orders are abandoned, and None
        # wakes idle threads.
        stop_event.set()
        if end is not None:
            end()
        for _ in threads:
            orders.put(None)
        deadline = time.monotonic() + _MAX_END_SECONDS
        for thread in threads:
            if thread.ident is not None:
                thread.join(None if end is None else max(0.0, deadline - time.monotonic()))


def _do_tasks(
    hire: Hire,
    orders: SimpleQueue[tuple[Any] | None],
    answers: SimpleQueue[tuple[Any, Any, BaseException | None]],
    stop_event: threading.Event,
) -> None:
    try:
        with hire() as worker:
            while (order := orders.get()) is not None and not stop_event.is_set():
                answers.put((order[0], worker(order[0]), None))
    except BaseException as error:
        answers.put((None, None, error))

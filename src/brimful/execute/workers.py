"""Worker processes, each asked over a pipe of its own.

A worker is ended by killing it, always: when the job is done, when another task failed, when somebody presses Ctrl-C.
Tasks are safe to run twice, so nothing is lost, and there is no queue, lock or thread of the standard library that
waits for a worker which is busy, or still starting.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from typing import Any

from brimful.errors import TaskFailedError
from brimful.execute.serving import Undisturbed, WorkerTraceback, serve
from brimful.messages import setting
from brimful.stopping import at_the_end

__all__ = ["Worker", "Workers"]

_SIGNAL_TO_ALL = 0.5
"""Seconds in which whoever signals one process after the other comes to this one too."""

_starting = threading.Lock()
"""Held while a process is started: who holds it knows all processes that there are."""

_jobs: set[Workers] = set()


class Workers:
    """The worker processes of one job, which share a function and its context.

    Args:
        function: importable by name; called as ``function(context, task)``.
        context: sent to each process once.
    """

    def __init__(self, function: Callable[[Any, Any], Any], context: Any) -> None:
        self.ended = False
        self._order = bytes(ForkingPickler.dumps((function, context)))
        self._context = _fresh_processes()
        self.processes: set[Any] = set()
        _jobs.add(self)

    @contextlib.contextmanager
    def hire(self) -> Iterator[Worker]:
        """One more process, when it is ready for tasks: those that wait go to whoever is ready first. From any thread."""
        process, pipe = self._started()
        try:
            worker = Worker(self, process, pipe)
            worker.tell(self._order)
            yield worker
        finally:
            process.kill()
            process.join()
            self.processes.discard(process)
            pipe.close()

    def _started(self) -> tuple[Any, Connection]:
        ours, theirs = self._context.Pipe()
        with _starting, theirs:
            if self.ended:
                raise TaskFailedError("the job was ended")
            process = self._context.Process(target=serve, args=(Undisturbed(), theirs))
            with _server_undisturbed():
                process.start()
            self.processes.add(process)
        if self.ended:  # meanwhile
            self.end()
        return process, ours

    def end(self) -> None:
        """Kill all of them, whatever they do. Those that are being started are killed when they are there."""
        self.ended = True
        try:
            self._kill()
        except BaseException:  # an impatient second Ctrl-C
            self._kill()
            raise
        _jobs.discard(self)

    def _kill(self) -> None:
        for process in list(self.processes):
            process.kill()


class Worker:
    """One worker process, called like the function of its job: ``worker(task)``. For one thread."""

    def __init__(self, job: Workers, process: Any, pipe: Connection) -> None:
        self._job, self._process, self._pipe = job, process, pipe

    def tell(self, order: Any) -> None:
        """Send the function and its context; returns when the process is ready for tasks."""
        self._answer_to(partial(self._pipe.send_bytes, order))

    def __call__(self, task: Any) -> Any:
        """The result of a task.

        Raises:
            TaskFailedError: the process died.
            Exception: whatever the function raised, with the worker's traceback as its cause.
        """
        return self._answer_to(partial(self._pipe.send, task))

    def _answer_to(self, send: Callable[[], None]) -> Any:
        try:
            send()
            wait([self._pipe, self._process.sentinel])
            if not self._pipe.poll():
                raise EOFError
            well, answer, where = self._pipe.recv()
        except (EOFError, ConnectionError) as error:
            raise self._death() from error
        if well:
            return answer
        raise answer from WorkerTraceback(where)

    def _death(self) -> TaskFailedError:
        self._process.join(_SIGNAL_TO_ALL)
        if self._process.exitcode == -signal.SIGTERM and not self._job.ended:
            time.sleep(_SIGNAL_TO_ALL)  # most likely this process is told to end as well, and then this is no failure
        return TaskFailedError(
            f"a worker process died before it answered: most often memory ran out (try a smaller "
            f"{setting('num_proc')}), or a script starts the job without `if __name__ == '__main__':`; what was "
            f"finished is kept, run it again"
        )


def _fresh_processes() -> Any:
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["brimful.execute.preload"])
    return context


@contextlib.contextmanager
def _server_undisturbed() -> Iterator[None]:
    """Start the server of worker processes, if one is needed, with Ctrl-C blocked: it must not disturb its imports."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # the server's start does it too, and unblocks Ctrl-C then
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # of this thread alone
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _kill_server() -> None:
    # Not by an import: the main thread, which does nothing more, may be in the middle of the same one.
    server = getattr(sys.modules.get("multiprocessing.forkserver"), "_forkserver", None)
    pid = getattr(server, "_forkserver_pid", None)
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _end_all() -> None:
    """For the last moment of this process: no worker stays, none is being started, and their server is gone too."""
    for job in list(_jobs):
        job.ended = True
    while not _starting.acquire(timeout=0.05):
        _kill_server()  # it still imports, and the process that was asked of it would start when it is done
    processes = [process for job in list(_jobs) for process in list(job.processes)]
    for process in processes:
        process.kill()
    until = time.monotonic() + _SIGNAL_TO_ALL
    for process in processes:
        process.join(max(0.0, until - time.monotonic()))  # the server takes note of their ends
    _kill_server()  # it would take its imports down one by one, for seconds


at_the_end(_end_all)

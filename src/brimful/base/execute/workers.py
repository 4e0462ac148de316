"""Worker processes, each of which receives its tasks through its own pipe.

A worker is always ended by killing it: when the job is done, when another task failed, when a user
presses Ctrl-C. Tasks are safe to run twice, so nothing is lost, and no queue, lock or thread of the
standard library waits for a worker that is busy or still starting.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from multiprocessing import current_process, spawn
from multiprocessing.connection import Connection, wait
from typing import Any

from brimful.base.execute.serving import InterruptShield, WorkerTraceback, order_of, serve
from brimful.base.stopping import at_the_end, starting_a_process
from brimful.base.wording import setting
from brimful.errors import TaskFailedError

_SIGNAL_ROUND_SECONDS = 0.5
"""Seconds within which a sender that signals one process after the other also reaches this one."""

_start_lock = threading.Lock()
"""Held while a process is started: its holder sees all existing processes."""

_jobs: set[Workers] = set()

_NAME = "brimful worker"
"""Name of each worker process, to distinguish it from other child processes."""

_preparation_data = spawn.get_preparation_data


def _without_script(name: str) -> dict[str, Any]:
    """Return the preparation data of a process, for a worker without the script, which the worker
    would run.
    """
    data = _preparation_data(name)
    return {
        key: value
        for key, value in data.items()
        if name != _NAME or not key.startswith("init_main")
    }


spawn.get_preparation_data = _without_script


class Workers:
    """The worker processes of one job, which share a function and its context.

    Args:
        function: importable by name; called as ``function(context, task)``.
        context: sent to each process once.
        preload: modules to import in the server that forks processes, each with the environment
            variables that it reads; without effect if the server of an earlier job still runs.
    """

    def __init__(
        self,
        function: Callable[[Any, Any], Any],
        context: Any,
        preload: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        self.ended = False
        self._order = order_of(function, context)
        self._context = start_server(preload or {})
        self.processes: set[Any] = set()
        _jobs.add(self)

    @contextlib.contextmanager
    def hire(self) -> Iterator[Callable[[Any], Any]]:
        """Start one more process; when it is ready, yield a function that runs a task in it.
        Thread-safe.

        So waiting tasks go to the first process that is ready. The function is for one thread, and
        returns the result.

        Raises:
            TaskFailedError: the process died; the function raises it too.
            Exception: from the function: the task's exception, with the worker's traceback as its
                cause.
        """
        process, pipe = self._start_process()
        try:
            # The function and its context go first; the answer says that the process is ready for
            # tasks.
            self._ask(process, pipe, partial(pipe.send_bytes, self._order))
            yield lambda task: self._ask(process, pipe, partial(pipe.send, task))
        finally:
            process.kill()
            process.join()
            self.processes.discard(process)
            pipe.close()

    def _start_process(self) -> tuple[Any, Connection]:
        pipe, worker_pipe = self._context.Pipe()
        with _start_lock, worker_pipe:
            if self.ended:
                raise TaskFailedError("the job was ended")
            process = self._context.Process(
                target=serve, name=_NAME, args=(InterruptShield(), worker_pipe)
            )
            with _server_shielded():
                process.start()
            self.processes.add(process)
        # ``end`` may have run since the check above, without this process.
        if self.ended:
            self.end()
        return process, pipe

    def _ask(self, process: Any, pipe: Connection, send: Callable[[], None]) -> Any:
        try:
            send()
            wait([pipe, process.sentinel])
            if not pipe.poll():
                raise EOFError
            answer, error_traceback = pipe.recv()
        except (EOFError, ConnectionError) as error:
            raise self._death(process) from error
        if error_traceback:
            raise answer from WorkerTraceback(error_traceback)
        return answer

    def _death(self, process: Any) -> TaskFailedError:
        process.join(_SIGNAL_ROUND_SECONDS)
        # Most likely this process gets SIGTERM too: let it end before it reports a failure that did
        # not happen.
        if process.exitcode == -signal.SIGTERM and not self.ended:
            time.sleep(_SIGNAL_ROUND_SECONDS)
        return TaskFailedError(
            f"a worker process died before it answered: most often memory ran out (try a smaller "
            f"{setting('num_proc')}); what was finished is kept, run it again"
        )

    def end(self) -> None:
        """Kill all processes, busy or not; a process that is being started is killed as soon as it
        exists.
        """
        self.ended = True
        try:
            self._kill()
        except BaseException:  # a second Ctrl-C, which must not leave processes alive
            self._kill()
            raise
        _jobs.discard(self)

    def _kill(self) -> None:
        for process in list(self.processes):
            process.kill()


def start_server(preload: Mapping[str, Mapping[str, str]]) -> Any:
    """Return the context that creates processes; its server starts to import the modules to
    preload.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    from multiprocessing import forkserver

    context = multiprocessing.get_context("forkserver")
    modules = list(preload)
    # After the first one, which may load in a thread during the imports of the others.
    modules.insert(1, "brimful.base.execute.preload")
    context.set_forkserver_preload(modules)
    variables = {
        name: value for environment in preload.values() for name, value in environment.items()
    }
    with starting_a_process(), _start_lock, _server_shielded(), _environment(variables):
        forkserver.ensure_running()
    return context


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables, which nothing else sets, for the processes that the block
    starts.
    """
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]


@contextlib.contextmanager
def _server_shielded() -> Iterator[None]:
    """Block Ctrl-C in this thread: a server of worker processes that the block starts inherits it
    for its imports.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    from multiprocessing import resource_tracker

    # Before the mask is set: starting the server also starts the tracker, which would unblock
    # Ctrl-C.
    resource_tracker.ensure_running()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _kill_server() -> None:
    # Not with an import: the stopped main thread may be in the middle of the same import.
    server = getattr(sys.modules.get("multiprocessing.forkserver"), "_forkserver", None)
    pid = getattr(server, "_forkserver_pid", None)
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _end_all() -> None:
    """Kill all workers and their server at the end of this process; no worker is started
    afterwards.
    """
    for job in list(_jobs):
        job.ended = True
    # While the server still imports, a start waits for it; without the server, the start fails and
    # frees the lock.
    while not _start_lock.acquire(timeout=0.05):
        _kill_server()
    processes = [process for job in list(_jobs) for process in list(job.processes)]
    for process in processes:
        process.kill()
    # The server reaps its children, so it must live until they have ended.
    deadline = time.monotonic() + _SIGNAL_ROUND_SECONDS
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
    # Killed, because a normal exit would tear down its imports one by one, for seconds.
    _kill_server()
    if threading.current_thread() is not threading.main_thread():
        # After a signal, no other code removes the folder of the server's socket.
        shutil.rmtree(current_process()._config.get("tempdir") or "", ignore_errors=True)  # type: ignore[attr-defined]


at_the_end(_end_all)

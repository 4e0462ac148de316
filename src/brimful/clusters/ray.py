"""Tasks on a running Ray cluster; the only file that imports Ray.

Workers are actors with one core each. Each gets two tasks at a time, so that no worker waits and a
death loses little. A worker that dies, alone or with its machine, is replaced, and its tasks are
run again: they are safe to run twice. Deaths are counted for the task that was running, and a task
that kills every worker is reported by name.

The class of the worker does not depend on Ray, which turns it into an actor. Orders and answers are
pickled as by ``multiprocessing`` between local processes, so that they can hold the same objects
and fail in the same way. They come from the job itself, never from data.

Two machines see the same directory if they find the same mark of random digits in it. The same path
may be a different directory on each machine (``/tmp``, a home on a local disk), and results that
are written there would not be found.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import time
import traceback
import uuid
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

from brimful.base.blobs import LocalBlobStore
from brimful.base.execute.execution import Resources
from brimful.base.execute.serving import (
    ONE_THREAD,
    WorkerTraceback,
    attempt,
    collect_rarely,
    order_of,
    packed,
)
from brimful.base.fingerprint import fingerprint_stream, short
from brimful.base.optional import optional
from brimful.base.typing import AnyPath
from brimful.base.wording import counted, setting
from brimful.errors import SettingsError, TaskFailedError

_MARK = "tmp/directory-id"
"""Key of the mark; it is removed with all temporary files when the last job in a store ends."""


_VARIABLES = ("BRIMFUL_", "HF_", "TOKENIZERS_", "TRANSFORMERS_")
"""Prefixes of the environment variables that workers take over: caches, and whether hubs may be
used.
"""


def marks_of(directories: Sequence[AnyPath]) -> dict[str, str]:
    """Return the mark of each directory by absolute path; a directory without a mark gets one."""
    marks = {}
    for directory in map(os.path.abspath, directories):
        store = LocalBlobStore(directory)
        store.put_if_absent(_MARK, uuid.uuid4().hex.encode())
        marks[directory] = store.get(_MARK).decode()
    return marks


def unshared(marks: Mapping[str, str]) -> str:
    """Return the first directory that is a different one on this machine; empty if all are the
    same.
    """
    for directory, mark in marks.items():
        try:
            if LocalBlobStore(directory).get(_MARK).decode() != mark:
                return directory
        except OSError:
            return directory
    return ""


def _version() -> str:
    """Return the package's version and the fingerprint of its code: two checkouts may have the same
    version.
    """
    package = sys.modules["brimful"]  # imported before any of its modules
    folder = Path(package.__path__[0])
    files = sorted(folder.rglob("*.py"))
    pieces = (
        piece
        for file in files
        for piece in (os.fsencode(file.relative_to(folder)), file.read_bytes())
    )
    return f"{package.__version__} (code {short(fingerprint_stream(pieces))})"


@dataclass(frozen=True)
class Surroundings:
    """Facts about the machine that starts a job, which each worker must share or takes over.

    Attributes:
        version: version of brimful and of its code.
        directory: working directory, where relative paths begin.
        variables: environment variables.
        marks: marks of the directories that all machines must see, by path.
    """

    version: str
    directory: str
    variables: Mapping[str, str]
    marks: Mapping[str, str]

    @classmethod
    def here(cls, marks: Mapping[str, str]) -> Surroundings:
        """Return the surroundings of this process."""
        variables = {
            name: value for name, value in os.environ.items() if name.startswith(_VARIABLES)
        }
        return cls(_version(), os.getcwd(), variables, marks)


class ClusterWorker:
    """A worker process on some machine, as an actor: ``start`` comes first, then ``do`` for each
    task.
    """

    def start(self, surroundings: Surroundings, order: bytes) -> bytes:
        """Get ready for tasks; return this machine's name as an answer in the form of ``do``.

        Args:
            surroundings: surroundings of the process that runs the job.
            order: the function and its context, pickled.
        """
        machine = socket.gethostname()
        os.environ.update({**surroundings.variables, **ONE_THREAD})
        try:
            _check(surroundings, machine)
            self._function, self._context = ForkingPickler.loads(order)
        except Exception as error:
            return packed(error, traceback.format_exc())
        collect_rarely()
        return packed(machine)

    def do(self, task: Any) -> bytes:
        """Return the pickled result and an empty text, or a task's error and its traceback."""
        return packed(*attempt(self._function, self._context, task))


def _check(surroundings: Surroundings, machine: str) -> None:
    """Check versions and directories, and enter the directory of the job.

    Raises:
        SettingsError: this machine has another brimful, or does not see a directory.
    """
    version = _version()
    if surroundings.version != version:
        raise SettingsError(
            f"node {machine} has brimful {version} and the job runs {surroundings.version}: "
            "install one version on all nodes"
        )
    try:
        os.chdir(surroundings.directory)
    except OSError as error:
        raise SettingsError(
            f"node {machine} has no {surroundings.directory}, where this job runs: start it in a "
            "directory that all nodes see"
        ) from error
    directory = unshared(surroundings.marks)
    if directory:
        raise SettingsError(
            f"node {machine} does not see {directory} of the machine that starts the job: workers "
            f"write their results there. Name a {setting('cache_dir')} and a "
            f"{setting('directory')} on a file system that all nodes share"
        )


_TASKS_AHEAD = 2
"""Tasks that a worker has at once, one of them running: enough that it never waits."""

_MAX_DEATHS = 3
"""Deaths of workers after which a task fails the job."""

_MAX_STARTS_IN_VAIN = 8
"""Consecutive workers that die before they are ready, after which the cluster is taken as unable to
run any.
"""

_WAIT_SECONDS = 0.5
"""Seconds of one wait for an answer; Ctrl-C is handled after it."""

_PATIENCE_SECONDS = 20.0
"""Seconds without a ready worker after which a line is shown."""

_NAMESPACE = "brimful"


@dataclass(eq=False)
class _Worker:
    """One actor and its pending answers.

    Attributes:
        actor: Ray's handle.
        queue: pending answers in order, each with the number of its task; the first answers
            ``start``, with None.
        machine: name of its machine; empty until it is ready.
    """

    actor: Any
    queue: deque[tuple[Any, int | None]]
    machine: str = ""


def run_on_ray(
    function: Callable[[Any, Any], Any],
    tasks: Sequence[Any],
    context: Any,
    resources: Resources,
    shared: Sequence[AnyPath],
) -> Generator[tuple[Any, Any], None, None]:
    """Run ``function(context, task)`` for every task on the cluster; see ``run_tasks`` for
    arguments and errors.
    """
    if not tasks:
        return
    crew = _Crew(_connected(), order_of(function, context), marks_of(shared), resources)
    try:
        yield from crew.run(tasks)
    finally:
        crew.dismiss()


def _connected() -> Any:
    """Return the library, connected to the cluster that it finds; an existing connection of the
    caller is kept.
    """
    with optional("ray", "ray", setting("engine", "ray")):
        import ray
    if ray.is_initialized():
        return ray
    in_main_thread = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM)
    try:
        # Output of workers would break the bar, and adds nothing to their errors.
        ray.init(
            address="auto", namespace=_NAMESPACE, log_to_driver=False, logging_level=logging.ERROR
        )
    except (ConnectionError, ValueError) as error:
        raise SettingsError(
            f"no Ray cluster was found ({_first_line(error)}): start one with `ray start`, or name "
            "one in RAY_ADDRESS; for processes of only this machine use "
            f"{setting('engine', 'local')}"
        ) from error
    finally:
        # Ray installs its own handler of SIGTERM; ``brimful.base.stopping`` decides how a program
        # ends.
        if in_main_thread and handler is not None:
            signal.signal(signal.SIGTERM, handler)
    return ray


class _Crew:
    """The workers of one job, and the number of workers that died at each task."""

    def __init__(
        self,
        ray: Any,
        order: bytes,
        marks: Mapping[str, str],
        resources: Resources,
    ) -> None:
        self._ray, self._log = ray, resources.progress.say
        cores = int(ray.cluster_resources().get("CPU", 0))
        if resources.num_proc is None and not cores:
            raise SettingsError(
                f"the Ray cluster has no core for workers: give {setting('num_proc')} if it will "
                "have some"
            )
        self._num_workers = resources.num_proc or cores
        # Both are stored in the cluster once, and each node takes a copy.
        self._order = ray.put(order)
        self._surroundings = ray.put(Surroundings.here(marks))
        self._actor_class = ray.remote(ClusterWorker).options(num_cpus=1, max_restarts=0)
        self._workers: list[_Worker] = []
        self._deaths: Counter[int] = Counter()
        self._starts_in_vain = 0

    def run(self, tasks: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
        """Yield each task with its result."""
        # Tasks are tracked by number, so that a dead worker's tasks can be assigned again.
        repeats: deque[int] = deque()
        indices = iter(range(len(tasks)))
        num_open = len(tasks)
        waiting_since: float | None = time.monotonic()
        while num_open:
            while len(self._workers) < min(self._num_workers, num_open):
                self._hire()
            for worker in self._workers:
                while worker.machine and len(worker.queue) < _TASKS_AHEAD:
                    index = repeats.popleft() if repeats else next(indices, None)
                    if index is None:
                        break
                    worker.queue.append((worker.actor.do.remote(tasks[index]), index))
            dead_workers = []
            for worker in self._answering():
                reference, index = worker.queue[0]
                try:
                    answer, error_traceback = ForkingPickler.loads(self._ray.get(reference))
                except self._ray.exceptions.RayError as error:
                    dead_workers.append((worker, error))
                    continue
                worker.queue.popleft()
                if error_traceback:
                    raise answer from WorkerTraceback(error_traceback)
                if index is None:
                    worker.machine, self._starts_in_vain, waiting_since = answer, 0, None
                    continue
                num_open -= 1
                yield tasks[index], answer
            for worker, death in dead_workers:
                repeats.extend(self._bury(worker, death, tasks))
            if dead_workers:
                worker, death = dead_workers[-1]
                self._log(
                    f"{counted(len(dead_workers), 'worker')} died, the last on "
                    f"{worker.machine or 'its way'} ({_reason(death)}); their tasks are run again"
                )
            if waiting_since is not None and time.monotonic() - waiting_since > _PATIENCE_SECONDS:
                waiting_since = None
                self._log(
                    f"no worker has begun yet: {len(self._workers):,} wait for a core of the "
                    "cluster, or are still starting (`ray status` shows the use of cores)"
                )

    def _hire(self) -> None:
        actor = self._actor_class.remote()
        start = actor.start.remote(self._surroundings, self._order)
        self._workers.append(_Worker(actor, deque([(start, None)])))

    def _answering(self) -> list[_Worker]:
        """Wait for an answer, and return the workers whose first answer has arrived."""
        by_reference = {worker.queue[0][0]: worker for worker in self._workers if worker.queue}
        references = list(by_reference)
        assert references, "tasks are open and no worker has any"
        ready, _ = self._ray.wait(references, num_returns=1, timeout=_WAIT_SECONDS)
        if ready:
            # All answers that have arrived: one call per task would scan all workers each time.
            ready, _ = self._ray.wait(references, num_returns=len(references), timeout=0)
        return [by_reference[reference] for reference in ready]

    def _bury(self, worker: _Worker, error: Exception, tasks: Sequence[Any]) -> list[int]:
        """Remove a dead worker, and return its unfinished tasks.

        Raises:
            TaskFailedError: too many workers died at the same task, or before they were ready.
        """
        self._workers.remove(worker)
        # It may only be unreachable: two workers on one task do no harm, but it would hold the core
        # forever.
        self._ray.kill(worker.actor, no_restart=True)
        first, *other_tasks = [index for _, index in worker.queue]
        if first is None:
            self._starts_in_vain += 1
            if self._starts_in_vain >= _MAX_STARTS_IN_VAIN or getattr(
                error, "actor_init_failed", False
            ):
                raise TaskFailedError(
                    f"workers on the Ray cluster die before they are ready ({_reason(error)}): "
                    "most often brimful or one of its extras is not installed on a node, or "
                    "memory ran out"
                ) from error
            return []
        self._deaths[first] += 1
        if self._deaths[first] >= _MAX_DEATHS:
            raise TaskFailedError(
                f"{tasks[first]}: {self._deaths[first]} workers died at this task, the last on "
                f"{worker.machine} ({_reason(error)}): most often memory ran out (try a smaller "
                f"{setting('num_proc')}); what was finished is kept, run it again"
            ) from error
        return [first, *(index for index in other_tasks if index is not None)]

    def dismiss(self) -> None:
        """Kill all workers, busy or not."""
        for worker in self._workers:
            self._ray.kill(worker.actor, no_restart=True)


def _reason(error: Exception) -> str:
    """Return the sentence in Ray's message that says why a worker is gone."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # The first lines name the actor; the cause comes after them.
    causes = (
        [line for line in lines[1:] if ": " not in line[:20]] or lines or [type(error).__name__]
    )
    return causes[0].partition(". ")[0][:200].rstrip(".")


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].rstrip(".")

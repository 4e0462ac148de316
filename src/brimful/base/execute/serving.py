"""The loop of a worker process: it receives a function and its context once, then task after task,
and answers each.

Garbage is collected rarely while a task runs; by default it takes a tenth of the time of reading
rows.
"""

import contextlib
import gc
import os
import re
import signal
import threading
import traceback
from collections.abc import Callable
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from pickle import PicklingError
from typing import Any

from brimful.base.optional import optional
from brimful.errors import TaskFailedError

OBJECTS_BETWEEN_COLLECTIONS = 100_000
"""Container objects created between two collections: some megabytes.

Rows are trees, which are freed without a collector: searching for cycles every 700 objects finds
nothing.
"""


ONE_THREAD = {
    "TOKENIZERS_PARALLELISM": "false",
    "RAYON_NUM_THREADS": "1",
    "FASTOKENS_BPE_THREADS": "1",
}
"""Environment variables of a worker: each core already has a process, with which more threads would
compete.

The server that forks workers has them too: a library's threads do not exist in a forked process,
and locks that they held at the fork stay locked there.
"""

_FROM_SCRIPT = re.compile(rb"\x8c\x08__main__\x94\x8c.([\w.]+)", re.DOTALL)
"""Reference in a pickle to a class or function of the script itself; the group is its name."""


def collect_rarely() -> None:
    """Collect garbage rarely in this process from now on, and never among the existing objects.

    For workers: scanning objects that were loaded before a fork would cost time and copy their
    memory.
    """
    gc.freeze()
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)


class WorkerTraceback(Exception):
    """The traceback of an error in a worker process, as the cause of the error that is raised
    here.
    """

    def __str__(self) -> str:
        return f"\n\n{self.args[0]}"


class InterruptShield:
    """An object that makes a process ignore Ctrl-C when it is unpickled there; the parent handles
    Ctrl-C.

    As the first argument of the process, it takes effect before any code that would print a
    traceback.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return signal.signal, (signal.SIGINT, signal.SIG_IGN)


def order_of(function: Callable[[Any, Any], Any], context: Any) -> bytes:
    """Pickle a function with its context for workers; definitions in the script or in functions are
    pickled by value.

    Workers do not run the script, so it needs no ``if __name__ == "__main__":``.

    Raises:
        MissingExtraError: the script defines something, and the library that pickles it is not
            installed.
    """
    try:
        order = bytes(ForkingPickler.dumps((function, context)))
    # Not an attribute of a module: a class inside a function, or a lambda.
    except (AttributeError, PicklingError):
        name = "a class or a function inside a function"
    else:
        reference = _FROM_SCRIPT.search(order)
        if reference is None:
            return order
        name = reference[1].decode()
    with optional(
        "cloudpickle",
        "text",
        f"{name}, defined in the script itself and not in a module that it imports,",
    ):
        import cloudpickle
    return bytes(cloudpickle.dumps((function, context)))


def serve(_shield: object, pipe: Connection) -> None:
    """Answer each task in the form of ``packed``, until the pipe is closed.

    The first message is the function with its context; its answer says that this process is ready.
    """
    os.environ |= ONE_THREAD
    collect_rarely()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with contextlib.suppress(EOFError, ConnectionError):  # the parent closed the pipe
        try:
            function, context = pipe.recv()
        # The caller uses a name that this process cannot import.
        except (ImportError, AttributeError) as error:
            pipe.send_bytes(packed(error, traceback.format_exc()))
            return
        pipe.send_bytes(packed(None))
        while True:
            pipe.send_bytes(packed(*attempt(function, context, pipe.recv())))


def attempt(function: Callable[[Any, Any], Any], context: Any, task: Any) -> tuple[Any, str]:
    """Return the result of a task and an empty text, or its error and traceback."""
    try:
        return function(context, task), ""
    except BaseException as error:
        return error, traceback.format_exc()


def packed(answer: Any, error_traceback: str = "") -> bytes:
    """Pickle the result of a task with an empty text, or its error with the traceback."""
    try:
        return bytes(ForkingPickler.dumps((answer, error_traceback)))
    except Exception as error:
        failure = TaskFailedError(f"a worker process cannot send {answer!r:.200}: {error}")
        return bytes(
            ForkingPickler.dumps((failure, error_traceback or "an answer that cannot be pickled"))
        )


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)

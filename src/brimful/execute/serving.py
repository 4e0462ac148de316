"""The loop of a worker process: it gets a function and its context once, then task after task, and answers each."""

import contextlib
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

from brimful.errors import TaskFailedError
from brimful.execute.garbage import collect_rarely
from brimful.optional import optional

ONE_THREAD = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1", "FASTOKENS_BPE_THREADS": "1"}
"""Variables of the environment of a worker: there is one process a core already, and more threads compete with them.

They are those of the server that workers are forked from too: a thread of a library is not in a forked process, and what it
had locked at that moment stays locked there.
"""


_FROM_SCRIPT = re.compile(rb"\x8c\x08__main__\x94\x8c.([\w.]+)", re.DOTALL)
"""Reference of a pickle to a class or a function of the script itself; its group is the name."""


class WorkerTraceback(Exception):
    """Traceback of an error in a worker process, as the cause of the error that is raised here."""

    def __str__(self) -> str:
        return f"\n\n{self.args[0]}"


class InterruptShield:
    """An object that makes a process ignore Ctrl-C, which is its parent's business, by being unpickled there.

    As the first argument of the process it takes effect before any code that would print a traceback.
    """

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return _ignore_interrupts, ()


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def order_of(function: Callable[[Any, Any], Any], context: Any) -> bytes:
    """Return a function with its context as workers get it: pickled, what the script or a function of it defines by value.

    Workers do not run the script, so that it needs no ``if __name__ == "__main__":``.

    Raises:
        MissingExtraError: the script defines something, and the library that pickles it is not installed.
    """
    try:
        order = bytes(ForkingPickler.dumps((function, context)))
    except (AttributeError, PicklingError):  # no module has it: a class inside of a function, a lambda
        name = "a class or a function inside of a function"
    else:
        reference = _FROM_SCRIPT.search(order)
        if reference is None:
            return order
        name = reference[1].decode()
    with optional("cloudpickle", "text", f"{name}, defined in the script itself and not in a module that it imports,"):
        import cloudpickle
    return bytes(cloudpickle.dumps((function, context)))


def serve(_shield: None, pipe: Connection) -> None:
    """Answer ``(True, result, "")`` or ``(False, error, traceback)`` to each task, until the pipe is closed.

    The first message is the function with its context, answered too: then this process is ready.
    """
    os.environ |= ONE_THREAD
    collect_rarely()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with contextlib.suppress(EOFError, ConnectionError):  # the parent closed the pipe
        try:
            function, context = pipe.recv()
        except (ImportError, AttributeError) as error:  # the caller has a name that this process cannot import
            _answer(pipe, error, traceback.format_exc())
            return
        _answer(pipe, None)
        while True:
            task = pipe.recv()
            result, error_traceback = attempt(function, context, task)
            _answer(pipe, result, error_traceback)


def attempt(function: Callable[[Any, Any], Any], context: Any, task: Any) -> tuple[Any, str]:
    """Return the result of a task and no text, or its error and the traceback of it."""
    try:
        return function(context, task), ""
    except BaseException as error:
        return error, traceback.format_exc()


def _answer(pipe: Connection, answer: Any, error_traceback: str = "") -> None:
    try:
        pipe.send((not error_traceback, answer, error_traceback))
    except ConnectionError:
        raise
    except Exception as error:  # the answer cannot be pickled
        failure = TaskFailedError(f"a worker process cannot send {answer!r:.200}: {error}")
        pipe.send((False, failure, error_traceback))


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)

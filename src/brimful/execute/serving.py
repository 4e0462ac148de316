"""What a worker process does: it is sent a function and its context once, then task after task, and answers each."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import traceback
from collections.abc import Callable
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from typing import Any

from brimful.errors import TaskFailedError

__all__ = ["Undisturbed", "WorkerTraceback", "serve"]


class WorkerTraceback(Exception):
    """Where in a worker process an error was raised: the cause of the error that is raised here."""

    def __str__(self) -> str:
        return f"\n\n{self.args[0]}"


class Undisturbed:
    """Makes a process ignore Ctrl-C, which is its parent's business, as soon as it unpickles this.

    In an argument of the process it comes before everything that would print a traceback.
    """

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return _ignore_interrupts, ()


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def serve(_undisturbed: None, pipe: Connection) -> None:
    """Answer ``(True, result, "")`` or ``(False, error, traceback)`` to each task, until the pipe is closed.

    The first message is the function with its context, answered too: then this process is ready.
    """
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one process a core already; threads on top only get in the way
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with contextlib.suppress(EOFError, ConnectionError):  # nobody listens any more
        try:
            function, context = pipe.recv()
        except (ImportError, AttributeError) as error:  # this process does not find what the caller has
            _answer(pipe, False, error, traceback.format_exc())
            return
        _answer(pipe, True, None, "")
        while True:
            task = pipe.recv()
            try:
                result = function(context, task)
            except BaseException as error:
                _answer(pipe, False, error, traceback.format_exc())
            else:
                _answer(pipe, True, result, "")


def _answer(pipe: Connection, well: bool, answer: Any, where: str) -> None:
    try:
        pipe.send((well, answer, where))
    except ConnectionError:
        raise
    except Exception as error:  # it cannot be pickled
        pipe.send((False, TaskFailedError(f"a worker process cannot send {answer!r:.200}: {error}"), where))


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)

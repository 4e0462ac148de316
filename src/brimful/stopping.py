"""One way to stop: a program that is told to ends its workers and then itself, at once.

A handler in Python runs when the main thread comes back to Python, which a solver, a tokenizer or an import puts off for
seconds or minutes. So the signal is heard by a thread, which waits for nobody. Nothing is unwound either: what brimful
writes appears whole or not at all, so this is the end that SIGKILL makes too, and the same command goes on from there.

Only the command line stops like this. In the process of a caller, ``KeyboardInterrupt`` passes as ever.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

__all__ = ["STOPPED", "at_the_end", "end", "end_at_signals"]

STOPPED = "stopped; what was finished is kept, run the same command to go on"

_SIGNALS = (signal.SIGINT, signal.SIGTERM)

_PATIENCE = 1.0
"""Seconds that ending others may take; after that this process ends all the same."""

_last_acts: list[Callable[[], None]] = []


def at_the_end(act: Callable[[], None]) -> None:
    """Call ``act`` at the end of this program, by a signal too: to end the processes that it started. From any thread."""
    _last_acts.append(act)


def end_at_signals() -> None:
    """From now on Ctrl-C and SIGTERM end this process at once, with exit code 130 or 143 and one line on stderr.

    For programs, in their main thread; elsewhere it does nothing. A signal that whoever started the program lets it
    ignore (``nohup``, a shell's background) stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    heard, told = os.pipe()
    threading.Thread(target=_end_when_told, args=(heard,), daemon=True).start()

    def tell(signum: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(OSError):
            os.write(told, bytes([signum]))  # for Windows, and for libraries that take the wake-up for themselves
        while True:  # the main thread does nothing more: it would see its workers go and call that an error
            time.sleep(_PATIENCE)

    if os.name == "posix":  # elsewhere only sockets wake up
        os.set_blocking(told, False)
        signal.set_wakeup_fd(told, warn_on_full_buffer=False)
        os.register_at_fork(after_in_child=_hear_nothing)
    _handle(tell)


def end() -> None:
    """End the processes that this program started, and leave signals to the system: no thread hears them from now on."""
    _act()
    if threading.current_thread() is threading.main_thread():
        _handle(signal.SIG_DFL)


def _handle(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
    for signum in _SIGNALS:
        if signal.getsignal(signum) not in (signal.SIG_IGN, None):
            signal.signal(signum, handler)


def _hear_nothing() -> None:
    """In a process that was forked: a signal that ends it is not told to the thread of its parent."""
    signal.set_wakeup_fd(-1)
    _handle(signal.SIG_DFL)


def _end_when_told(heard: int) -> None:
    signum = 0
    while signum not in _SIGNALS:
        signum = os.read(heard, 1)[0]
    acts = threading.Thread(target=_act, daemon=True)
    acts.start()
    acts.join(_PATIENCE)
    with contextlib.suppress(OSError):
        # Not through sys.stderr, which the main thread may have locked. A bar on a terminal keeps its line.
        os.write(2, f"{os.linesep if os.isatty(2) else ''}{STOPPED}{os.linesep}".encode())
    os._exit(128 + signum)


def _act() -> None:
    for act in _last_acts:
        with contextlib.suppress(Exception):
            act()

"""One way to stop: a program that gets a signal ends its workers and then itself, at once.

A Python signal handler runs when the main thread returns to Python, which a solver, a tokenizer or
an import delays for seconds or minutes. So a thread waits for the signal. A C call that holds the
interpreter holds up that thread too: on a busy machine, half a second of loading becomes many. So a
separate process checks whether the thread has reacted, and kills the program if it has not. Nothing
is unwound: brimful's files appear complete or not at all, so this end does not differ from SIGKILL,
and the same command continues from there.

Only the command line stops like this. In a caller's process, ``KeyboardInterrupt`` is raised as
usual.
"""

import atexit
import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NoReturn

STOPPED = "stopped; what was finished is kept, run the same command to go on"
"""The line that a stopped program prints."""

_SIGNALS = frozenset((signal.SIGINT, signal.SIGTERM))

_MAX_END_SECONDS = 1.0
"""Seconds that ending other processes may take; after that this process ends anyway."""

_MAX_KEEPING_SECONDS = 20.0
"""Seconds that a block of ``keeping`` may go on after a signal; Slurm and Kubernetes kill after
30.
"""

_PATIENCE_SECONDS = 1.5
"""Seconds from a signal until this process is killed, if C code holds the interpreter for that
long.
"""

_end_actions: list[Callable[[], None]] = []


class _MainThread:
    """The main thread at a signal: it stands still, and the thread that got the signal ends the
    program.
    """

    def __init__(self) -> None:
        self._num_blocks = 0
        self._is_stopped = False
        self._ask: Callable[[], None] | None = None
        self._may_end = threading.Event()

    def stop(self) -> None:
        """Stand still forever, at once or after the blocks that must finish."""
        if self._is_stopped or not self._num_blocks:
            # a second signal does not wait for the block that the first asked to stop
            self._may_end.set()
        self._is_stopped = True
        # The main thread must not go on: it would see its workers die and report that as an error.
        while not self._num_blocks:
            time.sleep(_MAX_END_SECONDS)

    @contextlib.contextmanager
    def finishing(self, ask: Callable[[], None] | None = None) -> Iterator[None]:
        """Let a block finish before the thread stands still; a signal calls ``ask`` and waits for
        the end.
        """
        self._num_blocks += 1
        self._ask = ask or self._ask
        try:
            yield
        finally:
            self._num_blocks -= 1
            if not self._num_blocks:
                self._ask = None
                if self._is_stopped:
                    self.stop()

    @property
    def is_keeping(self) -> bool:
        """True in a block that can be asked to finish."""
        return self._ask is not None

    def let_finish(self) -> None:
        """Ask the block to finish, if it can be asked, and wait for its end. Called from another
        thread.
        """
        ask = self._ask
        if ask is not None:
            ask()
            self._may_end.wait(_MAX_KEEPING_SECONDS)


_main_thread = _MainThread()


def at_the_end(action: Callable[[], None]) -> None:
    """Call ``action`` when this program ends, also by a signal, to end the processes that it
    started. Thread-safe.
    """
    _end_actions.append(action)


@contextlib.contextmanager
def starting_a_process() -> Iterator[None]:
    """Let a block that starts a process finish before a signal stops it, so the process is known
    and locks are free.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with _main_thread.finishing():
        yield


@contextlib.contextmanager
def keeping(stop: Callable[[], None]) -> Iterator[None]:
    """Let a block of the main thread keep its work at a signal: another thread calls ``stop``,
    which makes it finish.

    The program ends after the block, after 20 seconds, or at a second signal. It needs
    ``end_at_signals``.
    """
    with _main_thread.finishing(stop):
        yield


def end_at_signals() -> None:
    """Let Ctrl-C and SIGTERM end this process at once, with exit code 130 or 143 and one line on
    stderr.

    For programs; call it in the main thread, elsewhere it does nothing. A signal that was ignored
    when the program started (``nohup``, a background job of a shell) stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    # Signal numbers go through sockets: the interpreter writes them even while C code holds the
    # main thread.
    read_end, write_end = socket.socketpair()
    watch = _start_watch(read_end, write_end) if os.name == "posix" else None
    threading.Thread(target=_end_at_signal, args=(read_end, write_end, watch), daemon=True).start()

    def forward(signum: int, _frame: FrameType | None) -> None:
        # Needed if a library has taken over the wake-up descriptor.
        with contextlib.suppress(OSError):
            write_end.send(bytes([signum]))
        _main_thread.stop()

    write_end.setblocking(False)
    signal.set_wakeup_fd(write_end.fileno(), warn_on_full_buffer=False)
    if os.name == "posix":
        os.register_at_fork(after_in_child=_restore_signals)
    _handle(forward)


def end() -> None:
    """End the processes that this program started, and restore the default signal handling."""
    _run_end_actions()
    if threading.current_thread() is threading.main_thread():
        _handle(signal.SIG_DFL)


def leave(code: int | str | None) -> NoReturn:
    """End this process like ``sys.exit``, but leave its memory to the system: freeing it takes a
    tenth of a second.

    Raises:
        SystemExit: the code is not a number.
    """
    end()
    if code is not None and not isinstance(code, int):
        sys.exit(code)
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:  # the reader went away
        os._exit(141)
    os._exit(code or 0)


def _handle(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
    # None is a handler that was not installed from Python; it belongs to the program that embeds
    # Python.
    for signum in _SIGNALS:
        if signal.getsignal(signum) not in (signal.SIG_IGN, None):
            signal.signal(signum, handler)


def _restore_signals() -> None:
    """Restore the default signal handling in a forked process, whose signals would go to its
    parent's thread.
    """
    signal.set_wakeup_fd(-1)
    _handle(signal.SIG_DFL)


def _start_watch(read_end: socket.socket, write_end: socket.socket) -> int:
    """Start the process that kills this program if it does not end after a signal; return its
    process id.
    """
    program = os.getpid()
    watch = os.fork()
    if watch:
        return watch
    try:
        os.setsid()  # the terminal's signals are for the program, not for this process
        os.closerange(0, 2)
        write_end.close()
        while os.getppid() == program and (unread := read_end.recv(1024, socket.MSG_PEEK)):
            deadline = time.monotonic() + _PATIENCE_SECONDS
            while time.monotonic() < deadline and os.getppid() == program:
                time.sleep(0.05)
            if not _SIGNALS.isdisjoint(unread) and os.getppid() == program:
                _say_stopped()
                os.kill(program, signal.SIGKILL)
    finally:
        os._exit(0)


def _say_stopped() -> None:
    with contextlib.suppress(OSError):
        # Not through sys.stderr, which the main thread may have locked. A bar on a terminal keeps
        # its line.
        os.write(2, f"{os.linesep if os.isatty(2) else ''}{STOPPED}{os.linesep}".encode())


def _end_at_signal(read_end: socket.socket, _write_end: socket.socket, watch: int | None) -> None:
    """Wait for a signal and end; the argument keeps the write end of the socket open."""
    # Other signals arrive too, such as SIGCHLD with a handler of the caller: they are read and
    # dropped.
    signum = 0
    while signum not in _SIGNALS:
        # The signal is left in the socket, for the process that watches.
        signum = read_end.recv(1, socket.MSG_PEEK)[0]
        if signum not in _SIGNALS:
            read_end.recv(1)
    if watch is not None and _main_thread.is_keeping:
        os.kill(watch, signal.SIGKILL)  # the block may take longer than that process waits
    _main_thread.let_finish()
    thread = threading.Thread(target=_run_end_actions, daemon=True)
    thread.start()
    thread.join(_MAX_END_SECONDS)
    _say_stopped()
    os._exit(128 + signum)


def _run_end_actions() -> None:
    for action in _end_actions:
        with contextlib.suppress(Exception):
            action()

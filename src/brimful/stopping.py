"""One way to stop: a program that gets a signal ends its workers and then itself, at once.

A handler in Python runs when the main thread comes back to Python, which a solver, a tokenizer or an import delays for
seconds or minutes. So a thread waits for the signal. A C call that keeps the interpreter keeps that thread too: on a busy
machine, half a second of loading is many. So a process of its own looks whether the thread has heard, and kills the program if
it has not. Nothing is unwound either: the files of brimful appear whole or not at all, so this is the end that SIGKILL makes
too, and the same command goes on from there.

Only the command line stops like this. In the process of a caller, ``KeyboardInterrupt`` passes as ever.
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
"""Line that a stopped program prints."""

_SIGNALS = frozenset((signal.SIGINT, signal.SIGTERM))

_MAX_END_SECONDS = 1.0
"""Seconds that ending other processes may take; after that this process ends all the same."""

_MAX_KEEPING_SECONDS = 20.0
"""Seconds that a block of ``keeping`` may go on after a signal; Slurm and Kubernetes kill after 30."""

_PATIENCE_SECONDS = 1.5
"""Seconds from a signal until this process is killed, if C code keeps the interpreter so long."""

_end_actions: list[Callable[[], None]] = []


class _MainThread:
    """The main thread at a signal: it stands still, and leaves the end to the thread that heard it."""

    def __init__(self) -> None:
        self._num_blocks = 0
        self._is_stopped = False
        self._ask: Callable[[], None] | None = None
        self._may_end = threading.Event()

    def stop(self) -> None:
        """Stand still for ever, at once or after the blocks that must come to their end."""
        if self._is_stopped or not self._num_blocks:
            self._may_end.set()  # a second signal does not wait for what the first has asked for
        self._is_stopped = True
        # It must not go on: it would see its workers die and report that as an error.
        while not self._num_blocks:
            time.sleep(_MAX_END_SECONDS)

    @contextlib.contextmanager
    def finishing(self, ask: Callable[[], None] | None = None) -> Iterator[None]:
        """Let a block come to its end before the thread stands still; a signal calls ``ask``, and waits for the end."""
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
        """True in a block that can be asked to come to its end."""
        return self._ask is not None

    def let_finish(self) -> None:
        """Ask the block to come to its end, if it is one that can be asked, and wait for that. From another thread."""
        ask = self._ask
        if ask is not None:
            ask()
            self._may_end.wait(_MAX_KEEPING_SECONDS)


_main_thread = _MainThread()


def at_the_end(action: Callable[[], None]) -> None:
    """Call ``action`` when this program ends, by a signal too: to end the processes that it started. Thread-safe."""
    _end_actions.append(action)


@contextlib.contextmanager
def starting_a_process() -> Iterator[None]:
    """Let a block that starts a process come to its end, where that is known and its locks are free, before a signal stops it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with _main_thread.finishing():
        yield


@contextlib.contextmanager
def keeping(stop: Callable[[], None]) -> Iterator[None]:
    """Let a block of the main thread keep its work at a signal: ``stop``, called by another thread, lets it come to its end.

    The program ends after the block, after 20 seconds, or at a second signal. It needs ``end_at_signals``.
    """
    with _main_thread.finishing(stop):
        yield


def end_at_signals() -> None:
    """Let Ctrl-C and SIGTERM end this process at once, with exit code 130 or 143 and one line on stderr.

    For programs, in their main thread; elsewhere it does nothing. A signal that the program was
    started to ignore (``nohup``, a shell's background) stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    # Signal numbers go through sockets: the interpreter writes them even while C code keeps the main thread.
    read_end, write_end = socket.socketpair()
    watch = _start_watch(read_end, write_end) if os.name == "posix" else None
    threading.Thread(target=_end_at_signal, args=(read_end, write_end, watch), daemon=True).start()

    def forward(signum: int, _frame: FrameType | None) -> None:
        # Needed with libraries that take the wake-up for themselves.
        with contextlib.suppress(OSError):
            write_end.send(bytes([signum]))
        _main_thread.stop()

    write_end.setblocking(False)
    signal.set_wakeup_fd(write_end.fileno(), warn_on_full_buffer=False)
    if os.name == "posix":
        os.register_at_fork(after_in_child=_restore_signals)
    _handle(forward)


def end() -> None:
    """End the processes that this program started, and give signals back to the system."""
    _run_end_actions()
    if threading.current_thread() is threading.main_thread():
        _handle(signal.SIG_DFL)


def leave(code: int | str | None) -> NoReturn:
    """End this process as ``sys.exit`` does, but leave its memory to the system: taking it apart takes a tenth of a second.

    Raises:
        SystemExit: the code is no number.
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
    # None is a handler that was not installed from Python; it belongs to the program that embeds us.
    for signum in _SIGNALS:
        if signal.getsignal(signum) not in (signal.SIG_IGN, None):
            signal.signal(signum, handler)


def _restore_signals() -> None:
    """Give signals back to the system in a forked process, whose signals would go to the thread of its parent."""
    signal.set_wakeup_fd(-1)
    _handle(signal.SIG_DFL)


def _start_watch(read_end: socket.socket, write_end: socket.socket) -> int:
    """Start the process that kills this program if it does not end after a signal; return its number."""
    program = os.getpid()
    watch = os.fork()
    if watch:
        return watch
    try:
        os.setsid()  # signals of a terminal are for the program
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
        # Not through sys.stderr, which the main thread may have locked. A bar on a terminal keeps its line.
        os.write(2, f"{os.linesep if os.isatty(2) else ''}{STOPPED}{os.linesep}".encode())


def _end_at_signal(read_end: socket.socket, _write_end: socket.socket, watch: int | None) -> None:
    """Wait for a signal and end; the other end stays open as long."""
    # Other signals wake up too, such as SIGCHLD with a handler of the caller: they are read and dropped.
    signum = 0
    while signum not in _SIGNALS:
        # A signal stays there, for the process that watches.
        signum = read_end.recv(1, socket.MSG_PEEK)[0]
        if signum not in _SIGNALS:
            read_end.recv(1)
    if watch is not None and _main_thread.is_keeping:
        os.kill(watch, signal.SIGKILL)  # the block may take longer than it waits
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

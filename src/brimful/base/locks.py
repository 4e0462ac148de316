"""Locks on open files, which show processes what others still use.

The locks are the kernel's (``flock``). The kernel releases them when their holder dies, even by
SIGKILL: a killed job blocks no other, and its leftovers can be told from the files of a live job.
Not every system and file system has them (Windows, some network mounts). Without them ``lock`` does
not wait, and ``try_lock`` fails, so that no file is taken for abandoned.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import Any


def lock(file: Any, *, shared: bool = False) -> bool:
    """Wait for the lock of an open file, and hold it until the file is closed.

    Args:
        file: open file or descriptor.
        shared: others may hold it too, if shared as well.

    Returns:
        True if it is held; false if the system has no locks.
    """
    return _flock(file, "LOCK_SH" if shared else "LOCK_EX")


@contextlib.contextmanager
def locked(path: str | os.PathLike[str]) -> Iterator[None]:
    """Hold the lock of a file while a block runs.

    It is unlocked explicitly: closing alone would leave the lock with a process that was forked
    inside the block.
    """
    with open(path, "rb") as file:
        lock(file)
        try:
            yield
        finally:
            _flock(file, "LOCK_UN")


def try_lock(file: Any) -> bool:
    """Take the exclusive lock of an open file without waiting; return false if another holder has
    it, shared or not.
    """
    return _flock(file, "LOCK_EX", "LOCK_NB")


def is_held(file: Any) -> bool:
    """Return true if another holder has the exclusive lock of a file open for reading; false
    without locks.
    """
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (ImportError, OSError):
        return False
    fcntl.flock(file, fcntl.LOCK_UN)
    return False


def _flock(file: Any, *flags: str) -> bool:
    try:
        import fcntl

        fcntl.flock(file, sum(getattr(fcntl, flag) for flag in flags))
    except (ImportError, OSError):
        return False
    return True

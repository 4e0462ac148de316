"""Locks on open files, which tell processes what others still use.

The locks are the kernel's (``flock``). They go when their holder dies, however it dies: a killed job blocks nobody, and
its leftovers can be told from the files of a live one. Not every system and file system has them (Windows, some
network mounts); there ``lock`` does not wait, and ``try_lock`` fails, so that nothing is taken for abandoned.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import Any


def lock(file: Any, *, shared: bool = False) -> bool:
    """Wait for the lock of an open file; it is held until the file is closed.

    Args:
        file: open file or descriptor.
        shared: others may hold it too, if shared as well.

    Returns:
        True if it is held; false where there are no locks.
    """
    return _flock(file, "LOCK_SH" if shared else "LOCK_EX")


@contextlib.contextmanager
def locked(path: str | os.PathLike[str]) -> Iterator[None]:
    """Hold the lock of a file for the time of a block.

    It is given back by name: closing alone would leave it with a process that was forked inside the block.
    """
    with open(path, "rb") as file:
        lock(file)
        try:
            yield
        finally:
            _flock(file, "LOCK_UN")


def try_lock(file: Any) -> bool:
    """Take the lock of an open file for oneself without waiting; return false if another holds it, shared or not."""
    return _flock(file, "LOCK_EX", "LOCK_NB")


def is_held(file: Any) -> bool:
    """Return true if another holds the lock of a file that is open for reading, not shared; false where there are no locks."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (ImportError, OSError):
        return False
    fcntl.flock(file, fcntl.LOCK_UN)
    return False


def lock_shared_instead(file: Any) -> bool:
    """Share a lock that is held alone. For a moment nobody may hold it: look again whether the file still has its name."""
    return _flock(file, "LOCK_SH")


def _flock(file: Any, *flags: str) -> bool:
    try:
        import fcntl

        fcntl.flock(file, sum(getattr(fcntl, flag) for flag in flags))
    except (ImportError, OSError):
        return False
    return True

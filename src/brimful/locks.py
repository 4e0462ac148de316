"""Locks on open files, by which processes know what others still use.

The locks are the kernel's (``flock``). They go when their holder dies, however it dies: a killed job blocks nobody, and
what it left behind can be told from what a live one needs. Not every system and file system has them (Windows, some
network mounts); there ``lock`` does not wait, and ``try_lock`` fails, so that nothing is taken for abandoned.
"""

from __future__ import annotations

from typing import Any

__all__ = ["lock", "try_lock"]


def lock(file: Any, *, shared: bool = False) -> bool:
    """Wait for the lock of an open file; it is held until the file is closed.

    Args:
        file: open file or descriptor.
        shared: others may hold it too, if shared as well.

    Returns:
        Whether it is held: false where there are no locks.
    """
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
    except (ImportError, OSError):
        return False
    return True


def try_lock(file: Any) -> bool:
    """Take the lock of an open file for oneself, if nobody else holds it, shared or not; whether it is held now."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):
        return False
    return True

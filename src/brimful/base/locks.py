"""Locks on files, and the folder of derived files that they guard: indexes, unpacked copies, measured lengths."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
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


def cache_dir(directory: str | os.PathLike[str] | None = None) -> Path:
    """Return the directory for derived files.

    The first that is set: the argument, ``BRIMFUL_CACHE``, ``XDG_CACHE_HOME/brimful``,
    ``~/.cache/brimful``. On a cluster it must be on a file system that all ranks see.
    """
    if directory is None:
        directory = os.environ.get("BRIMFUL_CACHE") or None
    if directory is not None:
        return Path(directory)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "brimful"


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold the lock file of ``path`` while the block runs, so that only one process makes the
    file.

    It is unlocked explicitly, as in ``locked``: workers that were forked while a thread ran the
    block may stay.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_name(path.name + ".lock"), "ab") as file:
        lock(file)
        try:
            yield
        finally:
            _flock(file, "LOCK_UN")

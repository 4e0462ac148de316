"""Locks on files, and the folder of derived files that they guard: indexes, unpacked copies, measured lengths."""

import atexit
import contextlib
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from brimful.base.plain_files import NO_LINK, open_plain
from brimful.base.typing import AnyPath


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
def locked(path: AnyPath) -> Iterator[None]:
    """Hold the lock of a file or directory while a block runs."""
    with _held(os.open(path, os.O_RDONLY)):
        yield


@contextlib.contextmanager
def _held(descriptor: int) -> Iterator[None]:
    """Hold the lock of an open file while a block runs, and close it.

    It is unlocked explicitly: closing alone would leave the lock with a process that was forked
    inside the block.
    """
    try:
        lock(descriptor)
        yield
    finally:
        _flock(descriptor, "LOCK_UN")
        os.close(descriptor)


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


def cache_dir(directory: AnyPath | None = None) -> Path:
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
def exclusive(path: Path, on_wait: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Hold the lock file of ``path`` while the block runs, so that only one process makes the
    file.

    Args:
        path: of the file.
        on_wait: called before a wait for another process.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = open_lock(path.with_name(path.name + ".lock"))
    if is_held(descriptor):
        on_wait()
    with _held(descriptor):
        yield


def open_lock(path: Path) -> int:
    """Return a descriptor of a lock file, which is made if it is absent.

    Raises:
        CorruptFileError: a pipe, a directory or a link has its name.
    """
    try:
        return open_plain(path, os.O_RDWR | os.O_CREAT | NO_LINK)
    except PermissionError:
        # Another user made it: a lock needs no permission to write.
        return open_plain(path, NO_LINK)


_own_folders: list[str] = []


def cached(path: Path) -> Path:
    """Return the path under which this process reads and makes a file of the cache.

    It is the path itself; or, if another user made its folder or the file system is read-only, a
    path in a folder of this process: a link to the file if that can be read. A warning says so
    once.
    """
    folder = path.parent
    while not os.path.exists(folder):
        folder = folder.parent
    status = os.stat(folder)
    # In a folder such as /tmp, only the owner of a file can replace it.
    is_fixed = (
        status.st_mode & stat.S_ISVTX
        and os.path.exists(path)
        and os.geteuid() not in (status.st_uid, os.stat(path).st_uid)
    )
    if os.access(folder, os.W_OK | os.X_OK) and not is_fixed:
        return path
    if not _own_folders:
        _own_folders.append(tempfile.mkdtemp(prefix="brimful-"))
        atexit.register(shutil.rmtree, _own_folders[0], ignore_errors=True)
        logging.getLogger("brimful").warning(
            "%s cannot be written by this user: what can be read of the cache is used, and nothing "
            "is kept",
            path.parent,
        )
    own = Path(_own_folders[0], *path.absolute().parts[1:])
    own.parent.mkdir(parents=True, exist_ok=True)
    if os.access(path, os.R_OK) and not os.path.lexists(own):
        own.symlink_to(path.absolute())
    return own

"""The directory of derived files that can be rebuilt: line indexes, unpacked copies, measured
lengths.

>>> cache_dir("/scratch/brimful")
PosixPath('/scratch/brimful')
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from brimful.base.locks import lock


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
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_name(path.name + ".lock"), "ab") as file:
        lock(file)
        yield

"""A file that appears under its name when it is complete."""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from brimful.blobs.durable import raise_if_full, sync_directory
from brimful.locks import lock, try_lock


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a file to write from start to end; it appears at ``path`` when the block ends without an error.

    For tables too large to hold as one bytes object. On any error the temporary file is removed.

    Raises:
        StoreFullError: no space left.
    """
    target = Path(path)
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a directory, and a file is to be written", str(target))
    tmp = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _clear_abandoned(target)
        tmp, file = _locked_sibling(target)
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            # Renamed under its lock: a temporary file without one is taken for abandoned and removed.
            os.replace(tmp, target)
        sync_directory(target.parent)
    except OSError as error:
        raise_if_full(error, target)
        raise
    finally:
        if tmp is not None:
            with contextlib.suppress(OSError):
                os.unlink(tmp)


def _locked_sibling(target: Path) -> tuple[Path, IO[bytes]]:
    """Create a file beside the target, locked before another process could take it for abandoned."""
    while True:
        tmp = target.with_name(f".{target.name}.{os.getpid()}-{uuid.uuid4().hex[:8]}.tmp")
        file = open(tmp, "xb")  # noqa: SIM115 - the caller closes it
        lock(file)
        # Another process may have removed it between its creation and its lock; then the next name is tried.
        if os.fstat(file.fileno()).st_nlink:
            return tmp, file
        file.close()


def _clear_abandoned(target: Path) -> None:
    """Remove temporary files of the same target whose writers were killed."""
    with os.scandir(target.parent) as entries:
        siblings = [entry.path for entry in entries if _is_sibling(entry.name, target.name)]
    for path in siblings:
        with contextlib.suppress(OSError), open(path, "r+b") as file:
            if try_lock(file):
                os.unlink(path)


def _is_sibling(name: str, target: str) -> bool:
    prefix, suffix = f".{target}.", ".tmp"
    unique = name[len(prefix) : -len(suffix)]
    return name.startswith(prefix) and name.endswith(suffix) and unique.replace("-", "").isalnum() and "." not in unique

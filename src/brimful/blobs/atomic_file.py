"""One file that appears under its name when it is complete."""

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

__all__ = ["atomic_file"]


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A file to write from start to end that appears at ``path`` when the block ends well.

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
            os.replace(tmp, target)  # still locked: a file without its lock is taken for abandoned
        sync_directory(target.parent)
    except OSError as error:
        raise_if_full(error, target)
        raise
    finally:
        if tmp is not None:
            with contextlib.suppress(OSError):
                os.unlink(tmp)


def _locked_sibling(target: Path) -> tuple[Path, IO[bytes]]:
    """A new file beside the target, locked before anybody could take it for abandoned."""
    while True:
        tmp = target.with_name(f".{target.name}.{os.getpid()}-{uuid.uuid4().hex[:8]}.tmp")
        file = open(tmp, "xb")  # noqa: SIM115 - the caller closes it
        lock(file)
        if os.fstat(file.fileno()).st_nlink:
            return tmp, file
        file.close()  # cleared between its creation and its lock


def _clear_abandoned(target: Path) -> None:
    """Remove what writers of the same file left that were killed."""
    with os.scandir(target.parent) as entries:
        left = [entry.path for entry in entries if _is_sibling(entry.name, target.name)]
    for path in left:
        with contextlib.suppress(OSError), open(path, "r+b") as file:
            if try_lock(file):
                os.unlink(path)


def _is_sibling(name: str, target: str) -> bool:
    begin, end = f".{target}.", ".tmp"
    unique = name[len(begin) : -len(end)]
    return name.startswith(begin) and name.endswith(end) and unique.replace("-", "").isalnum() and "." not in unique

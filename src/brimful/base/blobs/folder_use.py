"""A folder of temporary files that several jobs use at once, cleared by the last of them."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from brimful.base.locks import lock, try_lock

IN_USE = ".in-use"
"""Name of the file in the folder whose lock says that a job uses it."""


@dataclass(frozen=True)
class FolderUse:
    """A claim on a folder of temporary files; ``locked`` is false where the system has no locks."""

    file: IO[bytes]
    locked: bool

    def alone(self) -> bool:
        """Return true if no other job uses the folder, and none can start before this use ends."""
        return self.locked and try_lock(self.file)


@contextlib.contextmanager
def use_folder(folder: Path) -> Iterator[FolderUse]:
    """Use a folder together with other jobs; it stays while one uses it, and the last removes it if it is empty."""
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            # It existed, and another job removed it before Python checked whether it is a directory.
            if folder.exists() and not folder.is_dir():
                raise
            continue
        try:
            file = open(folder / IN_USE, "ab")  # noqa: SIM115 - closed below
        except FileNotFoundError:  # another job removed the folder meanwhile
            continue
        with file:
            use = FolderUse(file, locked=lock(file, shared=True))
            # The last job removes the file under its own lock, so this lock may be on an unlinked file.
            if use.locked and not os.fstat(file.fileno()).st_nlink:
                continue
            try:
                yield use
            finally:
                if use.alone():
                    with contextlib.suppress(OSError):
                        # Their holders would use the folder too, so they are free.
                        for lock_file in folder.glob("*.lock"):
                            lock_file.unlink()
                        # Last: jobs that wait for its lock find it unlinked and start again.
                        os.unlink(folder / IN_USE)
                        folder.rmdir()
            return


def remove(path: Path) -> None:
    """Remove a file or a folder with all in it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)

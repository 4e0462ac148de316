"""A folder of temporary files that several jobs use at once, cleared by the last of them."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from brimful.locks import lock, try_lock

__all__ = ["FolderUse", "IN_USE", "remove", "use_folder"]

IN_USE = ".in-use"
"""Name of the file in the folder whose lock says that a job uses it."""


@dataclass(frozen=True)
class FolderUse:
    """A claim on a folder of temporary files; ``locked``: whether the system has locks."""

    file: IO[bytes]
    locked: bool

    def alone(self) -> bool:
        """Whether nobody else uses the folder, and nobody can begin to before this use ends."""
        return self.locked and try_lock(self.file)


@contextlib.contextmanager
def use_folder(folder: Path) -> Iterator[FolderUse]:
    """Use a folder together with others; it is there as long as somebody does, and goes with the last if it is empty."""
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            file = open(folder / IN_USE, "ab")  # noqa: SIM115 - closed below
        except FileNotFoundError:  # the folder went meanwhile
            continue
        with file:
            locked = lock(file, shared=True)
            if locked and not os.fstat(file.fileno()).st_nlink:
                continue  # whoever was alone here removed it while we waited
            use = FolderUse(file, locked)
            try:
                yield use
            finally:
                if use.alone():
                    with contextlib.suppress(OSError):
                        for other in folder.glob("*.lock"):  # who would hold one uses the folder
                            other.unlink()
                        os.unlink(folder / IN_USE)  # the last thing: those who wait for it look again
                        folder.rmdir()
            return


def remove(path: Path, *, but: str | None = None) -> None:
    """Remove a file or a folder with all in it, unless it has the name ``but``."""
    if path.name == but:
        return
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)

"""Whether a file is still the one that was fingerprinted.

A source is named by its content, and the content is read again and again while a job runs. A file that is written over
meanwhile would give old and new rows under the old name. So whoever reads looks at the file's stamp *after* the bytes
are read and before they are handed on: what is handed on was read from the file that was fingerprinted.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from brimful.errors import SourceError

__all__ = ["Stamp"]


@dataclass(frozen=True, slots=True)
class Stamp:
    """What changes when a file is written over or replaced.

    Attributes:
        size: bytes.
        mtime_ns: time of the last change, in nanoseconds.
        inode: number of the file, another one if another file was moved there.
    """

    size: int
    mtime_ns: int
    inode: int

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> Stamp:
        """The stamp of a file as it is now; ``FileNotFoundError`` if there is none."""
        status = os.stat(path)
        return cls(status.st_size, status.st_mtime_ns, status.st_ino)

    def check(self, path: str | os.PathLike[str], title: str | None = None) -> None:
        """Make sure that the file still has this stamp.

        Args:
            path: of the file.
            title: what a person calls it; the path if None.

        Raises:
            SourceError: it was changed, replaced or deleted.
        """
        name = title or os.fspath(path)
        try:
            now = Stamp.of(path)
        except OSError as error:
            raise SourceError(f"{name} was deleted while it was being read: run the command again") from error
        if now != self:
            raise SourceError(f"{name} changed while it was being read: run the command again")

"""The state of a file on disk, which shows that it is still the file that was fingerprinted.

A source is named by its content, and a job reads the content again and again while it runs. A file
that is overwritten meanwhile would give old and new rows under the old name. So every reader checks
the file's stamp *after* it reads bytes and before it passes them on: all bytes passed on come from
the file that was fingerprinted.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from brimful.base.checks import special_file
from brimful.base.typing import AnyPath
from brimful.errors import SourceError


def changed(title: str, event: str = "changed") -> SourceError:
    """Return the error of a file that is no longer the one that was opened."""
    return SourceError(f"{title} {event} while it was being read: run the command again")


@dataclass(frozen=True, slots=True)
class Stamp:
    """Size, time and number of a file: one of them changes when the file is overwritten or
    replaced.

    Attributes:
        size: bytes.
        mtime_ns: time of the last change, in nanoseconds.
        inode: number of the file; it differs if another file was moved there.
        ctime_ns: time that the system sets at each write and that a tool cannot set back. ``chmod``
            and links change it too, so it decides only whether a file's cached data is rebuilt, and
            never stops a job that reads.
    """

    size: int
    mtime_ns: int
    inode: int
    ctime_ns: int = field(compare=False)

    @classmethod
    def of(cls, path: AnyPath) -> Stamp:
        """Return the current stamp of a file; ``FileNotFoundError`` if it does not exist."""
        status = os.stat(path)
        return cls(status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns)

    def check(self, path: AnyPath, title: str | None = None) -> None:
        """Refuse a file that no longer has this stamp.

        Args:
            path: of the file.
            title: name of the file in messages; the path if None.

        Raises:
            SourceError: it was changed, replaced or deleted.
        """
        title = title or os.fspath(path)
        try:
            present = Stamp.of(path)
        except OSError as error:
            raise changed(title, "was deleted") from error
        if present != self:
            raise changed(title)


def require_file(path: AnyPath, status: os.stat_result | None = None) -> None:
    """Refuse a pipe, a device or a socket before it is opened: its rows may never come or never
    end.

    Args:
        path: path about to be opened; a URL, or a path that does not exist, is left to the reader.
        status: of the path, if it is known.

    Raises:
        SourceError: names the path and what it is.
    """
    try:
        description = special_file((status or os.stat(path)).st_mode)
    except OSError:
        return
    if description:
        name = os.fspath(path)
        raise SourceError(
            f"{name} is {description}, not a file: read the rows of a pipe as standard input "
            f"(- < {name})"
        )

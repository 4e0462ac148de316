"""Plain files under names that another user may have taken first: no pipe is waited for, and
nothing is written through a link.
"""

import os
import stat

from brimful.base.typing import AnyPath
from brimful.errors import CorruptFileError

NO_LINK = getattr(os, "O_NOFOLLOW", 0)
"""Flag that opens no link, for files that are made or written to."""

_NO_WAIT = getattr(os, "O_NONBLOCK", 0)


def open_plain(path: AnyPath, flags: int = os.O_RDONLY) -> int:
    """Return a descriptor of a file.

    Args:
        path: of the file.
        flags: as for ``os.open``; with ``NO_LINK`` a link is refused.

    Raises:
        CorruptFileError: it is a pipe, a directory, a device or a refused link.
        OSError: as ``os.open``.
    """
    try:
        look = os.lstat if flags & NO_LINK else os.stat
        is_plain = stat.S_ISREG(look(path).st_mode)
    except FileNotFoundError:
        is_plain = True
    if not is_plain:
        raise CorruptFileError(
            f"{os.fspath(path)} is a pipe, a link or a directory where a file should be: remove it"
        )
    # What takes the name only now cannot hang or redirect it either.
    return os.open(path, flags | _NO_WAIT, 0o666)


def read_plain(path: AnyPath) -> bytes:
    """Return all bytes of a file.

    Raises:
        CorruptFileError: as for ``open_plain``; or it is larger than the memory.
    """
    with open(open_plain(path), "rb") as file:
        try:
            return file.read()
        except MemoryError as error:
            raise CorruptFileError(f"{os.fspath(path)} is larger than the memory") from error


def is_named(descriptor: int, path: AnyPath) -> bool:
    """Return true if an open file is the one at that path."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False

"""A file that appears under its name when it is complete, and functions that make writes
durable.
"""

import contextlib
import errno
import os
import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from brimful.base.checks import local_path
from brimful.base.locks import lock, try_lock
from brimful.base.typing import AnyPath
from brimful.base.wording import counted
from brimful.errors import CorruptFileError, StoreFullError

_FULL_DEVICE_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextlib.contextmanager
def atomic_file(path: AnyPath, *, durable: bool = True) -> Iterator[IO[bytes]]:
    """Open a file to write from start to end; it appears at ``path`` when the block ends without an
    error.

    For tables too large to hold as one bytes object. On any error the temporary file is removed. A
    power cut may damage a file that is not ``durable``: it is checked when it is read, and making
    it again is cheaper than flushing it.

    Raises:
        SettingsError: the path is a URL.
        CorruptFileError: a directory has this name.
        StoreFullError: no space left.
    """
    target = Path(local_path(path))
    tmp = None
    try:
        with full_device_explained(target):
            make_directory(target.parent)
            _clear_abandoned(target)
            tmp, file = locked_sibling(target)
            with file:
                yield file
                file.flush()
                if durable:
                    os.fsync(file.fileno())
                # Renamed under its lock: a temporary file without one is taken for abandoned and
                # removed.
                os.replace(tmp, target)
            if durable:
                sync_directory(target.parent)
    finally:
        if tmp is not None:
            with contextlib.suppress(OSError):
                os.unlink(tmp)


def locked_sibling(target: Path) -> tuple[Path, IO[bytes]]:
    """Create a file next to the target, locked before another process could consider it
    abandoned.
    """
    while True:
        tmp = target.with_name(f".{target.name}.{os.getpid()}-{uuid.uuid4().hex[:8]}.tmp")
        file = open(tmp, "xb")  # noqa: SIM115 - the caller closes it
        lock(file)
        # Another process may have removed it between creation and lock; then try the next name.
        if os.fstat(file.fileno()).st_nlink:
            return tmp, file
        file.close()


def _clear_abandoned(target: Path) -> None:
    """Remove temporary files of the same target whose writers were killed."""
    # The part that ``locked_sibling`` generates has no dot: files of targets with longer names do
    # not match.
    abandoned_name = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-z-]+\.tmp")
    for name in os.listdir(target.parent):
        if abandoned_name.fullmatch(name):
            path = target.with_name(name)
            with contextlib.suppress(OSError), open(path, "r+b") as file:
                if try_lock(file):
                    os.unlink(path)


def make_directory(folder: Path) -> None:
    """Make a directory and those above it, so that a power cut cannot take one with the files in
    it.
    """
    if not folder.is_dir():
        make_directory(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_directory(folder.parent)


def sync_directory(folder: Path) -> None:
    """Flush a directory, so that a power cut cannot undo a rename or a link in it."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        # some network file systems do not open directories; their servers make renames durable
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.ENOTSUP, errno.EBADF}:
            raise
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def full_device_explained(
    target: Path, num_bytes: Callable[[], int | None] = lambda: None
) -> Iterator[None]:
    """Turn the errors of a full disk or quota into ``StoreFullError``, and the error of a directory
    that has the name of a file into ``CorruptFileError``; all others stay as they are.

    Args:
        target: name of the content, for the message.
        num_bytes: returns the bytes written so far; None if they are not counted.
    """
    try:
        yield
    except IsADirectoryError as error:
        raise CorruptFileError(
            f"{error.filename2 or error.filename} is a directory where a file should be: move it away"
        ) from error
    except OSError as error:
        # An explained error names the file itself.
        if isinstance(error, StoreFullError) or error.errno not in _FULL_DEVICE_ERRORS:
            raise
        written = num_bytes()
        extent = "" if written is None else f" ({counted(written, 'byte')} of it were written)"
        raise StoreFullError(
            error.errno,
            f"no space left while writing {target}{extent}: nothing that was committed is lost; "
            "free some space and run the same command again to resume",
        ) from error

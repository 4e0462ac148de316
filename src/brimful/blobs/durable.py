"""Writes that are on the device when they return, and one line for a full device."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from brimful.errors import StoreFullError

_FULL_DEVICE_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def sync_directory(folder: Path) -> None:
    """Flush a directory, so that a power cut cannot undo a rename or a link in it."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return  # some network file systems do not open directories; their servers make renames durable
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.ENOTSUP, errno.EBADF}:
            raise
    finally:
        os.close(descriptor)


def raise_if_full(error: OSError, target: Path) -> None:
    """Raise ``StoreFullError`` for the errors of a full disk or quota; return for all others."""
    if error.errno in _FULL_DEVICE_ERRORS:
        raise StoreFullError(
            error.errno,
            f"no space left while writing {target}: nothing that was committed is lost; free some space and run "
            f"the same command again, it goes on where it stopped",
        ) from error

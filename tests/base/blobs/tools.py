"""What tests of blobs share: the files of a folder, and a disk that is full."""

from __future__ import annotations

import errno


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def full_disk(*_args):
    raise OSError(errno.ENOSPC, "No space left on device")

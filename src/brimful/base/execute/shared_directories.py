"""A check that two machines see the same directory: a mark of random digits in it, written once.

The same path may be a different directory on each machine (``/tmp``, a home on a local disk). Results that are written
there would not be found.
"""

import os
import uuid
from collections.abc import Mapping, Sequence

from brimful.base.blobs import LocalBlobStore

_MARK = "tmp/directory-id"
"""Key of the mark; it is removed with all temporary files when the last job in a store ends."""


def marks_of(directories: Sequence[str | os.PathLike[str]]) -> dict[str, str]:
    """Return the mark of each directory by absolute path; a directory without a mark gets one."""
    marks = {}
    for directory in map(os.path.abspath, directories):
        store = LocalBlobStore(directory)
        store.put_if_absent(_MARK, uuid.uuid4().hex.encode())
        marks[directory] = store.get(_MARK).decode()
    return marks


def unshared(marks: Mapping[str, str]) -> str:
    """Return the first directory that is a different one on this machine; empty if all are the same."""
    for directory, mark in marks.items():
        try:
            if LocalBlobStore(directory).get(_MARK).decode() != mark:
                return directory
        except OSError:
            return directory
    return ""

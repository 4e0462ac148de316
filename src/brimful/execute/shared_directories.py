"""Proof that two machines see the same directory: a mark of random digits in it, written once.

A directory of the same path may be another one on each machine (``/tmp``, a home on a local disk). Results would be written
there and nobody would find them.
"""

import os
import uuid
from collections.abc import Mapping, Sequence

from brimful.blobs import LocalBlobStore

_MARK = "tmp/directory-id"
"""Key of the mark; with all that is temporary, it goes when the last job in a store ends."""


def marks_of(directories: Sequence[str | os.PathLike[str]]) -> dict[str, str]:
    """Return the mark of each directory by its absolute path; one without any gets one."""
    marks = {}
    for directory in map(os.path.abspath, directories):
        store = LocalBlobStore(directory)
        store.put_if_absent(_MARK, uuid.uuid4().hex.encode())
        marks[directory] = store.get(_MARK).decode()
    return marks


def unshared(marks: Mapping[str, str]) -> str:
    """Return the first directory that is another one on this machine; empty if all are the same."""
    for directory, mark in marks.items():
        try:
            if LocalBlobStore(directory).get(_MARK).decode() != mark:
                return directory
        except OSError:
            return directory
    return ""

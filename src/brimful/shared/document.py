"""Document of rank 0 for the other ranks: one small file, valid while the process that wrote it holds its lock.

The document is written to a temporary name in the same folder, locked, and renamed. So a document under its name is
locked from the first moment, and the kernel frees the lock when the writer dies, however it dies. A document that an
earlier job left is not locked: correctness depends on no clock, no job name and no heartbeat.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import weakref
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from brimful.base.fingerprint import fingerprint_of
from brimful.base.locks import is_held, try_lock
from brimful.base.wording import setting
from brimful.errors import SettingsError

_LAUNCHERS = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "MASTER_ADDR", "MASTER_PORT")
"""Variables that are equal on the ranks of one job and differ between jobs."""

_calls: Counter[str] = Counter()
"""Number of plans of each name that this process has shared: every rank makes them in the same order."""

_open: weakref.WeakSet[DocumentWriter] = weakref.WeakSet()


def document_of(folder: Path, job: str | None, name: str, world_size: int) -> Path:
    """Return the path of the document of rank 0, the same on every rank of a job."""
    number = _calls[name]
    _calls[name] += 1
    if job is None:
        job = " ".join(os.environ.get(variable, "") for variable in _LAUNCHERS)
    return folder / "jobs" / f"{fingerprint_of([job, name, number, world_size])}.json"


class Document(NamedTuple):
    """One document as it was read."""

    values: dict[str, Any]
    """Contents of the document."""
    is_live: bool
    """True if its writer is alive."""
    writer: str
    """Host and process id of its writer, for messages too."""


class DocumentWriter:
    """Writer of one document, until ``close`` or the end of the process.

    Args:
        path: of the document.

    Raises:
        SettingsError: another process is writing it, or the file system has no locks.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "train.json")
    >>> writer = DocumentWriter(path)
    >>> writer.write({"epoch": 1})
    >>> document = read_document(path)
    >>> document.values["epoch"], document.is_live, document.writer.endswith(f"process {os.getpid()}")
    (1, True, True)
    >>> writer.close()
    >>> read_document(path).is_live
    False
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        found = read_document(path)
        if found is not None and found.is_live:
            raise SettingsError(
                f"{path.parent.parent} is in use by another job of that name ({found.writer}): give each its own "
                f"{setting('job')}; they still share plans"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        _open.add(self)

    def write(self, values: Mapping[str, Any]) -> None:
        """Replace the document.

        Raises:
            SettingsError: the file system has no locks.
        """
        part = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        # A descriptor, not a file object: nothing closes it by accident.
        descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        if not try_lock(descriptor):
            os.close(descriptor)
            part.unlink()
            raise SettingsError(
                f"{self._path.parent} is on a file system without locks, by which ranks see that rank 0 is alive: give "
                f"another {setting('directory')}"
            )
        with open(descriptor, "wb", closefd=False) as file:
            file.write(json.dumps({"host": socket.gethostname(), "pid": os.getpid(), **values}).encode())
        os.replace(part, self._path)
        # Only now: a reader that finds an unlocked document checks whether the document still has its name.
        self.close()
        self._descriptor = descriptor

    def close(self) -> None:
        """Release the lock: the document is no longer valid."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def read_document(path: Path) -> Document | None:
    """Return the current document; None without one."""
    while True:
        # NFS looks for a new file with that name only after the directory was read again.
        with contextlib.suppress(OSError):
            os.listdir(path.parent)
        try:
            with open(path, "rb") as file:
                is_live = is_held(file)
                if is_live or os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                    values = json.loads(file.read())
                    return Document(values, is_live, "{host}, process {pid}".format(**values))
        except (OSError, ValueError):  # absent, or replaced while it was read (ESTALE)
            return None


def _close_in_child() -> None:
    """Close the copies in a forked process, which would hold the locks of a dead writer."""
    for writer in _open:
        writer.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)

"""Plans of epochs on many ranks: rank 0 builds each once and publishes it, the others wait without
a collective.

Rank 0 publishes in a document: one small file, valid while the process that wrote it holds its
lock. It is written to a temporary name in the same folder, locked, and renamed. So a document under
its name is locked from the first moment, and the kernel frees the lock when the writer dies,
however it dies. A document that an earlier job left is not locked: correctness depends on no clock,
no job name and no heartbeat.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
import traceback
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from brimful.base.atomic_file import locked_sibling
from brimful.base.fingerprint import fingerprint_of, short
from brimful.base.locks import is_held, locked, try_lock
from brimful.base.plain_files import is_named, open_plain
from brimful.base.progress import Progress, clock
from brimful.base.typing import Fingerprint
from brimful.base.wording import setting
from brimful.clusters.ranks import Arguments, Ranks, Waiting
from brimful.errors import (
    BrimfulError,
    BuildFailedError,
    CorruptFileError,
    SettingsError,
    TaskFailedError,
)
from brimful.plan import Plan

_LAUNCHERS = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "MASTER_ADDR", "MASTER_PORT")
"""Variables that are equal on the ranks of one job and differ between jobs."""

_calls: Counter[str] = Counter()
"""Number of plans of each name that this process has shared: every rank makes them in the same
order.
"""

_open: weakref.WeakSet[DocumentWriter] = weakref.WeakSet()


def document_of(folder: Path, job: str | None, name: str, world_size: int) -> Path:
    """Return the path of the document of rank 0, the same on every rank of a job."""
    call = _calls[name]
    _calls[name] += 1
    if job is None:
        job = " ".join(os.environ.get(variable, "") for variable in _LAUNCHERS)
    return folder / "jobs" / f"{fingerprint_of([job, name, call, world_size])}.json"


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
        SettingsError: another process is writing it, this user may not, or the file system has no
            locks.

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
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Of two jobs of one name that begin at once, the second finds the document of the first.
            with locked(path.parent):
                document = read_document(path)
                if document is not None and document.is_live:
                    raise SettingsError(
                        f"{path.parent.parent} is in use by another job of that name "
                        f"({document.writer}): give each its own {setting('job')}; they still share "
                        "plans"
                    )
                self.write({"epochs": {}})
        except PermissionError as error:
            raise SettingsError(
                f"{path.parent.parent} cannot be written by this user: give another "
                f"{setting('directory')} that all ranks see"
            ) from error
        _open.add(self)

    def write(self, values: Mapping[str, Any]) -> None:
        """Replace the document.

        Raises:
            SettingsError: the file system has no locks.
        """
        temporary, file = locked_sibling(self._path)
        with file:
            if not try_lock(file):
                temporary.unlink()
                raise SettingsError(
                    f"{self._path.parent} is on a file system without locks, by which ranks see "
                    f"that rank 0 is alive: give another {setting('directory')}"
                )
            file.write(
                json.dumps({"host": socket.gethostname(), "pid": os.getpid(), **values}).encode()
            )
            # A descriptor, not a file object: nothing closes it by accident.
            descriptor = os.dup(file.fileno())
        os.replace(temporary, self._path)
        # Only now: a reader that finds an unlocked document checks whether the document still has
        # its name.
        self.close()
        self._descriptor = descriptor

    def close(self) -> None:
        """Release the lock: the document is no longer valid."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def read_document(path: Path) -> Document | None:
    """Return the current document; None without one.

    Raises:
        CorruptFileError: a pipe or a directory has its name.
    """
    while True:
        # NFS looks for a new file with that name only after the directory was read again.
        with contextlib.suppress(OSError):
            os.listdir(path.parent)
        try:
            with open(open_plain(path), "rb") as file:
                is_live = is_held(file)
                if is_live or is_named(file.fileno(), path):
                    values = json.load(file)
                    return Document(values, is_live, "{host}, process {pid}".format(**values))
        except CorruptFileError:
            raise
        # Absent, replaced while it was read (ESTALE), or not a document.
        except (OSError, ValueError, TypeError, LookupError, AttributeError, MemoryError):
            return None


def _close_in_child() -> None:
    """Close the copies in a forked process, which would hold the locks of a dead writer."""
    for writer in _open:
        writer.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)


_NUM_KEPT_EPOCHS = 4
"""Latest epochs that are kept, and in the document: followers are at most one epoch late."""

_LINGER_SECONDS = 3.0
"""Seconds that a failed builder stays alive for ranks that have not read its document yet."""

_LOG_SECONDS = 10.0
"""Seconds between two lines of one follower."""


@dataclass(frozen=True)
class BuiltPlan:
    """Plan of one epoch, saved.

    Attributes:
        plan: mapped from its file.
        identity: fingerprint of everything that decides the plans, except the epoch.
        files: files that the other ranks open, relative to the directory; the plan is the first.
        arguments: arguments that the other ranks must have too; empty without samples.
    """

    plan: Plan
    identity: Fingerprint
    files: Sequence[str]
    arguments: Arguments = field(default_factory=dict)


BuildPlan: TypeAlias = Callable[[int, Progress], BuiltPlan]
"""Function of an epoch and of the progress that it reports to."""


class Builder:
    """Plans of epochs on rank 0, each built once and published in a document.

    Args:
        build: makes the plan of an epoch.
        document: path of the document; None without other ranks.
        progress: shown where the job was started.
    """

    def __init__(self, build: BuildPlan, document: Path | None, *, progress: Progress) -> None:
        self._build, self._progress = build, progress
        # One build at a time: two builds would compete for memory and cores.
        self._building = threading.Lock()
        self._results: dict[int, BuiltPlan | BaseException] = {}
        self._writer = None if document is None else DocumentWriter(document)

    def get(self, epoch: int) -> BuiltPlan:
        """Return the plan of an epoch; build it if it is not built yet.

        Raises:
            BaseException: the error of the build. The followers have been told.
        """
        result = self._result(epoch)
        if isinstance(result, BaseException):
            # After Ctrl-C no rank waits for the document: the other ranks were stopped too.
            if self._writer is not None and isinstance(result, Exception):
                time.sleep(_LINGER_SECONDS)
            raise result
        return result

    def prepare(self, epoch: int) -> None:
        """Build the plan of an epoch in the background; its error is kept, and raised by
        ``get``.
        """
        threading.Thread(target=self._result, args=[epoch], daemon=True).start()

    def close(self) -> None:
        """Close the document: ranks that still wait will report that rank 0 is gone."""
        if self._writer is not None:
            self._writer.close()

    def _result(self, epoch: int) -> BuiltPlan | BaseException:
        """Build the plan of an epoch and tell the other ranks, unless that was done before; return
        it, or its error.
        """
        with self._building:
            if epoch not in self._results:
                result: BuiltPlan | BaseException
                try:
                    result = self._build(epoch, self._progress)
                # Ctrl-C too: the others must not wait for a plan that will not come.
                except BaseException as error:
                    result = error
                # In order of publication, not by number: a run that goes back to an epoch publishes
                # that epoch last.
                results = dict(list({**self._results, epoch: result}.items())[-_NUM_KEPT_EPOCHS:])
                try:
                    self._publish(results)
                except OSError:
                    # A full disk must not hide the error of the build.
                    if not isinstance(result, BaseException):
                        raise
                self._results = results
            return self._results[epoch]

    def _publish(self, results: Mapping[int, BuiltPlan | BaseException]) -> None:
        if self._writer is not None:
            self._writer.write({"epochs": {epoch: _as_record(results[epoch]) for epoch in results}})


def _as_record(result: BuiltPlan | BaseException) -> dict[str, Any]:
    """Return a plan or an error for the document: nothing is pickled."""
    if isinstance(result, BuiltPlan):
        return {**vars(result), "plan": result.plan.fingerprint}
    return {
        "error_class": type(result).__name__,
        "message": " ".join(str(result).split()),
        "traceback": "".join(traceback.format_exception(result)),
    }


class Follower:
    """Plans of epochs on any other rank, as rank 0 publishes them.

    Args:
        document: path of the document that rank 0 writes.
        ranks: this rank.
        directory: parent directory of the relative file paths.
        progress: gets a line every ten seconds.
        waiting: how often to look, and when to give up.
    """

    def __init__(
        self, document: Path, ranks: Ranks, directory: Path, *, progress: Progress, waiting: Waiting
    ) -> None:
        self._document, self._directory = document, directory
        self._progress, self._waiting = progress, waiting
        self._title = f"rank {ranks.rank}"
        self._builder: str | None = None

    def get(self, epoch: int) -> BuiltPlan:
        """Wait for the plan of an epoch and map it.

        Raises:
            BuildFailedError: the build failed; holds class, message and traceback of the error on
                rank 0.
            TaskFailedError: rank 0 died, or never came.
            SettingsError: the plan is ready, but this rank does not see its file.
        """
        record = self._wait(epoch)
        if "error_class" in record:
            raise BuildFailedError(
                f"{self._title}: rank 0 could not plan epoch {epoch}: {record['error_class']}: "
                f"{record['message']}",
                error_class=record["error_class"],
                build_traceback=record["traceback"],
            )
        paths = [self._directory / path for path in record["files"]]
        end = time.monotonic() + self._waiting.see_seconds
        while True:
            with contextlib.suppress(OSError, BrimfulError):
                os.listdir(paths[0].parent)  # makes NFS look again
                # It opens in milliseconds for any size: the code that serves its arrays checks the
                # fingerprint.
                plan = Plan.open(paths[0])
                if plan.fingerprint == record["plan"] and all(path.exists() for path in paths):
                    return BuiltPlan(**{**record, "plan": plan})
            if time.monotonic() > end:
                raise SettingsError(
                    f"{self._title} does not see {paths[0]}, the plan {short(record['plan'])} of "
                    f"rank 0: {setting('directory')} must be one that all nodes share; without "
                    "one, use broadcast_plan"
                )
            time.sleep(self._waiting.poll_seconds)

    def _wait(self, epoch: int) -> dict[str, Any]:
        """Return what rank 0 published about an epoch."""
        start = last_line = time.monotonic()
        status = "which has not come yet"
        while True:
            document = read_document(self._document)
            if document is not None and document.is_live:
                self._builder = document.writer
            waited = time.monotonic() - start
            # If the builder was seen alive, its last document stays valid after its end.
            if document is not None and document.writer == self._builder:
                status = document.writer
                record: dict[str, Any] | None = document.values.get("epochs", {}).get(str(epoch))
                if record is not None:
                    return record
                if not document.is_live:
                    raise TaskFailedError(
                        f"{self._title}: rank 0 ({status}) is gone: its process has ended before "
                        f"the plan of epoch {epoch} was there. Most often memory ran out (dmesg "
                        "tells); what it measured is kept: start the job again"
                    )
            elif waited > self._waiting.arrive_seconds:
                raise TaskFailedError(
                    f"{self._title} waited {waited:.0f} s and rank 0 has not begun to plan: it "
                    "ended, it calls shared_plan later than "
                    f"{setting('arrive_seconds', self._waiting.arrive_seconds)}, or it writes "
                    f"{self._document} where this rank does not see it: {setting('directory')} "
                    "must be one that all nodes share, with locks"
                )
            if time.monotonic() - last_line >= _LOG_SECONDS:
                last_line = time.monotonic()
                self._progress.say(
                    f"{self._title} waits for the plan of epoch {epoch} by rank 0 ({status}) for "
                    f"{clock(waited)}"
                )
            time.sleep(self._waiting.poll_seconds)

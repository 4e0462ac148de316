"""The worker of a cluster: it receives a function and its context once, then task after task, and
answers each.

The class does not depend on a cluster: ``base/execute/ray.py`` turns it into an actor. Orders and
answers are pickled as by ``multiprocessing`` between local processes, so that they can hold the
same objects and fail in the same way. They come from the job itself, never from data.

Two machines see the same directory if they find the same mark of random digits in it. The same path
may be a different directory on each machine (``/tmp``, a home on a local disk), and results that
are written there would not be found.
"""

import os
import socket
import sys
import traceback
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

from brimful.base.blobs import LocalBlobStore
from brimful.base.execute.serving import ONE_THREAD, attempt, collect_rarely, packed
from brimful.base.fingerprint import fingerprint_stream, short
from brimful.base.typing import AnyPath
from brimful.base.wording import setting
from brimful.errors import SettingsError

_MARK = "tmp/directory-id"
"""Key of the mark; it is removed with all temporary files when the last job in a store ends."""


_VARIABLES = ("BRIMFUL_", "HF_", "TOKENIZERS_", "TRANSFORMERS_")
"""Prefixes of the environment variables that workers take over: caches, and whether hubs may be
used.
"""


def marks_of(directories: Sequence[AnyPath]) -> dict[str, str]:
    """Return the mark of each directory by absolute path; a directory without a mark gets one."""
    marks = {}
    for directory in map(os.path.abspath, directories):
        store = LocalBlobStore(directory)
        store.put_if_absent(_MARK, uuid.uuid4().hex.encode())
        marks[directory] = store.get(_MARK).decode()
    return marks


def unshared(marks: Mapping[str, str]) -> str:
    """Return the first directory that is a different one on this machine; empty if all are the
    same.
    """
    for directory, mark in marks.items():
        try:
            if LocalBlobStore(directory).get(_MARK).decode() != mark:
                return directory
        except OSError:
            return directory
    return ""


def _version() -> str:
    """Return the package's version and the fingerprint of its code: two checkouts may have the same
    version.
    """
    package = sys.modules["brimful"]  # imported before any of its modules
    folder = Path(package.__path__[0])
    files = sorted(folder.rglob("*.py"))
    pieces = (
        piece
        for file in files
        for piece in (os.fsencode(file.relative_to(folder)), file.read_bytes())
    )
    return f"{package.__version__} (code {short(fingerprint_stream(pieces))})"


@dataclass(frozen=True)
class Surroundings:
    """Facts about the machine that starts a job, which each worker must share or takes over.

    Attributes:
        version: version of brimful and of its code.
        directory: working directory, where relative paths begin.
        variables: environment variables.
        marks: marks of the directories that all machines must see, by path.
    """

    version: str
    directory: str
    variables: Mapping[str, str]
    marks: Mapping[str, str]

    @classmethod
    def here(cls, marks: Mapping[str, str]) -> "Surroundings":
        """Return the surroundings of this process."""
        variables = {
            name: value for name, value in os.environ.items() if name.startswith(_VARIABLES)
        }
        return cls(_version(), os.getcwd(), variables, marks)


class ClusterWorker:
    """A worker process on some machine, as an actor: ``start`` comes first, then ``do`` for each
    task.
    """

    def start(self, surroundings: Surroundings, order: bytes) -> bytes:
        """Get ready for tasks; return this machine's name as an answer in the form of ``do``.

        Args:
            surroundings: surroundings of the process that runs the job.
            order: the function and its context, pickled.
        """
        machine = socket.gethostname()
        os.environ.update({**surroundings.variables, **ONE_THREAD})
        try:
            _check(surroundings, machine)
            self._function, self._context = ForkingPickler.loads(order)
        except Exception as error:
            return packed(error, traceback.format_exc())
        collect_rarely()
        return packed(machine)

    def do(self, task: Any) -> bytes:
        """Return the pickled result and an empty text, or a task's error and its traceback."""
        return packed(*attempt(self._function, self._context, task))


def _check(surroundings: Surroundings, machine: str) -> None:
    """Check versions and directories, and enter the directory of the job.

    Raises:
        SettingsError: this machine has another brimful, or does not see a directory.
    """
    version = _version()
    if surroundings.version != version:
        raise SettingsError(
            f"node {machine} has brimful {version} and the job runs {surroundings.version}: "
            "install one version on all nodes"
        )
    try:
        os.chdir(surroundings.directory)
    except OSError as error:
        raise SettingsError(
            f"node {machine} has no {surroundings.directory}, where this job runs: start it in a "
            "directory that all nodes see"
        ) from error
    directory = unshared(surroundings.marks)
    if directory:
        raise SettingsError(
            f"node {machine} does not see {directory} of the machine that starts the job: workers "
            f"write their results there. Name a {setting('cache_dir')} and a "
            f"{setting('directory')} on a file system that all nodes share"
        )

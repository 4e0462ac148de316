"""Words of the builder to its followers: what it is doing, how far it is, what came of it."""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from brimful.messages import percent
from brimful.progress import Progress
from brimful.typing import Fingerprint


def processes_here() -> str:
    """Return the name of the list of processes that this one is in: of a machine, or of a container on it."""
    try:
        return f"{socket.gethostname()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


class Phase(str, Enum):
    """State of the plan of one epoch."""

    BUILDING = "building"
    READY = "ready"
    FAILED = "failed"


@dataclass(frozen=True)
class PublishedFile:
    """A file that every rank opens: its place below the directory, and what it must be.

    Attributes:
        path: relative, so that nodes may keep their copies in different directories.
        num_bytes: of the whole file.
        content: fingerprint of the file's bytes, for copies that were sent.
    """

    path: str
    num_bytes: int
    content: Fingerprint


@dataclass(frozen=True)
class EpochStatus:
    """State of one epoch's plan, as the builder publishes it.

    Attributes:
        stage, done, total, unit, eta_seconds: of the work; ``eta_seconds`` is None while nobody can tell.
        fingerprint: of the plan, once it is ready.
        identity: of everything that decides the plans, but for the epoch.
        files: the plan, and the domains of its packs if there are any.
        arguments: of rank 0, which all ranks must have (``shared.arguments``).
        error_class, message, traceback: of a failure.
    """

    phase: Phase
    stage: str = ""
    done: int = 0
    total: int = 0
    unit: str = ""
    eta_seconds: float | None = None
    fingerprint: Fingerprint = ""
    identity: Fingerprint = ""
    files: tuple[PublishedFile, ...] = ()
    arguments: Mapping[str, str] = field(default_factory=dict)
    error_class: str = ""
    message: str = ""
    traceback: str = ""

    def text(self) -> str:
        """Return stage, percent and remaining time for people.

        >>> EpochStatus(Phase.BUILDING, "measure", 30, 120, "rows", eta_seconds=75.0).text()
        'measure 30/120 rows (25.0 %), ETA 1:15'
        """
        if not self.stage:
            return "begins"
        share = f" ({percent(self.done / self.total)})" if self.total else ""
        eta = "?" if self.eta_seconds is None else f"{int(self.eta_seconds) // 60}:{int(self.eta_seconds) % 60:02d}"
        return f"{self.stage} {self.done:,}/{self.total:,} {self.unit}{share}, ETA {eta}"


@dataclass(frozen=True)
class BuilderStatus:
    """The one document of the builder, written anew at every beat.

    Attributes:
        session: drawn by the builder at its start: a document of an earlier job has another.
        beat: grows with every writing. Followers watch it by their own clocks; clocks are never compared.
        host, pid: of the builder, for messages.
        processes: name of the list of processes that ``pid`` is in: of one machine, or one container. Whoever has the
            same sees the builder's end at once.
        answers: nonces of followers that asked (``FolderChannel``).
        epochs: state of each epoch, the latest few.
    """

    session: str
    beat: int
    host: str
    pid: int
    processes: str = ""
    answers: tuple[str, ...] = ()
    epochs: Mapping[int, EpochStatus] = field(default_factory=dict)

    def to_json(self) -> bytes:
        """Return the document as bytes."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def of_json(cls, data: bytes) -> BuilderStatus | None:
        """Read the document; None if it is none, such as half a file of a file system that shows them."""
        try:
            record = json.loads(data)
            epochs = {int(epoch): _epoch_status(value) for epoch, value in record.pop("epochs").items()}
            return cls(**{**record, "answers": tuple(record["answers"])}, epochs=epochs)
        except (ValueError, KeyError, TypeError, AttributeError):
            return None


def _epoch_status(record: dict[str, Any]) -> EpochStatus:
    files = tuple(PublishedFile(**file) for file in record["files"])
    return EpochStatus(**{**record, "phase": Phase(record["phase"]), "files": files})


class ReportedProgress(Progress):
    """Progress that is shown where the job was started, and is read by the thread that publishes it."""

    def __init__(self, shown: Progress) -> None:
        super().__init__()
        self._shown = shown

    @contextlib.contextmanager
    def stage(self, name: str, *, total: int, unit: str) -> Iterator[None]:
        with self._shown.stage(name, total=total, unit=unit), super().stage(name, total=total, unit=unit):
            yield

    def advance(self, amount: int, *, tokens: int = 0, resumed: bool = False) -> None:
        super().advance(amount, tokens=tokens, resumed=resumed)
        self._shown.advance(amount, tokens=tokens, resumed=resumed)

    def say(self, text: str) -> None:
        self._shown.say(text)

    def status(self) -> EpochStatus:
        """Return how far the last stage is."""
        if not self.stages:
            return EpochStatus(Phase.BUILDING)
        record = self.stages[-1]
        eta = record.rates()[2]
        return EpochStatus(
            Phase.BUILDING,
            record.name,
            record.done,
            record.total,
            record.unit,
            eta if math.isfinite(eta) and not record.seconds else None,
        )

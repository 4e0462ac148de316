"""The builder: rank 0, which plans every epoch once, says how far it is, and says so until the job ends."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import traceback
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from brimful.errors import BrimfulError, TaskFailedError
from brimful.plan import Plan
from brimful.progress import Progress
from brimful.shared.arguments import Arguments
from brimful.shared.channel import STATUS, Channel
from brimful.shared.plan_files import forget, send
from brimful.shared.ranks import Ranks
from brimful.shared.status import BuilderStatus, EpochStatus, Phase, PublishedFile, ReportedProgress, processes_here
from brimful.typing import Fingerprint

_EPOCHS_TOLD = 4
"""Latest epochs in the document: followers are at most one behind."""

_LINGER_SECONDS = 10.0
"""Seconds that a failed builder stays for followers to read why: the store may end with it."""


@dataclass(frozen=True)
class BuiltPlan:
    """Plan of one epoch, saved.

    Attributes:
        plan: mapped from its file.
        identity: of everything that decides the plans, but for the epoch.
        files: what the other ranks open: the plan first.
        arguments: that the other ranks must have too; none if there are no samples.
    """

    plan: Plan
    identity: Fingerprint
    files: tuple[PublishedFile, ...]
    arguments: Arguments = field(default_factory=dict)


BuildPlan: TypeAlias = Callable[[int, Progress], BuiltPlan]
"""Function of an epoch and of the progress to report to."""


class Builder:
    """Plans of epochs, each built once, and published through a channel; a thread beats until ``close``.

    Args:
        build: makes the plan of an epoch.
        channel: to the followers; None if there are none.
        directory: that the paths of files are below.
        progress: shown where the job was started.
        beat_seconds: between two writings of the document.
    """

    def __init__(
        self,
        build: BuildPlan,
        channel: Channel | None,
        ranks: Ranks,
        directory: Path,
        *,
        progress: Progress,
        beat_seconds: float,
    ) -> None:
        self._build, self._ranks, self._directory, self._progress = build, ranks, directory, progress
        self._channel = None if channel is None else channel.clone()
        self._files_channel = None if channel is None else channel.clone()
        self._beat_seconds = beat_seconds
        # One build at a time: two of them would take each other's memory and cores.
        self._building = threading.Lock()
        self._plans: dict[int, BuiltPlan | BaseException] = {}
        self._publishing = threading.Lock()
        self._status = BuilderStatus(uuid.uuid4().hex, 0, socket.gethostname(), os.getpid(), processes_here())
        self._running: tuple[int, ReportedProgress] | None = None
        self._requested: set[int] = set()
        self._sent: dict[int, tuple[PublishedFile, ...]] = {}
        self._ended = threading.Event()
        if self._channel is not None:
            self._publish()
            threading.Thread(target=self._beat, name="brimful-beat", daemon=True).start()

    def get(self, epoch: int) -> BuiltPlan:
        """Return the plan of an epoch; build it now if nobody has.

        Raises:
            BaseException: the error of the build. The followers have been told.
        """
        self._requested.add(epoch)
        with self._building:
            if epoch not in self._plans:
                self._plans[epoch] = self._built(epoch)
            built_plan = self._plans[epoch]
        if isinstance(built_plan, BaseException):
            self._linger(epoch)
            raise built_plan
        # Plans are mapped files; those of epochs gone by are let go.
        for past_epoch in [past_epoch for past_epoch in self._plans if past_epoch < epoch - 1]:
            del self._plans[past_epoch]
        return built_plan

    def prepare(self, epoch: int) -> None:
        """Begin to build the plan of an epoch in the background, unless it was begun before."""
        if epoch in self._requested:
            return
        self._requested.add(epoch)

        def build() -> None:
            # An error is kept, and raised by ``get``: no thread dies with it unseen.
            with self._building:
                if epoch not in self._plans and not self._ended.is_set():
                    self._plans[epoch] = self._built(epoch)

        threading.Thread(target=build, name=f"brimful-epoch-{epoch}", daemon=True).start()

    def close(self) -> None:
        """Stop to beat: followers that still wait will say that the builder is gone."""
        self._ended.set()

    def _built(self, epoch: int) -> BuiltPlan | BaseException:
        progress = ReportedProgress(self._progress)
        self._running = (epoch, progress)
        try:
            built_plan = self._build(epoch, progress)
        except BaseException as error:  # Ctrl-C too: the others must not wait for what will not come
            self._running = None
            self._tell(epoch, _failure(error))
            return error
        self._running = None
        status = EpochStatus(
            Phase.READY,
            fingerprint=built_plan.plan.fingerprint,
            identity=built_plan.identity,
            files=built_plan.files,
            arguments=built_plan.arguments,
        )
        self._tell(epoch, status)
        return built_plan

    def _tell(self, epoch: int, status: EpochStatus) -> None:
        with self._publishing:
            epochs = {**self._status.epochs, epoch: status}
            # By the order of telling, not by number: a run that goes back to an epoch tells that one last.
            epochs = dict(list(epochs.items())[-_EPOCHS_TOLD:])
            self._status = replace(self._status, epochs=epochs)
        # A store that is gone, or a disk that is full, must not hide the error that is being told.
        with contextlib.suppress(BrimfulError, OSError):
            self._publish()

    def _publish(self) -> None:
        if self._channel is None:
            return
        with self._publishing:
            self._status = replace(self._status, beat=self._status.beat + 1, answers=self._channel.asked())
            status = self._status
            is_running = self._running
            if is_running is not None:
                epoch, progress = is_running
                status = replace(status, epochs={**status.epochs, epoch: progress.status()})
            self._channel.put(STATUS, status.to_json())

    def _beat(self) -> None:
        while not self._ended.wait(self._beat_seconds):
            try:
                self._publish()
                self._serve_copies()
            except TaskFailedError:
                return  # the job has ended
            except OSError:
                continue  # a full disk, or a server that is away for a moment: the next beat tries again

    def _serve_copies(self) -> None:
        """Send the files of an epoch to nodes that do not see them, and forget them when every rank has its plan."""
        channel = self._files_channel
        if channel is None or not channel.carries_files:
            return
        for epoch, files in self._sent.items():
            if files and channel.told(f"seen-{epoch}") >= self._ranks.world_size - 1:
                self._sent[epoch] = ()
                for file in files:
                    forget(channel, file)
        for epoch, status in self._status.epochs.items():
            if epoch in self._sent:
                continue
            if status.phase is Phase.READY and channel.told(f"wanted-{epoch}"):
                self._sent[epoch] = status.files
                # In a thread of its own: beats go on, however many gigabytes are sent.
                threading.Thread(target=self._send, args=(channel.clone(), status.files), daemon=True).start()

    def _send(self, channel: Channel, files: tuple[PublishedFile, ...]) -> None:
        with contextlib.suppress(TaskFailedError):
            for file in files:
                send(channel, file, self._directory)

    def _linger(self, epoch: int) -> None:
        """Wait a moment for the followers to read of a failure: the store may end with this process."""
        # After Ctrl-C nobody waits: the others were stopped too.
        if self._channel is None or not isinstance(self._plans.get(epoch), Exception):
            return
        end = time.monotonic() + _LINGER_SECONDS
        with contextlib.suppress(BrimfulError, OSError):
            while time.monotonic() < end and self._channel.told(f"seen-{epoch}") < self._ranks.world_size - 1:
                time.sleep(min(0.1, self._beat_seconds))


def _failure(error: BaseException) -> EpochStatus:
    """Describe an error for ranks that cannot have the object itself: nothing is pickled."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    message = " ".join(str(error).split())
    return EpochStatus(Phase.FAILED, error_class=type(error).__name__, message=message, traceback=text)

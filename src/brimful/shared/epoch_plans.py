"""Plans of epochs on many ranks: rank 0 builds each once and publishes it, the others wait without a collective."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from brimful.base.fingerprint import short
from brimful.base.progress import Progress, clock
from brimful.base.typing import Fingerprint
from brimful.base.wording import setting
from brimful.errors import BrimfulError, BuildFailedError, SettingsError, TaskFailedError
from brimful.plan import Plan
from brimful.shared.document import DocumentWriter, read_document
from brimful.shared.equal_arguments import Arguments
from brimful.shared.ranks import Ranks, Waiting

_EPOCHS_TOLD = 4
"""Latest epochs in the document: followers are at most one behind."""

_LINGER_SECONDS = 3.0
"""Seconds that a failed builder stays alive for ranks that have not read its document yet."""

_SAY_SECONDS = 10.0
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
    files: tuple[str, ...]
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
        self._plans: dict[int, BuiltPlan | BaseException] = {}
        self._told: dict[int, dict[str, Any]] = {}
        self._writer = None if document is None else DocumentWriter(document)
        if self._writer is not None:
            self._writer.write({"epochs": {}})

    def get(self, epoch: int) -> BuiltPlan:
        """Return the plan of an epoch; build it if it is not built yet.

        Raises:
            BaseException: the error of the build. The followers have been told.
        """
        self._ensure(epoch)
        built_plan = self._plans[epoch]
        if isinstance(built_plan, BaseException):
            # After Ctrl-C no rank waits for the document: the other ranks were stopped too.
            if self._writer is not None and isinstance(built_plan, Exception):
                time.sleep(_LINGER_SECONDS)
            raise built_plan
        # Plans are mapped files; the plans of past epochs are released.
        for past_epoch in list(self._plans):
            if past_epoch < epoch - 1:
                del self._plans[past_epoch]
        return built_plan

    def prepare(self, epoch: int) -> None:
        """Build the plan of an epoch in the background; its error is kept, and raised by ``get``."""
        name = f"brimful-epoch-{epoch}"
        threading.Thread(target=self._ensure, args=[epoch], name=name, daemon=True).start()

    def close(self) -> None:
        """Close the document: ranks that still wait will report that rank 0 is gone."""
        if self._writer is not None:
            self._writer.close()

    def _ensure(self, epoch: int) -> None:
        """Build the plan of an epoch and tell the other ranks, unless that was done before."""
        with self._building:
            if epoch in self._plans:
                return
            try:
                built_plan = self._build(epoch, self._progress)
            except BaseException as error:  # Ctrl-C too: the others must not wait for a plan that will not come
                text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
                # The others cannot get the object itself: nothing is pickled. A full disk must not hide the error.
                with contextlib.suppress(OSError):
                    self._tell(
                        epoch,
                        error_class=type(error).__name__,
                        message=" ".join(str(error).split()),
                        traceback=text,
                    )
                self._plans[epoch] = error
            else:
                self._tell(epoch, **{**vars(built_plan), "plan": built_plan.plan.fingerprint})
                self._plans[epoch] = built_plan

    def _tell(self, epoch: int, **told: Any) -> None:
        if self._writer is not None:
            # In order of publication, not by number: a run that goes back to an epoch publishes that epoch last.
            self._told = dict(list({**self._told, epoch: told}.items())[-_EPOCHS_TOLD:])
            self._writer.write({"epochs": self._told})


class Follower:
    """Plans of epochs on any other rank, as rank 0 publishes them.

    Args:
        document: path of the document that rank 0 writes.
        ranks: this rank.
        directory: parent directory of the relative file paths.
        progress: gets a line every ten seconds.
        waiting: how often to look, and when to give up.
    """

    def __init__(self, document: Path, ranks: Ranks, directory: Path, *, progress: Progress, waiting: Waiting) -> None:
        self._document, self._directory = document, directory
        self._progress, self._waiting = progress, waiting
        self._title = f"rank {ranks.rank}"
        self._builder: str | None = None

    def get(self, epoch: int) -> BuiltPlan:
        """Wait for the plan of an epoch and map it.

        Raises:
            BuildFailedError: the build failed; holds class, message and traceback of the error on rank 0.
            TaskFailedError: rank 0 died, or never came.
            SettingsError: the plan is ready, but this rank does not see its file.
        """
        told = self._wait(epoch)
        if "error_class" in told:
            raise BuildFailedError(
                f"{self._title}: rank 0 could not plan epoch {epoch}: {told['error_class']}: {told['message']}",
                error_class=told["error_class"],
                build_traceback=told["traceback"],
            )
        plan = self._open(told["files"], told["plan"])
        return BuiltPlan(plan, told["identity"], tuple(told["files"]), told["arguments"])

    def prepare(self, epoch: int) -> None:
        """Do nothing: rank 0 builds ahead."""

    def close(self) -> None:
        """Do nothing: rank 0 owns the document."""

    def _wait(self, epoch: int) -> dict[str, Any]:
        """Return what rank 0 published about an epoch."""
        begin = last_line = time.monotonic()
        place = "which has not come yet"
        while True:
            document = read_document(self._document)
            if document is not None and document.is_live:
                self._builder = document.writer
            waited = time.monotonic() - begin
            # If the builder was seen alive, its last document stays valid after its end.
            if document is not None and document.writer == self._builder:
                place = document.writer
                told: dict[str, Any] | None = document.values["epochs"].get(str(epoch))
                if told is not None:
                    return told
                if not document.is_live:
                    raise TaskFailedError(
                        f"{self._title}: rank 0 ({place}) is gone: its process has ended before the plan of epoch {epoch} "
                        f"was there. Most often memory ran out (dmesg tells); what it measured is kept: start the job "
                        f"again"
                    )
            elif waited > self._waiting.arrive_seconds:
                raise TaskFailedError(
                    f"{self._title} waited {waited:.0f} s and rank 0 has not begun to plan: it ended, it calls "
                    f"shared_plan later than {setting('arrive_seconds', self._waiting.arrive_seconds)}, or it writes "
                    f"{self._document} where this rank does not see it: {setting('directory')} must be one that all nodes "
                    f"share, with locks"
                )
            if time.monotonic() - last_line >= _SAY_SECONDS:
                last_line = time.monotonic()
                self._progress.say(
                    f"{self._title} waits for the plan of epoch {epoch} by rank 0 ({place}) for {clock(waited)}"
                )
            time.sleep(self._waiting.poll_seconds)

    def _open(self, files: list[str], fingerprint: Fingerprint) -> Plan:
        """Map the plan in milliseconds for any size: the code that serves its arrays checks the fingerprint."""
        paths = [self._directory / path for path in files]
        end = time.monotonic() + self._waiting.see_seconds
        while True:
            with contextlib.suppress(OSError, BrimfulError):
                os.listdir(paths[0].parent)  # makes NFS look again
                plan = Plan.open(paths[0])
                if plan.fingerprint == fingerprint and all(path.exists() for path in paths):
                    return plan
            if time.monotonic() > end:
                raise SettingsError(
                    f"{self._title} does not see {paths[0]}, the plan {short(fingerprint)} of rank 0: "
                    f"{setting('directory')} must be one that all nodes share; without one, use broadcast_plan"
                )
            time.sleep(self._waiting.poll_seconds)

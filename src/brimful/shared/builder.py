"""Builder: rank 0, which plans every epoch once and publishes the result."""

from __future__ import annotations

import contextlib
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from brimful.plan import Plan
from brimful.progress import Progress
from brimful.shared.arguments import Arguments
from brimful.shared.document import DocumentWriter
from brimful.typing import Fingerprint

_EPOCHS_TOLD = 4
"""Latest epochs in the document: followers are at most one behind."""

_LINGER_SECONDS = 3.0
"""Seconds that a failed builder stays alive for ranks that have not read its document yet."""


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
    """Plans of epochs, each built once and published in a document.

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
        self._requested: set[int] = set()
        self._told: dict[int, dict[str, Any]] = {}
        self._writer = None if document is None else DocumentWriter(document)
        if self._writer is not None:
            self._writer.write({"epochs": {}})

    def get(self, epoch: int) -> BuiltPlan:
        """Return the plan of an epoch; build it if it is not built yet.

        Raises:
            BaseException: the error of the build. The followers have been told.
        """
        self._requested.add(epoch)
        with self._building:
            if epoch not in self._plans:
                self._plans[epoch] = self._built(epoch)
            built_plan = self._plans[epoch]
        if isinstance(built_plan, BaseException):
            # After Ctrl-C no rank waits for the document: the other ranks were stopped too.
            if self._writer is not None and isinstance(built_plan, Exception):
                time.sleep(_LINGER_SECONDS)
            raise built_plan
        # Plans are mapped files; the plans of past epochs are released.
        for past_epoch in [past_epoch for past_epoch in self._plans if past_epoch < epoch - 1]:
            del self._plans[past_epoch]
        return built_plan

    def prepare(self, epoch: int) -> None:
        """Start to build the plan of an epoch in the background, unless it was started before."""
        if epoch in self._requested:
            return
        self._requested.add(epoch)

        def build() -> None:
            # An error is kept and raised by ``get``, so it is not lost with the thread.
            with self._building:
                if epoch not in self._plans:
                    self._plans[epoch] = self._built(epoch)

        threading.Thread(target=build, name=f"brimful-epoch-{epoch}", daemon=True).start()

    def close(self) -> None:
        """Close the document: ranks that still wait will report that rank 0 is gone."""
        if self._writer is not None:
            self._writer.close()

    def _built(self, epoch: int) -> BuiltPlan | BaseException:
        try:
            built_plan = self._build(epoch, self._progress)
            told = {
                "fingerprint": built_plan.plan.fingerprint,
                "identity": built_plan.identity,
                "files": built_plan.files,
                "arguments": built_plan.arguments,
            }
        except BaseException as error:  # Ctrl-C too: the others must not wait for a plan that will not come
            # A full disk must not hide the error that is published.
            with contextlib.suppress(OSError):
                self._tell(epoch, _failure(error))
            return error
        self._tell(epoch, told)
        return built_plan

    def _tell(self, epoch: int, told: dict[str, Any]) -> None:
        if self._writer is None:
            return
        # In order of publication, not by number: a run that goes back to an epoch publishes that epoch last.
        self._told = dict(list({**self._told, epoch: told}.items())[-_EPOCHS_TOLD:])
        self._writer.write({"epochs": self._told})


def _failure(error: BaseException) -> dict[str, Any]:
    """Describe an error for ranks that cannot get the object itself: nothing is pickled."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return {"error_class": type(error).__name__, "message": " ".join(str(error).split()), "traceback": text}

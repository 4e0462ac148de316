"""Follower: any other rank; it waits for the plan of an epoch without a collective, and reports what it waits for."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any

from brimful.errors import BrimfulError, BuildFailedError, SettingsError, TaskFailedError
from brimful.fingerprint import short
from brimful.messages import setting
from brimful.plan import Plan
from brimful.progress import Progress, clock
from brimful.shared.document import Document, read_document
from brimful.shared.ranks import Ranks
from brimful.shared.waiting import Waiting

_SAY_SECONDS = 10.0
"""Seconds between two lines of one follower."""


class Follower:
    """Plans of epochs as rank 0 publishes them.

    Args:
        document: path of the document that rank 0 writes.
        directory: parent directory of the relative file paths.
        progress: gets a line every ten seconds.
        waiting: how often to look, and when to give up.
    """

    def __init__(self, document: Path, ranks: Ranks, directory: Path, *, progress: Progress, waiting: Waiting) -> None:
        self._document, self._ranks, self._directory = document, ranks, directory
        self._progress, self._waiting = progress, waiting
        self._builder: tuple[str, int] | None = None

    def get(self, epoch: int) -> tuple[Plan, dict[str, Any]]:
        """Wait for the plan of an epoch and map it; return it and what rank 0 published about it (``Builder``).

        Raises:
            BuildFailedError: the build failed; holds class, message and traceback of the error on rank 0.
            TaskFailedError: rank 0 died, or never came.
            SettingsError: the plan is ready, but this rank does not see its file.
        """
        told = self._wait(epoch)
        if "error_class" in told:
            raise BuildFailedError(
                f"rank {self._ranks.rank}: rank 0 could not plan epoch {epoch}: {told['error_class']}: {told['message']}",
                error_class=told["error_class"],
                build_traceback=told["traceback"],
            )
        return self._open(told), told

    def _wait(self, epoch: int) -> dict[str, Any]:
        begin = last_line = time.monotonic()
        while True:
            document = self._read()
            waited = time.monotonic() - begin
            if document is None:
                if waited > self._waiting.arrive_seconds:
                    raise TaskFailedError(
                        f"rank {self._ranks.rank} waited {waited:.0f} s and rank 0 has not begun to plan: it ended, it "
                        f"calls shared_plan later than {setting('arrive_seconds', self._waiting.arrive_seconds)}, or it "
                        f"writes {self._document} where this rank does not see it: {setting('directory')} must be one "
                        f"that all nodes share, with locks"
                    )
            else:
                told: dict[str, Any] | None = document.values["epochs"].get(str(epoch))
                if told is not None:
                    return told
                if not document.is_live:
                    host, pid = document.writer
                    raise TaskFailedError(
                        f"rank {self._ranks.rank}: rank 0 ({host}, process {pid}) is gone: its process has ended before "
                        f"the plan of epoch {epoch} was there. Most often memory ran out (dmesg tells); what it "
                        f"measured is kept: start the job again"
                    )
            if time.monotonic() - last_line >= _SAY_SECONDS:
                last_line = time.monotonic()
                place = "which has not come yet" if document is None else "{}, process {}".format(*document.writer)
                self._progress.say(
                    f"rank {self._ranks.rank} waits for the plan of epoch {epoch} by rank 0 ({place}) for {clock(waited)}"
                )
            time.sleep(self._waiting.poll_seconds)

    def _read(self) -> Document | None:
        """Return the document of the builder of this job; None while it does not exist.

        If the builder was seen alive, its last document stays valid after its end.
        """
        document = read_document(self._document)
        if document is not None and document.is_live:
            self._builder = document.writer
        return document if document is not None and document.writer == self._builder else None

    def _open(self, told: dict[str, Any]) -> Plan:
        """Map the plan in milliseconds for any size: the code that serves its arrays checks the fingerprint."""
        paths = [self._directory / path for path in told["files"]]
        end = time.monotonic() + self._waiting.see_seconds
        while True:
            with contextlib.suppress(OSError, BrimfulError):
                os.listdir(paths[0].parent)  # makes NFS look again
                plan = Plan.open(paths[0])
                if plan.fingerprint == told["fingerprint"] and all(path.exists() for path in paths):
                    return plan
            if time.monotonic() > end:
                raise SettingsError(
                    f"rank {self._ranks.rank} does not see {paths[0]}, the plan {short(told['fingerprint'])} of rank 0: "
                    f"{setting('directory')} must be one that all nodes share; without one, use broadcast_plan"
                )
            time.sleep(self._waiting.poll_seconds)

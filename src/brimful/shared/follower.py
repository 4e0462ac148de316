"""A follower: any other rank, which waits for the plan of an epoch without a collective, and says for what it waits."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from brimful.cache import exclusive
from brimful.errors import BuildFailedError, SettingsError, TaskFailedError
from brimful.fingerprint import short
from brimful.messages import setting
from brimful.plan import Plan
from brimful.progress import Progress
from brimful.shared.channel import STATUS, Channel
from brimful.shared.plan_files import is_here, open_published, published, receive
from brimful.shared.ranks import Ranks
from brimful.shared.status import BuilderStatus, EpochStatus, Phase, PublishedFile, processes_here
from brimful.shared.waiting import Waiting

_SAY_SECONDS = 10.0
"""Seconds between two lines of one follower."""

_MIN_POLLS = 5
"""Looks without a new beat before the builder counts as gone: one long pause of this process proves nothing."""


class Follower:
    """Plans of epochs as the builder publishes them.

    Args:
        channel: from the builder.
        directory: that the paths of files are below; a node that does not share it keeps its copies there.
        progress: gets a line every ten seconds.
        waiting: how often to look, and when to give up.
    """

    def __init__(
        self,
        channel: Channel,
        ranks: Ranks,
        directory: Path,
        *,
        progress: Progress,
        waiting: Waiting,
    ) -> None:
        self.channel, self.ranks, self.directory = channel, ranks, directory
        self.progress, self.waiting = progress, waiting
        self._session: str | None = None
        self._nonce = channel.ask()

    def get(self, epoch: int) -> tuple[Plan, EpochStatus]:
        """Wait for the plan of an epoch and map it.

        Raises:
            BuildFailedError: the build failed; has the class, the message and the traceback of rank 0.
            TaskFailedError: rank 0 died, or never came.
            SettingsError: the plan is ready and its file is not seen here.
        """
        watch = _Watch(self, epoch)
        while (status := watch.look()) is None or status.phase is Phase.BUILDING:
            watch.pause(status)
        if status.phase is Phase.FAILED:
            self.channel.tell(f"seen-{epoch}", str(self.ranks.rank))
            raise BuildFailedError(
                f"rank {self.ranks.rank}: rank 0 could not plan epoch {epoch}: {status.error_class}: {status.message}",
                error_class=status.error_class,
                build_traceback=status.traceback,
            )
        plan = self._open(epoch, status, watch)
        self.channel.tell(f"seen-{epoch}", str(self.ranks.rank))
        return plan, status

    def read(self) -> BuilderStatus | None:
        """Return the document of the builder of this job; None while there is none."""
        data = self.channel.get(STATUS)
        status = None if data is None else BuilderStatus.of_json(data)
        if status is None:
            return None
        if self._session is None and (self._nonce is None or self._nonce in status.answers):
            self._session = status.session
            if self._nonce is not None:
                self.channel.answered(self._nonce)
        return status if status.session == self._session else None

    def _open(self, epoch: int, status: EpochStatus, watch: _Watch) -> Plan:
        """Map the plan that was published: its file here, or a copy that is sent to this node once."""
        first, fingerprint = status.files[0], status.fingerprint
        end = time.monotonic() + self.waiting.see_seconds
        while True:
            with contextlib.suppress(OSError):
                os.listdir(self.directory / os.path.dirname(first.path))  # lets NFS look again
            plan = open_published(self.directory, first, fingerprint)
            if plan is not None and all(is_here(self.directory, file) for file in status.files):
                return plan
            if time.monotonic() > end:
                break
            watch.look()
            watch.pause(None)
        if not self.channel.carries_files:
            raise SettingsError(
                f"rank {self.ranks.rank} does not see {self.directory / first.path}, the plan {short(fingerprint)} of "
                f"rank 0: {setting('directory')} must be one that all nodes share; or call this after "
                f"torch.distributed.init_process_group, whose store then carries the plan"
            )
        for file in status.files:
            self._copy(epoch, file, watch)
        plan = open_published(self.directory, first, fingerprint)
        assert plan is not None, "the bytes of the plan were held against their fingerprint"
        return plan

    def _copy(self, epoch: int, file: PublishedFile, watch: _Watch) -> None:
        """Write the copy of this node, unless another of its ranks has."""
        path = self.directory / file.path
        path.parent.mkdir(parents=True, exist_ok=True)

        def wait() -> None:
            watch.look()
            time.sleep(min(0.05, self.waiting.poll_seconds))

        with exclusive(path):
            if watch.has_content(file):
                return
            self.channel.tell(f"wanted-{epoch}", str(self.ranks.rank))
            receive(self.channel, file, self.directory, wait)


class _Watch:
    """One wait of a follower: it sees beats come, and says when they stop."""

    def __init__(self, follower: Follower, epoch: int) -> None:
        self._follower, self._epoch = follower, epoch
        self._beat: int | None = None
        self._last_beat = self._last_line = time.monotonic()
        self._polls = 0
        self._builder: BuilderStatus | None = None

    def look(self) -> EpochStatus | None:
        """Return the state of the epoch; None while nobody has begun it.

        Raises:
            TaskFailedError: no beat for too long.
        """
        status = self._follower.read()
        time_now = time.monotonic()
        self._polls += 1
        if status is not None and status.beat != self._beat:
            self._beat, self._last_beat, self._polls, self._builder = status.beat, time_now, 0, status
        self._check_alive(time_now - self._last_beat)
        return None if status is None else status.epochs.get(self._epoch)

    def pause(self, status: EpochStatus | None) -> None:
        """Sleep until the next look, and say a line now and then."""
        follower, time_now = self._follower, time.monotonic()
        if time_now - self._last_line >= _SAY_SECONDS:
            self._last_line = time_now
            place = "" if self._builder is None else f" ({self._builder.host}, process {self._builder.pid})"
            activity = (
                "has not come yet" if self._builder is None else "has not begun" if status is None else status.text()
            )
            follower.progress.say(
                f"rank {follower.ranks.rank} waits for the plan of epoch {self._epoch} by rank 0{place}: {activity}"
            )
        time.sleep(follower.waiting.poll_seconds)

    def has_content(self, file: PublishedFile) -> bool:
        """Return true if the file lies here with the bytes that were published."""
        directory = self._follower.directory
        return is_here(directory, file) and published(directory, file.path) == file

    def _check_alive(self, silence: float) -> None:
        builder, follower = self._builder, self._follower
        if builder is None:
            if silence > follower.waiting.arrive_seconds:
                raise TaskFailedError(
                    f"rank {follower.ranks.rank} waited {silence:.0f} s and rank 0 has not begun to plan: it ended, or "
                    f"it calls shared_plan later than {setting('arrive_seconds', follower.waiting.arrive_seconds)}"
                )
            return
        if self._polls < _MIN_POLLS:
            return
        is_gone = builder.processes == processes_here() and not _is_running(builder.pid)
        if is_gone or silence > follower.waiting.stale_seconds:
            reason = "its process has ended" if is_gone else f"no sign of it for {silence:.0f} s"
            state = builder.epochs.get(self._epoch)
            activity = "" if state is None else f", in {state.text()}"
            raise TaskFailedError(
                f"rank {follower.ranks.rank}: rank 0 ({builder.host}, process {builder.pid}) is gone{activity}: {reason}. "
                f"Most often memory ran out (dmesg tells); what it measured is kept: start the job again"
            )


def _is_running(pid: int) -> bool:
    """Return false if there is no such process on this machine, or only what is left of one."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return True
    return state != "Z"

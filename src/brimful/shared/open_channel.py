"""The channel of a job: the store of its process group, or files where there is none."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

from brimful.errors import SettingsError
from brimful.fingerprint import fingerprint_of
from brimful.locks import try_lock
from brimful.messages import setting
from brimful.shared.channel import STATUS, Channel
from brimful.shared.folder_channel import FolderChannel
from brimful.shared.ranks import Ranks
from brimful.shared.status import BuilderStatus
from brimful.shared.store_channel import StoreChannel, default_store
from brimful.shared.waiting import Waiting

_LAUNCHERS = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "MASTER_ADDR", "MASTER_PORT")
"""Variables that are equal on the ranks of one job and differ between jobs."""

_calls: Counter[str] = Counter()
"""Plans of each name that this process has shared: every rank makes them in the same order."""


def open_channel(
    ranks: Ranks, directory: Path, *, store: Any, job: str | None, name: str, waiting: Waiting
) -> Channel | None:
    """Return the channel between the ranks of this job; None for one process.

    Raises:
        SettingsError: another job has the same name in the directory.
    """
    number = _calls[name]
    _calls[name] += 1
    if ranks.world_size == 1:
        return None
    if store is None and job is None:
        store = default_store()
    if store is not None:
        return StoreChannel(store, f"brimful/{name}/{number}")
    if job is None:
        job = " ".join(os.environ.get(variable, "") for variable in _LAUNCHERS)
    channel = FolderChannel(directory / "jobs" / fingerprint_of([job, name, number, ranks.world_size]))
    if ranks.is_builder:
        _claim(channel, waiting)
    return channel


def _claim(channel: FolderChannel, waiting: Waiting) -> None:
    """Take the folder for this builder, unless that of another job lives in it.

    Raises:
        SettingsError: it does; names it.
    """
    # A descriptor, which nobody closes: the lock is held until the process ends.
    descriptor = os.open(channel.folder / "builder.lock", os.O_RDWR | os.O_CREAT)
    if not try_lock(descriptor):
        # Held by another, or there are no locks on this file system: then only a builder that beats is one.
        first = _status(channel)
        time.sleep(3 * waiting.beat_seconds)
        second = _status(channel)
        if second is not None and (first is None or (first.session, first.beat) != (second.session, second.beat)):
            raise SettingsError(
                f"{channel.folder.parent.parent} is in use by another job of that name ({second.host}, process "
                f"{second.pid}): give each its own {setting('job')}; they still share plans"
            )
    channel.clear()


def _status(channel: FolderChannel) -> BuilderStatus | None:
    data = channel.get(STATUS)
    return None if data is None else BuilderStatus.of_json(data)

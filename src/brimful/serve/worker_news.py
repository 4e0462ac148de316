"""Epoch that workers of a ``DataLoader`` that stay are to serve, in shared memory."""

from __future__ import annotations

from multiprocessing import RawArray
from multiprocessing.context import get_spawning_popen
from typing import Any

from brimful.errors import SettingsError


class WorkerNews:
    """Epoch that was set since workers were started (``persistent_workers=True``), which hold a copy
    of the loader from before.

    A worker may hear of it late or early, in an iteration that was abandoned: so it is an epoch and
    a step, and not a change. A copy that is not made for a worker has a memory of its own.
    """

    def __init__(self, memory: Any = None, num_calls: int = 0) -> None:
        # Calls of ``publish``; the last epoch, or -1; its first step; and 1 if workers have served it.
        self._memory = memory or RawArray("q", 4)
        self._num_calls = num_calls  # in a worker: calls before it was started

    def publish(self, epoch: int, step: int) -> None:
        """Let the iterations that follow serve an epoch, whose first step has this number."""
        self._num_calls += 1
        self._memory[:] = self._num_calls, epoch, step, 0

    def end(self) -> WorkerNews:
        """Let these workers refuse another iteration, and return the news for those started later."""
        self._memory[1] = -1
        return WorkerNews()

    @property
    def is_served(self) -> bool:
        """True if workers have served the epoch that was set."""
        return bool(self._memory[3])

    def receive(self) -> tuple[int, int] | None:
        """Return epoch and step in a worker; None if no epoch was set since it was started.

        Raises:
            SettingsError: a state was loaded since.
        """
        self._memory[3] = 1
        num_calls, epoch, step, _ = self._memory
        if epoch < 0:
            raise SettingsError(
                "a state was loaded after these workers were started, and they stay "
                "(persistent_workers=True): make a new DataLoader"
            )
        return None if num_calls == self._num_calls else (epoch, step)

    def __reduce__(self) -> Any:
        return WorkerNews, (self._memory, self._num_calls) if get_spawning_popen() else ()

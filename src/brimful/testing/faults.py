"""Planted faults: processes that die at a labelled place, full disks, power cuts, and networks that fail.

>>> with full_disk(after_bytes=3):
...     pass
"""

import contextlib
import errno
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any
from unittest import mock

from brimful.blobs import crash_points

__all__ = ["CRASH_POINTS", "FaultyFileSystem", "die_at", "full_disk"]

CRASH_POINTS = (
    "before-write",
    "mid-write",
    "before-rename",
    "after-rename",
    "before-link",
    "after-link",
    "after-shard",
    "after-commit",
)
"""Labels of ``brimful.blobs.crash_points`` in the order of a commit."""


def die_at(name: str, occurrence: int) -> None:
    """Kill this process (SIGKILL, no clean-up) the n-th time it passes a crash point. Call it in a child process."""
    assert name in CRASH_POINTS, name
    num_passed = 0

    def crash(point: str) -> None:
        nonlocal num_passed
        if point == name:
            num_passed += 1
            if num_passed == occurrence:
                os.kill(os.getpid(), signal.SIGKILL)

    setattr(crash_points, "reach", crash)  # noqa: B010  (the type of a function cannot be assigned to)


@contextlib.contextmanager
def full_disk(*, after_bytes: int) -> Iterator[None]:
    """Let ``os.write`` fail with ENOSPC after this number of bytes, counted over all files."""
    real, room = os.write, after_bytes

    def write(descriptor: int, data: bytes | memoryview) -> int:
        nonlocal room
        # Standard output and error are no files on the disk.
        if descriptor <= 2:
            return real(descriptor, data)
        if room <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        num_bytes = real(descriptor, data[:room])
        room -= num_bytes
        return num_bytes

    with mock.patch.object(os, "write", write):
        yield


class FaultyFileSystem:
    """A file system of fsspec behind a network that fails, in a fixed order and never for ever.

    Args:
        filesystem: the real one.
        short_reads: every second answer to a read has half of the bytes.
        fails: requests of each kind, name and thread that get no answer and do nothing, before one that does.
        loses_answers: writes of each name that succeed and whose answer is lost.
        ignores_conditions: creations replace what exists, as on servers that do not know conditions.

    Attributes:
        num_faults: that were planted so far.

    >>> import fsspec
    >>> filesystem = FaultyFileSystem(fsspec.filesystem("memory"), loses_answers=1)
    >>> filesystem.pipe_file("/doc", b"x", mode="create")
    Traceback (most recent call last):
        ...
    TimeoutError: the answer was lost (planted)
    >>> filesystem.cat_file("/doc")
    b'x'
    >>> filesystem.rm_file("/doc")
    """

    def __init__(
        self,
        filesystem: Any,
        *,
        short_reads: bool = False,
        fails: int = 0,
        loses_answers: int = 0,
        ignores_conditions: bool = False,
    ) -> None:
        self._filesystem = filesystem
        self._short_reads, self._fails, self._loses_answers = short_reads, fails, loses_answers
        self._ignores_conditions = ignores_conditions
        self._counts: dict[tuple[str, str], int] = {}
        self._lock = threading.Lock()
        self.num_faults = 0

    def _count(self, kind: str, path: str) -> int:
        """Return how often this was counted before."""
        with self._lock:
            number = self._counts.get((kind, path), 0)
            self._counts[kind, path] = number + 1
            return number

    def _reach(self, kind: str, path: str) -> None:
        """Let a request fail before it does anything, unless its turn is over; then its turns begin anew."""
        if self._count(f"{kind} {threading.get_ident()}", path) % (self._fails + 1) < self._fails:
            self.num_faults += 1
            raise TimeoutError("no answer (planted)")

    def cat_file(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        """Read a file or a part of it, sometimes less."""
        self._reach("read", path)
        data = bytes(self._filesystem.cat_file(path, start=start, end=end))
        if self._short_reads and len(data) > 1 and not self._count("short", path) % 2:
            self.num_faults += 1
            return data[: len(data) // 2]
        return data

    def pipe_file(self, path: str, value: bytes, **options: Any) -> None:
        """Write a file; sometimes without an answer."""
        self._reach("write", path)
        if self._ignores_conditions:
            options = {}
        self._filesystem.pipe_file(path, value, **options)
        if self._count("answer", path) < self._loses_answers:
            self.num_faults += 1
            raise TimeoutError("the answer was lost (planted)")

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._filesystem, name)
        if name not in ("ls", "size", "rm_file"):
            return method

        def request(*args: Any, **options: Any) -> Any:
            self._reach(name, str(args[0]) if args else "")
            return method(*args, **options)

        return request

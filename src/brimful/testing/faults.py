"""Planted faults: processes that die at a labelled place, and full disks.

>>> with full_disk(after_bytes=3):
...     pass
"""

import contextlib
import errno
import os
import signal
from collections.abc import Iterator
from unittest import mock

from brimful.blobs import crash_points

__all__ = ["CRASH_POINTS", "MEDIA_CRASH_POINTS", "die_at", "full_disk"]

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

MEDIA_CRASH_POINTS = (*CRASH_POINTS[:6], "after-media", *CRASH_POINTS[6:])
"""Labels of a commit of packs with media, whose container comes before their shard."""


def die_at(name: str, occurrence: int) -> None:
    """Kill this process (SIGKILL, no clean-up) the n-th time it passes a crash point. Call it in a child process."""
    assert name in MEDIA_CRASH_POINTS, name
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

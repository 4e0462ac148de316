"""Planted faults: processes that die at a labeled place, full disks, power cuts, and networks that fail.

>>> with full_disk(after_bytes=3):
...     pass
"""

import contextlib
import errno
import os
import signal
import stat
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest import mock

from brimful.base.blobs import Blob, BlobStore, crash_points

__all__ = [
    "CRASH_POINTS",
    "EXPORT_CRASH_POINTS",
    "MEDIA_CRASH_POINTS",
    "FaultyFileSystem",
    "LateStore",
    "PowerCut",
    "die_at",
    "full_disk",
]

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
"""Labels of ``brimful.base.blobs.crash_points`` in the order of a commit."""

MEDIA_CRASH_POINTS = (*CRASH_POINTS[:6], "after-media", *CRASH_POINTS[6:])
"""Labels of a commit of packs with media, whose container comes before their shard."""

EXPORT_CRASH_POINTS = (*CRASH_POINTS[:6], "after-export-shard", "before-export-end")
"""Labels of an export, whose shard comes before its record."""


def die_at(name: str, occurrence: int) -> None:
    """Kill this process (SIGKILL, no clean-up) the nth time it passes a crash point. Call it in a child process."""
    assert name in (*MEDIA_CRASH_POINTS, *EXPORT_CRASH_POINTS), name
    num_passed = 0

    def crash(point: str) -> None:
        nonlocal num_passed
        if point == name:
            num_passed += 1
            if num_passed == occurrence:
                os.kill(os.getpid(), signal.SIGKILL)

    setattr(crash_points, "reach", crash)  # noqa: B010  (the type of a function cannot be assigned to)


@contextlib.contextmanager
def full_disk(*, after_bytes: int, folder: str | os.PathLike[str] | None = None) -> Iterator[None]:
    """Let ``os.write`` fail with ENOSPC after this number of bytes, counted over all files.

    Args:
        after_bytes: bytes that are written first.
        folder: the disk; files elsewhere have room, such as files of other threads. If the system does not give the
            path of an open file (``/proc``), every file is on the disk.
    """
    real, room = os.write, after_bytes

    def is_on_disk(descriptor: int) -> bool:
        if folder is None:
            return True
        try:
            path = os.readlink(f"/proc/self/fd/{descriptor}")
        except OSError:
            return True
        return Path(path).is_relative_to(Path(folder).resolve())

    def write(descriptor: int, data: bytes | memoryview) -> int:
        nonlocal room
        # Standard output and error are not files on the disk.
        if descriptor <= 2 or not is_on_disk(descriptor):
            return real(descriptor, data)
        if room <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        num_bytes = real(descriptor, data[:room])
        room -= num_bytes
        return num_bytes

    with mock.patch.object(os, "write", write):
        yield


class FaultyFileSystem:
    """A file system of fsspec over a network that fails, in a fixed order and never permanently.

    Args:
        filesystem: the real one.
        short_reads: every second answer to a read has half the bytes.
        fails: requests of each kind, name and thread that get no answer and do nothing, before one that does.
        loses_answers: writes of each name that succeed and whose answer is lost.
        ignores_conditions: creations replace existing files, as on servers without conditional writes.

    Attributes:
        num_faults: faults planted so far.

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
        """Return the count before this call."""
        with self._lock:
            number = self._counts.get((kind, path), 0)
            self._counts[kind, path] = number + 1
            return number

    def _reach(self, kind: str, path: str) -> None:
        """Let a request fail before it does anything, unless its failures are used up; then they start again."""
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


class PowerCut:
    """Record of the parts of a directory that reached the device, and the loss of the rest.

    Files count as written when they were flushed, and names when their directory was, after the block began. POSIX
    promises no more; file systems usually keep more.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> with PowerCut(folder) as power:
    ...     _ = Path(folder, "new").write_bytes(b"never flushed")
    ...     os.replace(Path(folder, "new"), Path(folder, "name"))
    ...     power.cut()
    >>> os.listdir(folder)
    []
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)
        self._synced: set[int] = set()
        self._names: dict[str, list[tuple[str, bytes | None]]] = {}

    def __enter__(self) -> "PowerCut":
        self._synced = {path.stat().st_ino for path in self._files()}
        real_replace, real_link = os.replace, os.link

        def replace(source: Any, target: Any) -> None:
            path = Path(target)
            self._named(path, path.read_bytes() if path.exists() else None)
            real_replace(source, target)

        def link(source: Any, target: Any) -> None:
            real_link(source, target)
            self._named(Path(target), None)

        def fsync(descriptor: int) -> None:
            status = os.fstat(descriptor)
            if stat.S_ISDIR(status.st_mode):
                self._names.pop(os.path.realpath(f"/proc/self/fd/{descriptor}"), None)
            else:
                self._synced.add(status.st_ino)

        self._patches = contextlib.ExitStack()
        for name, function in (("replace", replace), ("link", link), ("fsync", fsync)):
            self._patches.enter_context(mock.patch.object(os, name, function))
        return self

    def __exit__(self, *_error: object) -> None:
        self._patches.close()

    def _files(self) -> list[Path]:
        return [path for path in self._folder.rglob("*") if path.is_file()]

    def _named(self, path: Path, before: bytes | None) -> None:
        self._names.setdefault(os.path.realpath(path.parent), []).append((str(path), before))

    def cut(self) -> None:
        """Lose everything that is not on the device: unflushed names, and unflushed bytes of files."""
        for changes in self._names.values():
            for path, before in reversed(changes):
                if before is None:
                    Path(path).unlink(missing_ok=True)
                else:
                    Path(path).write_bytes(before)
                    self._synced.add(Path(path).stat().st_ino)
        self._names.clear()
        for file in self._files():
            if file.stat().st_ino not in self._synced:
                os.truncate(file, 0)


class LateStore(BlobStore):
    """A view of a store in which blobs of other writers appear late, each after its own number of looks.

    Network mounts that cache listings and absent names for seconds behave like this. Own writes are visible at once.

    Args:
        store: the real one.
        most: maximum number of looks at one key before it is visible.

    >>> from brimful.base.blobs import open_blob_store
    >>> import tempfile
    >>> store = open_blob_store(tempfile.mkdtemp())
    >>> store.put_atomic("log/1", b"x")
    >>> late = LateStore(store, most=3)
    >>> [late.size("log/1") for _ in range(4)][-1]
    1
    """

    def __init__(self, store: BlobStore, *, most: int = 3) -> None:
        self.url, self._store, self._most = store.url, store, most
        self._looks: dict[str, int] = {}

    def _is_seen(self, key: str) -> bool:
        """Count a look at a key, and return true if it is visible."""
        looks = self._looks[key] = self._looks.get(key, 0) + 1
        return looks > zlib.crc32(key.encode()) % (self._most + 1)

    def _write(self, key: str) -> None:
        self._looks[key] = self._most + 1

    def blob(self, title: str) -> AbstractContextManager[Blob]:
        """Open a blob of the real store."""
        return self._store.blob(title)

    def put_atomic(self, key: str, data: bytes | memoryview) -> None:
        """Publish a blob, which is visible in this view at once."""
        self._store.put_atomic(key, data)
        self._write(key)

    def put_if_absent(self, key: str, data: bytes | memoryview) -> bool:
        """Publish a blob unless the key exists, visible or not."""
        is_ours = self._store.put_if_absent(key, data)
        self._write(key)
        return is_ours

    def get(self, key: str) -> bytes:
        """Return the bytes of a visible blob."""
        if not self._is_seen(key):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), key)
        return self._store.get(key)

    def get_range(self, key: str, start: int, stop: int) -> bytes:
        """Return some bytes of a visible blob."""
        if not self._is_seen(key):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), key)
        return self._store.get_range(key, start, stop)

    def size(self, key: str) -> int | None:
        """Return the size of a visible blob."""
        return self._store.size(key) if self._is_seen(key) else None

    def list(self, prefix: str) -> Sequence[str]:
        """Return the visible keys."""
        return [key for key in self._store.list(prefix) if self._is_seen(key)]

    def folders(self, prefix: str) -> Sequence[str]:
        """Return the folders of the real store."""
        return self._store.folders(prefix)

    def delete(self, key: str) -> None:
        """Remove a blob."""
        self._store.delete(key)

"""Local copies of blobs of a remote store, shared by the processes of one machine and bounded in
bytes.

::

    <xxh3_128>.arrow    a whole copy, named by its content; every user holds a shared lock on it
    <xxh3_128>.part     a download; its writer holds the lock; others that need the blob wait for it
    .lock               held while room is made

The locks are the kernel's: a killed process holds none, so others continue its download and may
remove its copies.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import xxhash

from brimful.base.atomic_file import full_device_explained
from brimful.base.blobs.interface import WRITE_AGAIN, BlobStore, PromisedBlobs
from brimful.base.checks import setting_number
from brimful.base.locks import cache_dir as default_cache_dir
from brimful.base.locks import cached, lock, open_lock, try_lock
from brimful.base.plain_files import NO_LINK, is_named, open_plain
from brimful.base.typing import AnyPath
from brimful.base.wording import setting
from brimful.errors import CorruptFileError, SettingsError

CACHE_BYTES = 64 << 30
"""Default limit on the bytes of all copies together."""

_PIECE_BYTES = 8 << 20
"""Bytes of one request of a download."""

_REQUESTS_AT_ONCE = 4
"""Concurrent requests of one download: one alone does not use the full bandwidth of an object
store.
"""

_DOWNLOADS = 3
"""Downloads of one blob before its original counts as damaged."""

_WAIT_SECONDS = 0.05
"""Seconds between two checks of a download that another process gave up."""


class LocalCopy:
    """A whole and checked copy. It is not removed until it is closed or garbage-collected.

    Attributes:
        path: of the file, for mapping into memory.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = str(path)
        self._close = weakref.finalize(self, os.close, descriptor)

    def close(self) -> None:
        """Release the copy: it stays until its space is needed. Mapped parts stay readable."""
        self._close()


class LocalCopies:
    """Copies of immutable blobs in a directory that several processes share.

    Each blob is downloaded once for all of them, compared with its size and hash, and appears whole
    or not at all. Before a download, the least recently used of the unused copies are removed.
    Copies in use are never removed: if they alone exceed the bound they stay, and a warning says so
    once.

    Args:
        store: where blobs come from.
        directory: on a local disk, the same for all processes that share; ``packs/`` in the cache
            if None.
        max_bytes: limit on the bytes of all files in the directory.

    Raises:
        SettingsError: the directory is on a file system without locks.
    """

    def __init__(
        self,
        store: BlobStore,
        directory: AnyPath | None = None,
        max_bytes: int | None = None,
    ) -> None:
        self.store = store
        self.max_bytes = (
            CACHE_BYTES
            if max_bytes is None
            else setting_number("cache_bytes", max_bytes, minimum=1)
        )
        self.directory = default_cache_dir() / "packs" if directory is None else Path(directory)
        self.num_downloads = 0
        self._promised = PromisedBlobs(store)
        self._is_warned = False
        with full_device_explained(self.directory):
            self._lock = self._path("new").with_name(".lock")
            self._lock.parent.mkdir(parents=True, exist_ok=True)
            with open(open_lock(self._lock), "rb") as file:
                if not lock(file, shared=True):
                    raise SettingsError(
                        f"{setting('cache_dir', str(self.directory))}: this file system has no "
                        "locks, by which processes share copies: name a directory on a local disk"
                    )

    def _path(self, name: str) -> Path:
        return cached(self.directory / name)

    def open(self, key: str, *, size: int, xxh3_128: str) -> LocalCopy:
        """Return the copy of a blob, downloaded at the first use on this machine.

        Args:
            key: of the blob in the store.
            size: its bytes.
            xxh3_128: its hash, 32 hexadecimal digits.

        Raises:
            CorruptFileError: the blob is missing, or has other bytes than these.
            StoreError: it cannot be read.
            StoreFullError: no space for the copy.
        """
        path = self._path(f"{xxh3_128}.arrow")
        while True:
            copy = self._whole(path, size)
            if copy is not None:
                return copy
            with full_device_explained(path):
                copy = self._downloaded(path, key, size, xxh3_128)
            if copy is not None:
                return copy

    def discard(self, xxh3_128: str) -> bool:
        """Remove a copy that turned out to be damaged, if it exists; its users keep the parts that
        they have mapped.
        """
        try:
            os.unlink(self._path(f"{xxh3_128}.arrow"))
        except FileNotFoundError:
            return False
        return True

    def _whole(self, path: Path, size: int) -> LocalCopy | None:
        """Return the existing copy, locked against removal; None without one."""
        try:
            descriptor = open_plain(path)
        except FileNotFoundError:
            return None
        copy = LocalCopy(path, descriptor)
        lock(descriptor, shared=True)
        status = os.fstat(descriptor)
        # Removed between its opening and its lock, or truncated: then treat it as absent.
        if not status.st_nlink or status.st_size != size:
            copy.close()
            if status.st_nlink:
                self.discard(path.stem)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # the time of the last use: least recently used copies are removed first
        return copy

    def _downloaded(self, path: Path, key: str, size: int, xxh3_128: str) -> LocalCopy | None:
        """Download a blob, or wait until another process has; None if the caller must check
        again.
        """
        partial_path = path.with_suffix(".part")
        try:
            descriptor = os.open(partial_path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            if not _remove_unused(partial_path):
                # Its writer holds an exclusive lock. A shared lock succeeds once the writer has
                # finished or died.
                with (
                    contextlib.suppress(FileNotFoundError),
                    open(open_plain(partial_path), "rb") as file,
                ):
                    lock(file, shared=True)
                    time.sleep(0 if path.exists() else _WAIT_SECONDS)
            return None
        copy = LocalCopy(path, descriptor)
        with contextlib.ExitStack() as stack:
            stack.callback(copy.close)
            if not (try_lock(descriptor) and is_named(descriptor, partial_path)):
                # Another process took it for abandoned.
                return None
            if path.exists():
                # Its writer finished between our check for the copy and our lock: this file is new
                # and not needed.
                os.unlink(partial_path)
                return None
            try:
                for attempt in count(1):
                    self._make_room(descriptor, partial_path, size)
                    try:
                        self._fetch(descriptor, key, size, xxh3_128)
                        break
                    except CorruptFileError:  # a stale view of a blob looks the same
                        if attempt == _DOWNLOADS:
                            raise
                        time.sleep(_WAIT_SECONDS * 4**attempt)
                os.replace(partial_path, path)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(partial_path)
                raise
            self.num_downloads += 1
            # It may be free in between, so its name is checked again.
            lock(descriptor, shared=True)
            if not is_named(descriptor, path):
                return None
            stack.pop_all()
            return copy

    def _fetch(self, descriptor: int, key: str, size: int, xxh3_128: str) -> None:
        """Write the bytes of a blob to a file, and compare them with the committed hash."""
        hasher = xxhash.xxh3_128()
        position = 0
        for piece in self._pieces(key, size):
            hasher.update(piece)
            view = memoryview(piece)
            while view:
                num_bytes = os.pwrite(descriptor, view, position)
                view, position = view[num_bytes:], position + num_bytes
        if hasher.hexdigest() != xxh3_128:
            raise CorruptFileError(
                f"{self.store.url}/{key} has other bytes than were committed: their hash is "
                f"{hasher.hexdigest()} and was {xxh3_128}: {WRITE_AGAIN}"
            )

    def _pieces(self, key: str, size: int) -> Iterator[bytes]:
        """Return the bytes of a blob in order, with several concurrent requests."""
        present_size = self._promised.size(key)
        if present_size != size:
            state = "is missing" if present_size is None else f"has {present_size:,} bytes"
            raise CorruptFileError(
                f"{self.store.url}/{key} {state} and was committed with {size:,} bytes: "
                f"{WRITE_AGAIN}"
            )

        def piece(start: int) -> bytes:
            return self.store.get_range(key, start, min(start + _PIECE_BYTES, size))

        with ThreadPoolExecutor(_REQUESTS_AT_ONCE) as threads:
            yield from threads.map(piece, range(0, size, _PIECE_BYTES))

    def _make_room(self, descriptor: int, path: Path, size: int) -> None:
        """Remove unused copies until this one fits, and reserve its bytes by extending its file."""
        with open(open_lock(self._lock), "rb") as file:
            lock(file)
            files = []
            for entry in os.scandir(path.parent):
                is_ours = entry.name.endswith((".arrow", ".part"))
                if is_ours and entry.name != path.name and entry.is_file(follow_symlinks=False):
                    with contextlib.suppress(FileNotFoundError):
                        status = entry.stat()
                        files.append((status.st_mtime_ns, entry.path, status.st_size))
            excess = sum(num_bytes for _, _, num_bytes in files) + size - self.max_bytes
            for _, name, num_bytes in sorted(files):
                if excess <= 0:
                    break
                if _remove_unused(name):
                    excess -= num_bytes
            if excess > 0 and not self._is_warned:
                self._is_warned = True
                logging.getLogger("brimful").warning(
                    "%s: the copies that are in use exceed cache_bytes=%d by %d bytes; give it "
                    "more, or open fewer at once",
                    *(self.directory, self.max_bytes, excess),
                )
            os.ftruncate(descriptor, size)

    def __repr__(self) -> str:
        return f"LocalCopies({self.store.url!r}, {str(self.directory)!r}, {self.max_bytes:,} bytes)"


def _remove_unused(path: str | Path) -> bool:
    """Remove a file unless a process holds its lock; return true if it is gone."""
    try:
        with open(open_plain(path, NO_LINK), "rb") as file:
            # If the name belongs to another file now, that is a newer copy, which is in use.
            if not (try_lock(file) and is_named(file.fileno(), path)):
                return False
            os.unlink(path)
    except FileNotFoundError:
        return True
    return True

"""The interface of a blob store: publish, read, list and delete blobs under keys, alone or as a
group of one commit.
"""

from __future__ import annotations

import abc
import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Protocol, TypeVar

import xxhash

from brimful.base.blobs import crash_points

T = TypeVar("T")


_SMALL_WRITE = 1 << 16
"""Bytes that are collected in memory before one call writes them to the device."""

_LATE_PAUSES: tuple[float, ...] = (0.1, 0.4, 1.5, 4.0, 8.0, 16.0)
"""Seconds between checks for a blob that is promised and absent: half a minute in all."""


WRITE_AGAIN = (
    "write it again (delete it, and run the same pack or write command; a producer writes no shard "
    "twice, so restore a shard of a stream from a copy)"
)
"""The way out for a damaged shard, in messages."""


def at_once(function: Callable[[T], object], values: Iterable[T]) -> None:
    """Call a function with each value, in a thread of its own; raise the first error once all have
    returned.
    """
    values = list(values)
    with ThreadPoolExecutor(len(values) or 1) as threads:
        for _ in threads.map(function, values):
            pass


class BlobStore(abc.ABC):
    """Blobs under keys such as ``shards/00000000-0123456789abcdef.arrow``.

    Keys use ``/`` and are relative. Implementations are safe to use from several processes at once.
    """

    url: str

    def put_atomic(self, key: str, data: bytes | memoryview) -> None:
        """Publish ``data`` under ``key``, replacing an older blob.

        Raises:
            StoreFullError: no space left; nothing was published and the temporary file is gone.
        """
        with self.blob(key) as blob:
            blob.write(data)
            blob.publish(key)

    @abc.abstractmethod
    def blob(self, title: str) -> AbstractContextManager[Blob]:
        """Open a blob to be written piece by piece and then published; an unpublished one is
        removed with the block.

        Args:
            title: name of the content, for messages.
        """

    @abc.abstractmethod
    def put_if_absent(self, key: str, data: bytes | memoryview) -> bool:
        """Publish ``data`` under ``key`` unless the key exists; true if this call published it.

        Over a network the answer to a request may be lost; there a blob of equal bytes counts as
        this call's. Writers that must know which of them succeeded put something unique into the
        data.
        """

    def commit(self, key: str, data: bytes | memoryview, blobs: Mapping[str, Blob]) -> bool:
        """Publish blobs of this store at once, and after them ``data`` as ``put_if_absent`` does.

        A process that sees the key finds the blobs, even after a power cut. They stay even if
        another writer was first with the key.

        Args:
            key, data: of the record that promises the blobs.
            blobs: complete blobs by their keys.
        """
        at_once(lambda named: named[1].publish(named[0]), blobs.items())
        crash_points.reach("after-shard")
        return self.put_if_absent(key, data)

    @abc.abstractmethod
    def get(self, key: str) -> bytes:
        """Return all bytes of a blob; ``FileNotFoundError`` if it is absent."""

    @abc.abstractmethod
    def get_range(self, key: str, start: int, stop: int) -> bytes:
        """Return the bytes ``start … stop - 1`` of a blob, all of them.

        Raises:
            FileNotFoundError: no such blob.
            StoreError: the blob ends before ``stop``.
        """

    def get_many(self, keys: Sequence[str]) -> list[bytes]:
        """Return all bytes of several small blobs, in their order; a remote store reads them at
        once.
        """
        return [self.get(key) for key in keys]

    @abc.abstractmethod
    def size(self, key: str) -> int | None:
        """Return the number of bytes in the blob, or None if it is absent."""

    @abc.abstractmethod
    def folders(self, prefix: str) -> list[str]:
        """Return the names that follow a prefix such as ``acks/`` and have keys below them, sorted:
        ``["run-1"]``.
        """

    @abc.abstractmethod
    def list(self, prefix: str) -> list[str]:
        """Return the keys under a prefix such as ``log/``, sorted."""

    @abc.abstractmethod
    def delete(self, key: str) -> None:
        """Remove a blob, if it exists."""

    def local_path(self, key: str) -> str | None:
        """Return the blob's path in the file system, for mapping into memory; None for a remote
        store.
        """
        return None

    def used(self, *job_folders: str) -> AbstractContextManager[None]:
        """Mark the store as used by a job until the block ends, then remove leftovers of it and of
        killed jobs in ``tmp/``.

        Nothing is removed while another job of this or another machine works here: the last of them
        clears. Nothing is removed either when the block fails, because the same job resumes from
        it.

        Args:
            job_folders: folders in ``tmp/`` of this job alone; only they are removed where the
                system has no locks.
        """
        return contextlib.nullcontext()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"


class PromisedBlobs:
    """Blobs that a record promises. A mount that caches listings may show them after the record;
    each is awaited once.

    Args:
        store: of the blobs.
    """

    def __init__(self, store: BlobStore) -> None:
        self._store = store
        self._lost: set[str] = set()

    def size(self, key: str) -> int | None:
        """Return the number of bytes in a blob, or None if it is still absent after half a
        minute.
        """
        for seconds in () if key in self._lost else _LATE_PAUSES:
            if (size := self._store.size(key)) is not None:
                return size
            time.sleep(seconds)
        self._lost.add(key)
        return self._store.size(key)


class Blob(abc.ABC):
    """Bytes on their way to a name that may depend on them.

    Attributes:
        size: bytes written so far.
    """

    def __init__(self) -> None:
        self.size = 0
        self._hasher = xxhash.xxh3_128()
        self._pending = bytearray()
        self.closed = False  # part of the file protocol, read by Arrow

    def write(self, data: bytes | memoryview) -> int:
        """Append bytes; small pieces are buffered first."""
        view = memoryview(data).cast("B")
        self._hasher.update(view)
        self.size += len(view)
        # A large view is written without a copy, after the bytes that were buffered before it.
        if len(self._pending) + len(view) < _SMALL_WRITE:
            self._pending += view
        else:
            self.flush_pending()
            self._write(view)
        return len(view)

    def flush(self) -> None:
        """Do nothing: part of the file protocol, and nothing has to be on disk before
        ``publish``.
        """
        return

    @property
    def xxh3_128(self) -> str:
        """32 hexadecimal digits of XXH3-128 over all bytes so far."""
        return self._hasher.hexdigest()

    def flush_pending(self) -> None:
        """Write the buffered pieces."""
        if self._pending:
            self._write(memoryview(bytes(self._pending)))
            self._pending.clear()

    @abc.abstractmethod
    def _write(self, view: memoryview) -> None: ...

    @abc.abstractmethod
    def publish(self, key: str) -> None:
        """Give the complete blob its key; it replaces an older blob."""


class BlobCopy(Protocol):
    """A whole local copy of a blob, which stays until it is closed.

    Attributes:
        path: of the file, for mapping into memory.
    """

    path: str

    def close(self) -> None:
        """Let the copy be removed."""


class BlobCopies(Protocol):
    """Local copies of the blobs of one store.

    Attributes:
        max_bytes: limit on the bytes of all copies together.
    """

    max_bytes: int

    def open(self, key: str, *, size: int, xxh3_128: str) -> BlobCopy:
        """Return a checked copy, made if there is none."""

    def discard(self, xxh3_128: str) -> bool:
        """Remove the copy of a content; false if there was none."""


class BlobGroup:
    """Blobs of one commit: flushed to the device at the same time, and named before the key that
    commits them.

    Use as a context; unpublished blobs are removed.

    Args:
        store: of the blobs.

    >>> import tempfile
    >>> from brimful.base.blobs import open_blob_store
    >>> store = open_blob_store(tempfile.mkdtemp())
    >>> with BlobGroup(store) as group:
    ...     shard = group.blob("a shard")
    ...     _ = shard.write(b"rows")
    ...     group.add("shards/0", shard)
    ...     group.commit("log/0", b"shard 0 is there")
    True
    >>> store.get("shards/0")
    b'rows'
    """

    def __init__(self, store: BlobStore) -> None:
        self.store = store
        self._stack = ExitStack()
        self._blobs: dict[str, Blob] = {}

    def __enter__(self) -> BlobGroup:
        return self

    def __exit__(self, *details: Any) -> None:
        self._stack.__exit__(*details)

    def blob(self, title: str) -> Blob:
        """Open a blob to be written; it is removed with the group unless it is published.

        Args:
            title: name of the content, for messages.
        """
        return self._stack.enter_context(self.store.blob(title))

    def add(self, key: str, blob: Blob) -> None:
        """Publish a complete blob under a key at the next commit.

        Raises:
            StoreFullError: no space left for its last bytes.
        """
        # Flush now, while this is the last opened blob: the error of a full disk names that one.
        blob.flush_pending()
        self._blobs[key] = blob

    def commit(self, key: str, data: bytes) -> bool:
        """Publish the blobs and then the key, unless it exists; true if this call published the
        key.

        Published blobs stay, even if another writer was first with the key; the next commit starts
        empty.
        """
        blobs, self._blobs = self._blobs, {}
        return self.store.commit(key, data, blobs)

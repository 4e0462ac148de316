"""The interface of a blob store: publish, read, list and delete blobs under keys."""

from __future__ import annotations

import abc
import contextlib
from contextlib import AbstractContextManager

import xxhash

__all__ = ["Blob", "BlobStore"]

_SMALL_WRITE = 1 << 16
"""Bytes that are collected before they go to the device."""


class BlobStore(abc.ABC):
    """Blobs under keys such as ``shards/00000000-0123456789abcdef.arrow``.

    Keys use ``/`` and are relative. Implementations are safe to use from several processes at once.
    """

    url: str

    @abc.abstractmethod
    def put_atomic(self, key: str, data: bytes | memoryview) -> None:
        """Publish ``data`` under ``key``, replacing what was there.

        Raises:
            StoreFullError: no space left; nothing was published and the temporary file is gone.
        """

    @abc.abstractmethod
    def blob(self, title: str) -> AbstractContextManager[Blob]:
        """A blob to be written piece by piece and then published; gone when the block ends without that.

        Args:
            title: what it will be, for messages.
        """

    @abc.abstractmethod
    def put_if_absent(self, key: str, data: bytes | memoryview) -> bool:
        """Publish ``data`` under ``key`` unless the key exists; true if this call published it."""

    @abc.abstractmethod
    def get(self, key: str) -> bytes:
        """All bytes of a blob; ``FileNotFoundError`` if it is absent."""

    @abc.abstractmethod
    def size(self, key: str) -> int | None:
        """Bytes in the blob, or None if there is none."""

    @abc.abstractmethod
    def list(self, prefix: str) -> list[str]:
        """Keys under a prefix such as ``log/``, sorted."""

    @abc.abstractmethod
    def delete(self, key: str) -> None:
        """Remove a blob; absent is fine."""

    @abc.abstractmethod
    def local_path(self, key: str) -> str | None:
        """Where the blob lies on this machine's file system, for mapping into memory, or None."""

    def used(self, *own: str) -> AbstractContextManager[None]:
        """Say that a job works here, until the block ends; what it and killed ones left in ``tmp/`` then goes.

        Nothing goes while another job works here, of this or another machine: the last of them clears. And nothing goes
        when the block fails: the same job goes on from it.

        Args:
            own: folders in ``tmp/`` that are this job's: all that goes where there are no locks that could tell.
        """
        return contextlib.nullcontext()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"


class Blob(abc.ABC):
    """Bytes on their way to a name that may depend on them.

    Attributes:
        size: bytes written so far.
    """

    def __init__(self) -> None:
        self.size = 0
        self._hasher = xxhash.xxh3_128()
        self._pending = bytearray()
        self.closed = False  # readers of the file protocol ask for it

    def write(self, data: bytes | memoryview) -> int:
        """Append; small pieces are collected first."""
        view = memoryview(data).cast("B")
        self._hasher.update(view)
        self.size += len(view)
        if len(self._pending) + len(view) < _SMALL_WRITE:
            self._pending += view
        else:
            self._flush_pending()
            self._write(view)
        return len(view)

    def flush(self) -> None:
        """Part of the file protocol; nothing has to be on disk before ``publish``."""
        return

    @property
    def xxh3_128(self) -> str:
        """32 digits of all bytes written so far."""
        return self._hasher.hexdigest()

    def _flush_pending(self) -> None:
        if self._pending:
            self._write(memoryview(bytes(self._pending)))
            self._pending.clear()

    @abc.abstractmethod
    def _write(self, view: memoryview) -> None: ...

    @abc.abstractmethod
    def publish(self, key: str) -> None:
        """Give the blob its name, whole; it replaces what was there."""

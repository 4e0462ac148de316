"""Blobs and files at a URL that fsspec opens, such as an object store."""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from brimful.base.blobs.interface import Blob, BlobStore
from brimful.clusters.retries import Retries, ShortReadError, is_passing
from brimful.errors import (
    BrimfulError,
    MissingExtraError,
    SettingsError,
    SourceError,
    SourceNotFoundError,
    StoreError,
)


def filesystem_of(url: str, **options: Any) -> tuple[Any, str]:
    """Return the fsspec file system of a URL, and the path in it.

    Raises:
        MissingExtraError: its library is not installed; names it.
        SettingsError: no file system has that protocol.

    >>> filesystem_of("nowhere://x")
    Traceback (most recent call last):
        ...
    brimful.errors.SettingsError: nowhere://x: fsspec knows no file system nowhere://
    """
    import fsspec

    protocol = url.partition("://")[0]
    try:
        filesystem, path = fsspec.core.url_to_fs(url, **options)
    except ImportError as error:
        # fsspec raises its own ImportError; its cause is the ImportError of the missing library.
        package = getattr(error.__cause__, "name", None) or error.name or protocol
        raise MissingExtraError(
            f"{url} needs {package}, which is not installed: pip install {package}"
        ) from error
    except ValueError as error:
        if protocol in fsspec.available_protocols():
            raise SettingsError(f"{url}: {error}") from error
        raise SettingsError(f"{url}: fsspec knows no file system {protocol}://") from error
    return filesystem, str(path)


@contextlib.contextmanager
def telling(url: str) -> Iterator[None]:
    """Turn the errors of remote file systems, which have their own classes, into errors of one
    line.

    Raises:
        SourceNotFoundError: no such file.
        SourceError: anything else, such as no network or no permission.
    """
    try:
        yield
    except BrimfulError:
        raise
    except FileNotFoundError as error:
        raise SourceNotFoundError(f"{url}: no such file") from error
    except Exception as error:  # cloud libraries have their own error classes
        reason = (str(error).strip() or repr(error)).splitlines()[0]
        raise SourceError(f"{url} cannot be read: {type(error).__name__}: {reason}") from error


class RemoteFile:
    """File at a URL."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._filesystem, self._path = filesystem_of(url)

    def version(self) -> str:
        """Return a value that changes when the file does."""
        with telling(self._url):
            return str(self._filesystem.ukey(self._path))

    def open(self) -> Any:
        """Open its bytes."""
        with telling(self._url):
            return self._filesystem.open(self._path, "rb")


CONDITIONAL = {
    "s3": "If-None-Match of S3 (s3fs)",
    "s3a": "If-None-Match of S3 (s3fs)",
    "gs": "ifGenerationMatch of Google Cloud Storage (gcsfs)",
    "gcs": "ifGenerationMatch of Google Cloud Storage (gcsfs)",
    "abfs": "If-None-Match of Azure (adlfs)",
    "abfss": "If-None-Match of Azure (adlfs)",
    "az": "If-None-Match of Azure (adlfs)",
}
"""Protocols whose file system creates a name for one of two writers, and how. fsspec's default
checks first and then writes, so two concurrent writers both succeed.
"""

_PIECE_BYTES = 8 << 20
"""Maximum bytes of one read request: few requests, and little to repeat after a failure."""

_THREADS = 16
"""Small blobs that are read at once."""


def protocol_to_write(url: str) -> str:
    """Return the protocol of a URL that packs can be written to.

    Raises:
        StoreError: its file system lets two writers create the same name, or ends with the process.

    >>> protocol_to_write("ftp://host/packs")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    brimful.errors.StoreError: ftp://host/packs: ftp:// is read only here: two writers could create the same name ...
    """
    protocol = url.partition("://")[0]
    if protocol not in CONDITIONAL:
        raise StoreError(
            f"{url}: {protocol}:// is read only here: two writers could create the same name on it, "
            "and packs could be lost. Write to a local directory or to one of "
            f"{', '.join(CONDITIONAL)}"
        )
    return protocol


class FsspecBlobStore(BlobStore):
    """A prefix of an object store or any other file system that fsspec opens.

    Reading takes any file system. ``put_if_absent`` takes file systems that create a name for only
    one writer (``CONDITIONAL``), and probes once that the server obeys. Requests that fail for a
    transient reason are repeated (``Retries``), and the rest of a short answer is requested.

    Args:
        url: of the prefix.
        filesystem, root: an open file system of fsspec and the prefix in it; opened from the URL if
            None.

    Attributes:
        retries: repeater of failed requests.
    """

    def __init__(self, url: str, *, filesystem: Any = None, root: str = "") -> None:
        self.url = url.rstrip("/")
        self.retries = Retries(self.url)
        self._given = filesystem
        self._opened: tuple[int, Any] | None = None
        self._root = self._open()[1] if filesystem is None else root
        self._probed = False

    def __reduce__(self) -> tuple[object, ...]:
        return FsspecBlobStore, (
            self.url,
        )  # a file system is not pickled, but opened in the other process

    def _open(self) -> tuple[Any, str]:
        # Listings are not cached: other writers add keys, and sizes would come from stale listings.
        filesystem, root = filesystem_of(self.url, use_listings_cache=False)
        self._opened = os.getpid(), filesystem
        return filesystem, root.rstrip("/")

    @property
    def _fs(self) -> Any:
        """The file system of this process: connections do not survive a fork."""
        if self._given is not None:
            return self._given
        if self._opened is None or self._opened[0] != os.getpid():
            self._open()
        assert self._opened is not None
        return self._opened[1]

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"

    @contextlib.contextmanager
    def blob(self, title: str) -> Iterator[Blob]:
        yield _MemoryBlob(self)

    @contextlib.contextmanager
    def used(self, *job_folders: str) -> Iterator[None]:
        self._check()  # before the work, not when its first name is created
        try:
            yield
        finally:
            self.retries.log_total()

    def put(self, key: str, data: bytes | bytearray | memoryview) -> None:
        """Put all bytes of a blob with one request, which replaces an older blob."""
        body = bytes(data)
        self.retries.call(f"write {key}", lambda: self._fs.pipe_file(self._path(key), body))

    def put_if_absent(self, key: str, data: bytes | memoryview) -> bool:
        self._check()
        return self._create(key, bytes(data))

    def _create(self, key: str, data: bytes) -> bool:
        """Create a blob; true if this call wrote it, or if it exists with the same bytes.

        A request may succeed and its answer be lost; fsspec's libraries may then repeat it, and
        learn that the name exists. So a writer that gets this answer reads the blob, and considers
        equal bytes its own.
        """

        def create() -> bool:
            try:
                self._fs.pipe_file(self._path(key), data, mode="create")
            except Exception as error:
                # Servers may also report an existing name by errors of other classes.
                content = (
                    self._found(key) if isinstance(error, OSError) or is_passing(error) else None
                )
                if content is not None:
                    return content == data
                if isinstance(error, FileExistsError):
                    raise ShortReadError(f"{key} exists and cannot be read yet") from error
                raise
            return True

        return self.retries.call(f"create {key}", create)

    def _found(self, key: str) -> bytes | None:
        """Return the bytes of a blob, or None if it is absent."""
        try:
            return self.get(key)
        except FileNotFoundError:
            return None

    def _check(self) -> None:
        """Refuse a file system on which a second creation of the same name succeeds too."""
        # Not when the store is opened: reading must not require write permission.
        if self._probed:
            return
        protocol = protocol_to_write(self.url)
        key = f"tmp/probe-{uuid.uuid4().hex}"
        is_first_created, is_second_created = self._create(key, b"1"), self._create(key, b"2")
        self.delete(key)
        if not is_first_created or is_second_created:
            raise StoreError(
                f"{self.url}: this file system lets two writers create the same name, so packs "
                f"written by two jobs at once could be lost; it needs {CONDITIONAL[protocol]}, "
                "which its server ignores"
            )
        self._probed = True

    def get(self, key: str) -> bytes:
        size = self.size(key)
        if size is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), f"{self.url}/{key}")
        return self.get_range(key, 0, size)

    def get_range(self, key: str, start: int, stop: int) -> bytes:
        data = bytearray()
        while (offset := start + len(data)) < stop:
            data += self.retries.call(f"read {key}", partial(self._piece, key, offset, stop))
        return bytes(data)

    def _piece(self, key: str, offset: int, stop: int) -> bytes:
        """Return some bytes from ``offset`` on, at least one byte: an answer may be short."""
        end = min(offset + _PIECE_BYTES, stop)
        piece = bytes(self._fs.cat_file(self._path(key), start=offset, end=end))
        if not piece:
            raise ShortReadError(f"no bytes from {offset:,} on")
        if len(piece) > end - offset:
            raise StoreError(
                f"{self.url}: this file system gives whole blobs where {end - offset:,} bytes were "
                "asked for"
            )
        return piece

    def get_many(self, keys: Sequence[str]) -> list[bytes]:
        with ThreadPoolExecutor(_THREADS) as threads:  # it starts as many as there are keys
            return list(threads.map(self.get, keys))

    def size(self, key: str) -> int | None:
        try:
            return int(self.retries.call(f"look for {key}", lambda: self._fs.size(self._path(key))))
        except FileNotFoundError:
            return None

    def folders(self, prefix: str) -> list[str]:
        return self._names(prefix, "directory")

    def _names(self, prefix: str, entry_type: str) -> list[str]:
        """Return the names of one kind that follow a prefix, sorted."""
        folder = prefix.rstrip("/")

        def entries() -> Any:
            self._fs.invalidate_cache()
            return self._fs.ls(self._path(folder), detail=True)

        try:
            listing = self.retries.call(f"list {prefix}", entries)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(
            entry["name"].rstrip("/").rpartition("/")[2]
            for entry in listing
            if entry["type"] == entry_type
        )

    def list(self, prefix: str) -> list[str]:
        return [f"{prefix.rstrip('/')}/{name}" for name in self._names(prefix, "file")]

    def delete(self, key: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.retries.call(f"delete {key}", lambda: self._fs.rm_file(self._path(key)))


class _MemoryBlob(Blob):
    """Bytes collected in memory and put with one request, which makes them atomic."""

    def __init__(self, store: FsspecBlobStore) -> None:
        super().__init__()
        self._store = store
        self._data = bytearray()

    def _write(self, view: memoryview) -> None:
        self._data += view

    def publish(self, key: str) -> None:
        self.flush_pending()
        self._store.put(key, self._data)

"""Named blobs in a local directory or behind an fsspec URL, published whole or not at all.

Every file that brimful writes appears under its final name complete, or does not appear. Two operations
carry all protocols: ``put_atomic`` (last writer wins) and ``put_if_absent`` (first writer wins, the
others learn that they lost).

On POSIX the bytes go to ``tmp/``, are flushed to the device, and are renamed (``put_atomic``) or hard-linked
(``put_if_absent``) to their name; then the directory is flushed, so that a power cut cannot undo what was
reported as done. A failed write leaves nothing behind. A killed one leaves a file, which goes when the next job finishes
in that directory (``Store.used``) or writes that file again (``atomic_file``): what is in use is locked.

>>> import tempfile
>>> store = open_store(tempfile.mkdtemp())
>>> store.put_if_absent("log/000000000000.json", b"first")
True
>>> store.put_if_absent("log/000000000000.json", b"second")
False
>>> store.get("log/000000000000.json")
b'first'
"""

from __future__ import annotations

import abc
import contextlib
import errno
import os
import shutil
import socket
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import xxhash

from brimful.arguments import path_of
from brimful.errors import SettingsError, StoreError, StoreFullError
from brimful.locks import lock, try_lock
from brimful.remote import filesystem_of

__all__ = ["Blob", "FsspecStore", "LocalStore", "Store", "atomic_file", "crash_point", "open_store"]

_IN_USE = ".in-use"
_SMALL_WRITE = 1 << 16
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def crash_point(name: str) -> None:
    """A labelled place where the fault tests end the process. Does nothing otherwise.

    ``brimful.testing.faults`` replaces it in a child process; nothing in production code reads a switch.
    """


class Store(abc.ABC):
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
    def get_range(self, key: str, start: int, length: int) -> bytes:
        """``length`` bytes from ``start``."""

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

    def exists(self, key: str) -> bool:
        """Whether a blob of that key is published."""
        return self.size(key) is not None

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


class LocalStore(Store):
    """A directory on a POSIX file system, local or shared."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)
        self.url = str(self.directory)

    @contextlib.contextmanager
    def blob(self, title: str) -> Iterator[Blob]:
        with self._errors_explained(self.directory / title), self._temporary_name() as tmp:
            blob = _LocalBlob(self.directory, tmp)
            try:
                yield blob
            finally:
                blob.close()

    def put_atomic(self, key: str, data: bytes | memoryview) -> None:
        with self.blob(key) as blob:
            blob.write(data)
            blob.publish(key)

    def put_if_absent(self, key: str, data: bytes | memoryview) -> bool:
        target = self.directory / key
        if target.exists():
            return False
        with self._errors_explained(target), self._temporary_name() as tmp:
            blob = _LocalBlob(self.directory, tmp)
            try:
                blob.write(data)
                blob.finish()
            finally:
                blob.close()
            target.parent.mkdir(parents=True, exist_ok=True)
            crash_point("before-link")
            try:
                os.link(tmp, target)
            except FileExistsError:
                # NFS may report EEXIST for our own link when the answer to the first try was lost.
                won = os.stat(tmp).st_nlink == 2
            except OSError as error:
                if error.errno not in {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK}:
                    raise
                won = _exclusive_copy(tmp, target)
            else:
                won = True
            crash_point("after-link")
            _sync_directory(target.parent)
        return won

    def get(self, key: str) -> bytes:
        return (self.directory / key).read_bytes()

    def get_range(self, key: str, start: int, length: int) -> bytes:
        with open(self.directory / key, "rb") as file:
            file.seek(start)
            return file.read(length)

    def size(self, key: str) -> int | None:
        try:
            return os.stat(self.directory / key).st_size
        except (FileNotFoundError, NotADirectoryError):
            return None

    def list(self, prefix: str) -> list[str]:
        folder = self.directory / prefix
        if not folder.is_dir():
            return []
        with os.scandir(folder) as entries:
            return sorted(f"{prefix.rstrip('/')}/{entry.name}" for entry in entries if entry.is_file())

    def delete(self, key: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.directory / key)

    def local_path(self, key: str) -> str | None:
        return str(self.directory / key)

    @contextlib.contextmanager
    def used(self, *own: str) -> Iterator[None]:
        folder = self.directory / "tmp"
        with contextlib.ExitStack() as stack:
            with self._errors_explained(folder):
                use = stack.enter_context(_used(folder))
            yield
            if use.alone():
                for entry in folder.iterdir():
                    _remove(entry, but=_IN_USE)
            elif not use.locked:
                for name in own:
                    _remove(folder / name)

    @contextlib.contextmanager
    def _temporary_name(self) -> Iterator[Path]:
        """A name in ``tmp/``; what lies there is gone when the block ends, whatever happens."""
        folder = self.directory / "tmp"
        tmp = folder / f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex}"
        with _used(folder):
            try:
                yield tmp
            finally:
                with contextlib.suppress(OSError):
                    os.unlink(tmp)

    @staticmethod
    @contextlib.contextmanager
    def _errors_explained(target: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            _raise_if_full(error, target)
            raise


class _LocalBlob(Blob):
    """A file in ``tmp/`` that is renamed to its key."""

    def __init__(self, directory: Path, tmp: Path) -> None:
        super().__init__()
        self._directory, self._tmp = directory, tmp
        self._descriptor: int | None = os.open(tmp, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        crash_point("before-write")

    def _write(self, view: memoryview) -> None:
        assert self._descriptor is not None
        while view:
            written = os.write(self._descriptor, view[: 1 << 24])
            view = view[written:]
            crash_point("mid-write")

    def finish(self) -> None:
        """All bytes on the device."""
        self._flush_pending()
        descriptor, self._descriptor = self._descriptor, None
        assert descriptor is not None
        try:
            os.fsync(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # its error counts too: NFS reports a full disk here

    def publish(self, key: str) -> None:
        self.finish()
        target = self._directory / key
        target.parent.mkdir(parents=True, exist_ok=True)
        crash_point("before-rename")
        os.replace(self._tmp, target)
        crash_point("after-rename")
        _sync_directory(target.parent)

    def close(self) -> None:
        """Give up whatever is still open."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class FsspecStore(Store):
    """A prefix of an object store or any other file system that fsspec opens.

    ``put_if_absent`` uses the file system's exclusive creation (``If-None-Match`` on S3). A backend without it
    would let two writers both win, so it is probed once and refused.
    """

    def __init__(self, url: str, **storage_options: Any) -> None:
        self.url = url.rstrip("/")
        self._fs, self._root = filesystem_of(self.url, **storage_options)
        self._probed = False

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"

    @contextlib.contextmanager
    def blob(self, title: str) -> Iterator[Blob]:
        yield _MemoryBlob(self)

    def put_atomic(self, key: str, data: bytes | memoryview) -> None:
        self._fs.makedirs(self._path(key).rpartition("/")[0], exist_ok=True)
        self._fs.pipe_file(self._path(key), bytes(data))

    def put_if_absent(self, key: str, data: bytes | memoryview) -> bool:
        if not self._probed:
            self._probe()
        return self._create(key, data)

    def _create(self, key: str, data: bytes | memoryview) -> bool:
        self._fs.makedirs(self._path(key).rpartition("/")[0], exist_ok=True)
        try:
            self._fs.pipe_file(self._path(key), bytes(data), mode="create")
        except FileExistsError:
            return False
        return True

    def _probe(self) -> None:
        key = f"tmp/probe-{uuid.uuid4().hex}"
        first, second = self._create(key, b"1"), self._create(key, b"2")
        self.delete(key)
        if not first or second:
            raise StoreError(
                f"{self.url}: this file system lets two writers create the same name, so packs written by two "
                f"jobs at once could be lost; use one with exclusive creation (S3, GCS, local)"
            )
        self._probed = True

    def get(self, key: str) -> bytes:
        return bytes(self._fs.cat_file(self._path(key)))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return bytes(self._fs.cat_file(self._path(key), start=start, end=start + length))

    def size(self, key: str) -> int | None:
        try:
            return int(self._fs.size(self._path(key)))
        except FileNotFoundError:
            return None

    def list(self, prefix: str) -> list[str]:
        self._fs.invalidate_cache()
        try:
            found = self._fs.ls(self._path(prefix.rstrip("/")), detail=True)
        except FileNotFoundError:
            return []
        names = [entry["name"].rsplit("/", 1)[-1] for entry in found if entry["type"] == "file"]
        return sorted(f"{prefix.rstrip('/')}/{name}" for name in names)

    def delete(self, key: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(self._path(key))

    def local_path(self, key: str) -> str | None:
        return None


class _MemoryBlob(Blob):
    """Collected in memory and put with one request, which is what makes it atomic."""

    def __init__(self, store: FsspecStore) -> None:
        super().__init__()
        self._store = store
        self._data = bytearray()

    def _write(self, view: memoryview) -> None:
        self._data += view

    def publish(self, key: str) -> None:
        self._flush_pending()
        self._store.put_atomic(key, bytes(self._data))


def open_store(url: str | os.PathLike[str]) -> Store:
    """The store behind a path or URL (``s3://bucket/packs``; ``file://`` is the local one)."""
    text = path_of("directory", url, "a path or a URL")
    if text.startswith("file://"):
        text = text[len("file://") :]
    if "://" in text:
        return FsspecStore(text)
    if not text:
        raise SettingsError("the path of a store is empty")
    return LocalStore(text)


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A file to write from start to end that appears at ``path`` when the block ends well.

    For tables too large to hold as one bytes object. On any error the temporary file is removed.

    Raises:
        StoreFullError: no space left.
    """
    target = Path(path)
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a directory, and a file is to be written", str(target))
    tmp = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _clear_abandoned(target)
        tmp, file = _locked_sibling(target)
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.replace(tmp, target)  # still locked: a file without its lock is taken for abandoned
        _sync_directory(target.parent)
    except OSError as error:
        _raise_if_full(error, target)
        raise
    finally:
        if tmp is not None:
            with contextlib.suppress(OSError):
                os.unlink(tmp)


def _locked_sibling(target: Path) -> tuple[Path, IO[bytes]]:
    """A new file beside the target, locked before anybody could take it for abandoned."""
    while True:
        tmp = target.with_name(f".{target.name}.{os.getpid()}-{uuid.uuid4().hex[:8]}.tmp")
        file = open(tmp, "xb")  # noqa: SIM115 - the caller closes it
        lock(file)
        if os.fstat(file.fileno()).st_nlink:
            return tmp, file
        file.close()  # cleared between its creation and its lock


def _clear_abandoned(target: Path) -> None:
    """Remove what writers of the same file left that were killed."""
    with os.scandir(target.parent) as entries:
        left = [entry.path for entry in entries if _is_sibling(entry.name, target.name)]
    for path in left:
        with contextlib.suppress(OSError), open(path, "r+b") as file:
            if try_lock(file):
                os.unlink(path)


def _is_sibling(name: str, target: str) -> bool:
    begin, end = f".{target}.", ".tmp"
    unique = name[len(begin) : -len(end)]
    return name.startswith(begin) and name.endswith(end) and unique.replace("-", "").isalnum() and "." not in unique


@dataclass(frozen=True)
class _Use:
    """A claim on a folder of temporary files; ``locked``: whether the system has locks."""

    file: IO[bytes]
    locked: bool

    def alone(self) -> bool:
        """Whether nobody else uses the folder, and nobody can begin to before this use ends."""
        return self.locked and try_lock(self.file)


@contextlib.contextmanager
def _used(folder: Path) -> Iterator[_Use]:
    """Use a folder together with others; it is there as long as somebody does, and goes with the last if it is empty."""
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            file = open(folder / _IN_USE, "ab")  # noqa: SIM115 - closed below
        except FileNotFoundError:  # the folder went meanwhile
            continue
        with file:
            locked = lock(file, shared=True)
            if locked and not os.fstat(file.fileno()).st_nlink:
                continue  # whoever was alone here removed it while we waited
            use = _Use(file, locked)
            try:
                yield use
            finally:
                if use.alone():
                    with contextlib.suppress(OSError):
                        for other in folder.glob("*.lock"):  # who would hold one uses the folder
                            other.unlink()
                        os.unlink(folder / _IN_USE)  # the last thing: those who wait for it look again
                        folder.rmdir()
            return


def _remove(path: Path, *, but: str | None = None) -> None:
    if path.name == but:
        return
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _exclusive_copy(tmp: Path, target: Path) -> bool:
    """For file systems without hard links. A reader may see it half written and must check its length."""
    try:
        blob = _LocalBlob(target.parent, target)
    except FileExistsError:
        return False
    try:
        blob.write(tmp.read_bytes())
        blob.finish()
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(target)
        raise
    finally:
        blob.close()
    return True


def _sync_directory(folder: Path) -> None:
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return  # some network file systems do not open directories; they publish renames on their own
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.ENOTSUP, errno.EBADF}:
            raise
    finally:
        os.close(descriptor)


def _raise_if_full(error: OSError, target: Path) -> None:
    if error.errno in _FULL:
        raise StoreFullError(
            error.errno,
            f"no space left while writing {target}: nothing that was committed is lost; free some space and run "
            f"the same command again, it goes on where it stopped",
        ) from error

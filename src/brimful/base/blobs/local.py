"""Blobs as files of a POSIX directory, local or shared.

The bytes go to ``tmp/``, are flushed to the device, and are renamed (``put_atomic``) or hard-linked
(``put_if_absent``) to their name; then the directory is flushed, so that a power cut cannot undo a
write that was reported as done. The files of a commit are flushed at the same time, all before a
name promises them. A failed write leaves no file. A killed one leaves a file, which is removed when
the next job finishes in that directory (``LocalBlobStore.used``): files in use are locked, and the
last job that uses ``tmp/`` clears it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, TypeVar

from brimful.base.atomic_file import full_device_explained, make_directory, sync_directory
from brimful.base.blobs import crash_points
from brimful.base.blobs.interface import Blob, BlobStore, at_once
from brimful.base.locks import lock, open_lock, try_lock
from brimful.base.plain_files import NO_LINK, is_named, open_plain, read_plain
from brimful.base.typing import AnyPath
from brimful.base.wording import setting
from brimful.errors import SettingsError, StoreError

IN_USE = ".in-use"
"""Name of the file in the folder whose lock says that a job uses it."""


_MAX_WRITE = 1 << 24
"""Bytes of one write; between two of them the fault tests can end the process."""

_CLAIM_PAUSES = (0.001, 0.01, 0.1, 0.4)
"""Seconds between checks of an empty file: its name may be claimed, and its bytes about to
arrive.
"""

_NO_LINKS = {
    *(errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK),
    *(errno.ENOSYS, errno.EACCES, errno.EXDEV),
}
"""Errors of file systems that make no hard links, or none there."""

Seen = TypeVar("Seen")


@contextlib.contextmanager
def use_folder(folder: Path) -> Iterator[IO[bytes] | None]:
    """Use a folder together with other jobs; it stays while one uses it, and the last removes it if
    it is empty.

    Yields:
        The file whose lock says so; None where the system has no locks.
    """
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            # It existed, and another job removed it before Python checked whether it is a
            # directory.
            if folder.exists() and not folder.is_dir():
                raise
            continue
        try:
            file = open(open_lock(folder / IN_USE), "rb")  # noqa: SIM115 - closed below
        except FileNotFoundError:  # another job removed the folder meanwhile
            continue
        with file:
            use = file if lock(file, shared=True) else None
            # The last job removes the file under its own lock, so this lock may be on an unlinked
            # file.
            if use is not None and not os.fstat(file.fileno()).st_nlink:
                continue
            try:
                yield use
            finally:
                if _is_alone(use):
                    with contextlib.suppress(OSError):
                        # Their holders would use the folder too, so they are free.
                        for lock_file in folder.glob("*.lock"):
                            lock_file.unlink()
                        # Last: jobs that wait for its lock find it unlinked and start again.
                        os.unlink(folder / IN_USE)
                        folder.rmdir()
            return


def _is_alone(use: IO[bytes] | None) -> bool:
    """Return true if no other job uses the folder, and none can start before this use ends."""
    return use is not None and try_lock(use)


def remove(path: Path) -> None:
    """Remove a file or a folder with all in it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


class LocalBlobStore(BlobStore):
    """A directory on a POSIX file system, local or shared."""

    def __init__(self, directory: AnyPath) -> None:
        self.directory = Path(directory)
        self.url = str(self.directory)

    @contextlib.contextmanager
    def blob(self, title: str) -> Iterator[_LocalBlob]:
        """Open a blob in ``tmp/``; its file in ``tmp/`` is removed when the block ends, published
        or not.
        """
        folder = self.directory / "tmp"
        tmp = folder / f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex}"
        blobs: list[_LocalBlob] = []
        with (
            full_device_explained(
                self.directory / title, lambda: sum(blob.num_written for blob in blobs)
            ),
            use_folder(folder),
        ):
            try:
                with contextlib.closing(_LocalBlob(self.directory, tmp, title)) as blob:
                    blobs.append(blob)
                    yield blob
            finally:
                with contextlib.suppress(OSError):
                    os.unlink(tmp)

    def put_if_absent(self, key: str, data: bytes | memoryview) -> bool:
        target = self.directory / key
        # Only saves the write: the link below decides between two writers. An empty file may be a
        # claim of a killed one.
        if target.exists() and (target.stat().st_size or not data):
            return False
        with self.blob(key) as blob:
            blob.write(data)
            blob.finish()
            return blob.link(key)

    def commit(self, key: str, data: bytes | memoryview, blobs: Mapping[str, Blob]) -> bool:
        with self.blob(key) as record:
            record.write(data)
            record.flush_pending()
            files = {name: blob for name, blob in blobs.items() if isinstance(blob, _LocalBlob)}
            assert len(files) == len(blobs), "blobs of another store"
            # One journal commit of the file system covers them all; the record promises nothing
            # before it is named.
            at_once(_LocalBlob.finish, [*files.values(), record])
            for name, blob in files.items():
                blob.rename(name)
            at_once(sync_directory, {(self.directory / name).parent for name in files})
            # Killed here, the blobs have their content names, but no record promises them.
            crash_points.reach("after-shard")
            return record.link(key)

    def get(self, key: str) -> bytes:
        for seconds in _CLAIM_PAUSES:
            if data := self._seen(key, read_plain):
                return data
            time.sleep(seconds)
        return self._seen(key, read_plain)

    def _seen(self, key: str, look: Callable[[Path], Seen]) -> Seen:
        """Return the result of a look at a file; if it is absent, look again.

        An NFS client caches for up to a minute that a name was absent; opening the folder makes it
        ask the server.
        """
        path = self.directory / key
        try:
            return look(path)
        except FileNotFoundError:
            with contextlib.suppress(OSError):
                # From the top down: the folder itself may have been absent.
                for folder in (self.directory, path.parent):
                    os.close(os.open(folder, os.O_RDONLY))
            return look(path)

    def get_range(self, key: str, start: int, stop: int) -> bytes:
        with open(self.directory / key, "rb") as file:
            file.seek(start)
            data = file.read(stop - start)
        if len(data) != stop - start:
            raise StoreError(f"{self.directory / key} ends before byte {stop:,}")
        return data

    def size(self, key: str) -> int | None:
        try:
            return self._seen(key, os.stat).st_size
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _entries(self, prefix: str) -> list[os.DirEntry[str]]:
        folder = self.directory / prefix
        if not folder.is_dir():
            return []
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)

    def folders(self, prefix: str) -> list[str]:
        return [entry.name for entry in self._entries(prefix) if entry.is_dir()]

    def list(self, prefix: str) -> list[str]:
        return [
            f"{prefix.rstrip('/')}/{entry.name}"
            for entry in self._entries(prefix)
            if entry.is_file()
        ]

    def delete(self, key: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.directory / key)

    def local_path(self, key: str) -> str | None:
        return str(self.directory / key)

    @contextlib.contextmanager
    def used(self, *job_folders: str) -> Iterator[None]:
        folder = self.directory / "tmp"
        with contextlib.ExitStack() as stack:
            # Errors of the block are its own: only errors of opening the folder are explained.
            with full_device_explained(folder):
                try:
                    use = stack.enter_context(use_folder(folder))
                except NotADirectoryError as error:
                    file = next(path for path in folder.parents if path.exists())
                    raise SettingsError(
                        f"{setting('directory', str(file))} is a file: name a directory"
                    ) from error
            yield
            if _is_alone(use):
                for name in set(os.listdir(folder)) - {IN_USE}:
                    remove(folder / name)
            elif use is None:
                for name in job_folders:
                    remove(folder / name)


class _LocalBlob(Blob):
    """A file in ``tmp/`` that is renamed or linked to its key."""

    def __init__(self, directory: Path, tmp: Path, title: str) -> None:
        super().__init__()
        self._directory, self._tmp, self._title = directory, tmp, title
        self.num_written = 0
        self._descriptor: int | None = os.open(tmp, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        crash_points.reach("before-write")

    def _write(self, view: memoryview) -> None:
        assert self._descriptor is not None
        # Explained here, where its name is known: otherwise the last of several open blobs would be
        # blamed.
        with full_device_explained(self._directory / self._title, lambda: self.num_written):
            while view:
                num_bytes = os.write(self._descriptor, view[:_MAX_WRITE])
                view = view[num_bytes:]
                self.num_written += num_bytes
                crash_points.reach("mid-write")

    def finish(self) -> None:
        """Flush all bytes to the device."""
        with full_device_explained(self._directory / self._title, lambda: self.num_written):
            self.flush_pending()
            assert self._descriptor is not None
            os.fsync(self._descriptor)
            self.close()  # its error counts too: NFS reports a full disk here

    def publish(self, key: str) -> None:
        self.finish()
        self.rename(key)
        sync_directory((self._directory / key).parent)

    def rename(self, key: str) -> None:
        """Give a finished file its name, which is durable once its directory is flushed."""
        target = self._directory / key
        make_directory(target.parent)
        crash_points.reach("before-rename")
        os.replace(self._tmp, target)
        crash_points.reach("after-rename")

    def link(self, key: str) -> bool:
        """Give a finished file its name unless that exists; true if it is this file's."""
        target = self._directory / key
        make_directory(target.parent)
        crash_points.reach("before-link")
        is_ours = _exclusive_link(self._tmp, target)
        crash_points.reach("after-link")
        sync_directory(target.parent)
        return is_ours

    def close(self) -> None:
        """Close the file, unless it is closed."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def _exclusive_link(tmp: Path, target: Path) -> bool:
    """Link a finished file to its name; return false if the name exists."""
    try:
        os.link(tmp, target)
    except FileExistsError:
        # NFS may report EEXIST for our own link if the answer to the first try was lost.
        return os.stat(tmp).st_nlink == 2 or _exclusive_claim(tmp, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return _exclusive_claim(tmp, target)
    return True


def _exclusive_claim(tmp: Path, target: Path) -> bool:
    """Claim a name with an empty file, and rename a finished file to it; return false if the name
    exists.

    For file systems without hard links. Readers see no file, an empty one, or all: ``get`` waits
    for claimed names. A writer holds the lock of its claim; a claim that stays empty and has no
    holder is of a killed writer, and the next one takes it over.
    """
    try:
        claim, is_new = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), True
    except FileExistsError:
        try:
            claim, is_new = open_plain(target, NO_LINK), False
        except FileNotFoundError:  # given up by its writer
            return _exclusive_claim(tmp, target)
    try:
        if not (is_new or _stays_empty(claim, target)):
            return not os.path.lexists(target) and _exclusive_claim(tmp, target)
        lock(claim)
        if not is_named(claim, target):
            return False
        try:
            os.replace(tmp, target)
        except BaseException:
            # Free the name again, or readers would wait for it.
            with contextlib.suppress(OSError):
                os.unlink(target)
            raise
    finally:
        os.close(claim)
    return True


def _stays_empty(claim: int, target: Path) -> bool:
    """Return true if a claimed name stays empty for longer than a writer takes from its claim to its
    bytes, also one on another machine, whose lock may not be seen here.
    """
    for seconds in _CLAIM_PAUSES:
        if os.fstat(claim).st_size or not is_named(claim, target):
            return False
        time.sleep(10 * seconds)
    return True
